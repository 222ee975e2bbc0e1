#include "huffman_data.h"

#include <string.h>

/* Copies up to the first marker, or what there is room for. */
static void begin(struct data *data, const uint8_t *file, size_t size)
{
  const uint8_t *from = file, *end = file + size;
  size_t count = 0, zeros = 0;
  data->ends = 0;
  while (count < DATA_BYTES) {
    size_t there = (size_t)(end - from), room = DATA_BYTES - count;
    if (there == 0) {
      data->ends = 1;
      break;
    }
    size_t length = there < room ? there : room;
    const uint8_t *ff = memchr(from, 0xFF, length);
    if (ff)
      length = (size_t)(ff - from);
    memcpy(data->bytes + count, from, length);
    count += length;
    from += length;
    if (!ff)
      continue;
    if (end - from < 2 || from[1] != 0) {
      data->ends = 1;
      break;
    }
    data->stuffed[zeros++] = (uint16_t)count;
    data->bytes[count++] = 0xFF;
    from += 2;
  }
  data->stuffed[zeros] = UINT16_MAX;
  data->file = data->here = file;
  data->next = data->zeros = 0;
  data->size = count;
}
_Static_assert(2 * DATA_BYTES < UINT16_MAX, "no place is the mark of the end");

/* Goes on to a place in the file: 0 if it is not in this stretch, or not at the beginning of a byte of data. */
static int find(struct data *data, const uint8_t *file)
{
  if (!data->file || file < data->file + data->next + data->zeros)
    return 0;
  size_t offset = (size_t)(file - data->file), zeros = data->zeros;
  /* No stretch is longer. Beyond, the mark of the end would not end the loop. */
  if (offset > 2 * DATA_BYTES)
    return 0;
  while (data->stuffed[zeros] + zeros + 2 <= offset)
    zeros++;
  size_t next = offset - zeros;
  if (next > data->size || next > data->stuffed[zeros])
    return 0;
  data->next = next;
  data->zeros = zeros;
  data->here = file;
  return 1;
}

void forebay_huffman_data(struct data *data, const uint8_t *file, size_t size, size_t wanted)
{
  if (!find(data, file) || (data->size - data->next < wanted && !data->ends))
    begin(data, file, size);
}
