/* The entropy decoder that takes libjpeg's place where it can: see huffman.c. */

#ifndef FOREBAY_HUFFMAN_H
#define FOREBAY_HUFFMAN_H

#include <stdint.h>
#include <stdio.h>

#include <jpeglib.h>

struct huffman;

/* Memory for tables; NULL where there is none left, or where this library's decoder is not known. */
struct huffman *forebay_huffman_new(void);
void forebay_huffman_free(struct huffman *huffman);

/* Takes over from the entropy decoder of the picture that jpeg_start_decompress() has begun, if that is one it knows.
 * `info->client_data` must point to a pointer to `huffman`. */
void forebay_huffman_install(struct huffman *huffman, j_decompress_ptr info);

/* Of the columns of MCUs only `first` to `last` will become pixels: the others are walked over. */
void forebay_huffman_crop(struct huffman *huffman, uint32_t first, uint32_t last);

/* For tests: the code for processors of every kind. */
void forebay_huffman_use_plain(struct huffman *huffman);

/* How many MCUs it has decoded by itself, in all pictures. */
uint64_t forebay_huffman_decoded(const struct huffman *huffman);

#endif
