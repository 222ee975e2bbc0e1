/* The entropy decoder that takes libjpeg's place where it can: see huffman.c. */

#ifndef FOREBAY_HUFFMAN_H
#define FOREBAY_HUFFMAN_H

#include <stdint.h>
#include <stdio.h>

#include <jpeglib.h>

struct huffman;

#define MAX_LANDMARK_COMPONENTS 3

/* A position in a picture's coded data, between two MCUs, at which decoding can start; src/jpeg/landmarks.rs has the same. */
struct landmark {
  uint32_t mcu;    /* how many are before it */
  uint32_t offset; /* of the next byte in the file */
  int16_t dc[MAX_LANDMARK_COMPONENTS];
  uint8_t bits; /* that were taken from the bytes before and not used yet */
  uint8_t unused;
};

struct landmarks {
  struct landmark *all; /* from the first to the last */
  uint32_t count, room;
};

/* Memory for tables; NULL where there is none left, or where this library's decoder is not known. */
struct huffman *forebay_huffman_new(void);
void forebay_huffman_free(struct huffman *huffman);

/* Takes over from the entropy decoder of the picture that jpeg_start_decompress() has begun, if that is one it knows.
 * `info->client_data` must point to a pointer to `huffman`. */
void forebay_huffman_install(struct huffman *huffman, j_decompress_ptr info);

/* Of the columns of MCUs only `first` to `last` will become pixels: the others are walked over. */
void forebay_huffman_crop(struct huffman *huffman, uint32_t first, uint32_t last);

/* Of the rows of MCUs none before this one will become pixels. */
void forebay_huffman_skip(struct huffman *huffman, const struct jpeg_decompress_struct *info, uint32_t rows);

/* For the picture that is installed next, which is `file`: the landmarks that are known of these very bytes, and room for
 * those that lie behind them and will be found. Both have to live until it is decoded. */
void forebay_huffman_lend(struct huffman *huffman, const uint8_t *file, struct landmarks known, struct landmarks noted);

/* How many were found. */
uint32_t forebay_huffman_noted(const struct huffman *huffman);

/* For tests: the code for processors of every kind. */
void forebay_huffman_use_plain(struct huffman *huffman);

/* How many MCUs it has decoded by itself, in all pictures. */
uint64_t forebay_huffman_decoded(const struct huffman *huffman);

#endif
