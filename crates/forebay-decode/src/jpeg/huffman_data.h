/* A stretch of coded data without the zeros that follow every 0xFF in the file, and the way back to places in it. */

#ifndef FOREBAY_HUFFMAN_DATA_H
#define FOREBAY_HUFFMAN_DATA_H

#include <stddef.h>
#include <stdint.h>

/* More than an MCU can take (10 blocks of 248 bytes); few enough to stay in the first-level cache with the tables. */
#define DATA_BYTES 8192

struct data {
  const uint8_t *file;  /* where `bytes` begins in the file; NULL for no stretch */
  const uint8_t *here;  /* where `next` is */
  size_t next, size;    /* in `bytes` */
  size_t zeros;         /* how many were left out before `next` */
  int ends;             /* a marker follows, or nothing */
  /* Which bytes are followed by a zero in the file, and one entry beyond all. */
  uint16_t stuffed[DATA_BYTES + 1];
  uint8_t bytes[DATA_BYTES];
};

/* Goes to a place in the file, from which on there are `size` bytes, and makes a new stretch unless there are at least
 * `wanted` bytes left in the one there is. */
void forebay_huffman_data(struct data *data, const uint8_t *file, size_t size, size_t wanted);

/* The same, at once where it is there already. */
static inline void data_go(struct data *data, const uint8_t *file, size_t size, size_t wanted)
{
  if (!data->file || data->here != file || data->size - data->next < wanted)
    forebay_huffman_data(data, file, size, wanted);
}

/* Goes on to a place in `bytes`; gives the bytes of the file on the way. */
static inline size_t data_advance(struct data *data, size_t next)
{
  size_t zeros = data->zeros;
  while (data->stuffed[zeros] < next)
    zeros++;
  size_t passed = next - data->next + zeros - data->zeros;
  data->next = next;
  data->zeros = zeros;
  data->here += passed;
  return passed;
}

#endif
