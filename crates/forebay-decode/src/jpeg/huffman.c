/* Huffman decoding of baseline JPEGs, about twice as fast as libjpeg-turbo's own where there are no restart markers.
 *
 * It stands in for one function, decode_mcu(), and works on the same state, MCU by MCU. An MCU is either decoded and
 * its state committed as the original would have left it, or nothing is committed and the original is called:
 * for markers, restarts, bad codes, the last bytes of the file, everything that is not a plain baseline scan. So every
 * verdict about damage is libjpeg's. That holds for where it stops reading, too: how many bytes wait in the bit buffer
 * after an MCU decides which bytes count as junk before the next marker. See docs/decisions/0012.
 *
 * What makes it fast: 64 bits are filled at once, from a copy without the zeros that follow each 0xFF; one look-up gives
 * a coefficient or two; blocks outside the wanted region are skipped several codes at a time, or jumped over with landmarks
 * of an earlier decode: see docs/decisions/0025.
 */

#include "huffman.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "huffman_data.h"
#include "reviewed.h"

#if IS_REVIEWED && SIZE_MAX == UINT64_MAX && BITS_IN_JSAMPLE == 8 && defined(__GNUC__)

#include "huffman_reader.h"

/* libjpeg-turbo's private state of a sequential Huffman decoder (jpegint.h, jdhuff.h, jdhuff.c), as far as it is used
 * or checked here. */
struct derived {
  long max_code[18];
  long value_offset[18];
  JHUFF_TBL *table;
};

struct entropy {
  void (*start_pass)(j_decompress_ptr);
  boolean (*decode_mcu)(j_decompress_ptr, JBLOCKROW *);
  void *decode_mcus, *process_restart; /* lossless */
  boolean insufficient_data;
  struct {
    size_t buffer; /* the lowest `count` bits of it are still to be decoded */
    int count;
  } bits;
  int last_dc[MAX_COMPS_IN_SCAN];
  unsigned int restarts_to_go;
  struct derived *dc_derived[NUM_HUFF_TBLS], *ac_derived[NUM_HUFF_TBLS];
  struct derived *dc_current[D_MAX_BLOCKS_IN_MCU], *ac_current[D_MAX_BLOCKS_IN_MCU];
  boolean dc_needed[D_MAX_BLOCKS_IN_MCU], ac_needed[D_MAX_BLOCKS_IN_MCU];
};

_Static_assert(sizeof(JBLOCK) == 64 * sizeof(int16_t), "a block is 64 coefficients of 16 bits");
_Static_assert(sizeof(((struct entropy *)0)->bits.buffer) == 8, "the bit buffer has 64 bits");

struct huffman {
  boolean (*original)(j_decompress_ptr, JBLOCKROW *);
  int (*const (*decode)[2])(struct huffman *, j_decompress_ptr, JBLOCKROW *);
  size_t wanted_bytes; /* as many as an MCU may take */
  uint32_t column, first_column, last_column;
  uint32_t mcu;       /* the number of the next one that is asked for */
  uint32_t landed_at; /* those before it were jumped over */
  uint32_t first_mcu; /* of those before it none is wanted */
  const uint8_t *file;
  size_t begin; /* where the coded data begins in it */
  struct landmarks known, noted;
  uint32_t ahead; /* the landmark of `known` to go to next */
  uint64_t decoded;
  int plain_only;
  const struct dc_table *dc[D_MAX_BLOCKS_IN_MCU];
  const struct ac_table *ac[D_MAX_BLOCKS_IN_MCU];
  uint8_t component[D_MAX_BLOCKS_IN_MCU];
  struct dc_table dc_tables[NUM_HUFF_TBLS];
  struct ac_table ac_tables[NUM_HUFF_TBLS];
  struct data data;
};

/* Landmarks are as far apart, except that a row of MCUs may begin with one sooner. */
#define FAR_BYTES 3072
#define NEAR_BYTES 512

/* Bytes that libjpeg wants in its buffer for each block before it takes its fast path. */
#define BLOCK_BYTES 512
/* What a block takes at most: 64 codes of 16 bits with 15 more each. */
#define MAX_BLOCK_BYTES 248
_Static_assert(MAX_BLOCK_BYTES * D_MAX_BLOCKS_IN_MCU + 16 < DATA_BYTES / 2, "a stretch of data holds several MCUs");

/* One MCU, or 0 and nothing committed. */
INLINE int decode(struct huffman *h, j_decompress_ptr info, JBLOCKROW *blocks, int exact, int store)
{
  struct entropy *entropy = (struct entropy *)info->entropy;
  struct jpeg_source_mgr *source = info->src;
  struct data *data = &h->data;
  data_go(data, source->next_input_byte, source->bytes_in_buffer, h->wanted_bytes);
  int count = entropy->bits.count;
  /* Between MCUs libjpeg has less than 64: it has taken something since it filled. */
  if (RARELY(count < 0 || count > 63))
    return 0;
  struct reader r = {
    .buffer = count > 0 ? entropy->bits.buffer << (64 - count) : 0,
    .count = count,
    .theirs = count,
    .next = data->bytes + data->next,
    .end = data->bytes + data->size,
  };
  const struct reader from = r;
  int dc[MAX_COMPS_IN_SCAN];
  memcpy(dc, entropy->last_dc, sizeof dc);
  unsigned last = 0;
  for (int b = 0; b < info->blocks_in_MCU; b++) {
    int difference;
    /* 56 bits: for a DC coefficient and one step, then for two steps each. */
    if (r.count < 56 && RARELY(!fill(&r)))
      return 0;
    if (RARELY(!dc_difference(&r, h->dc[b], exact, &difference, &last)))
      return 0;
    int *sum = &dc[h->component[b]];
    *sum = (int)((unsigned)*sum + (unsigned)difference);
    int16_t *block = store ? *blocks[b] : NULL;
    if (store)
      block[0] = (int16_t)*sum;
    if (RARELY(!ac_block(&r, h->ac[b], exact, block, &last)))
      return 0;
  }
  if (RARELY(!settle(&r, exact ? r.theirs : theirs_after_fast(&r, &from, last))))
    return 0;
  size_t passed = data_advance(data, (size_t)(r.next - data->bytes));
  source->bytes_in_buffer -= passed;
  source->next_input_byte += passed;
  entropy->bits.buffer = r.count > 0 ? r.buffer >> (64 - r.count) : 0;
  entropy->bits.count = r.count;
  memcpy(entropy->last_dc, dc, sizeof dc);
  return 1;
}
_Static_assert(DC_BITS + 15 + AC_BITS + 15 <= 56 && 2 * (AC_BITS + 15) <= 56, "56 bits are enough for two look-ups");

/* How an MCU is decoded: filling at will or exactly as libjpeg's slow path, for pixels or to get past it. */
typedef int (*decode_function)(struct huffman *, j_decompress_ptr, JBLOCKROW *);
#define DECODE_FUNCTIONS(name, attributes)                                                                        \
  attributes static int name##_store(struct huffman *h, j_decompress_ptr info, JBLOCKROW *blocks)                 \
  {                                                                                                               \
    return decode(h, info, blocks, 0, 1);                                                                         \
  }                                                                                                               \
  attributes static int name##_walk(struct huffman *h, j_decompress_ptr info, JBLOCKROW *blocks)                  \
  {                                                                                                               \
    return decode(h, info, blocks, 0, 0);                                                                         \
  }                                                                                                               \
  attributes static int name##_store_exactly(struct huffman *h, j_decompress_ptr info, JBLOCKROW *blocks)         \
  {                                                                                                               \
    return decode(h, info, blocks, 1, 1);                                                                         \
  }                                                                                                               \
  attributes static int name##_walk_exactly(struct huffman *h, j_decompress_ptr info, JBLOCKROW *blocks)          \
  {                                                                                                               \
    return decode(h, info, blocks, 1, 0);                                                                         \
  }                                                                                                               \
  static const decode_function name[2][2] = { { name##_walk, name##_store },                                      \
                                              { name##_walk_exactly, name##_store_exactly } };

DECODE_FUNCTIONS(plain, )
#ifdef __x86_64__
/* Shifts by a variable that need no fixed register and set no flags. */
DECODE_FUNCTIONS(bmi2, __attribute__((target("bmi,bmi2"))))
#endif

/* A landmark's bits are in at most 8 bytes before it, each of which may have a stuffed zero; one more is looked at. */
#define BITS_BYTES (8 * 2 + 1)

/* Whether all landmarks lie inside of the picture and of its data. Then a wrong one makes wrong pixels, and nothing worse: their
 * order, and that no more than 63 bits are taken, is known. */
static int fit(const struct landmarks *known, size_t begin, const struct jpeg_decompress_struct *info)
{
  if (known->count == 0)
    return 1;
  const struct landmark *first = &known->all[0], *last = &known->all[known->count - 1];
  return first->offset >= begin + BITS_BYTES && last->offset <= begin + info->src->bytes_in_buffer &&
         last->mcu <= (uint64_t)info->MCUs_per_row * info->MCU_rows_in_scan;
}

/* Goes to a landmark: all that libjpeg knew there of where it was. The bits that had been taken and not used are the last
 * ones before it. */
static void go_to(struct huffman *h, j_decompress_ptr info, const struct landmark *landmark)
{
  struct entropy *entropy = (struct entropy *)info->entropy;
  const uint8_t *next = h->file + landmark->offset;
  info->src->bytes_in_buffer -= (size_t)(next - info->src->next_input_byte);
  info->src->next_input_byte = next;
  entropy->bits.buffer = 0;
  entropy->bits.count = landmark->bits;
  for (int taken = 0; taken < landmark->bits; taken += 8) {
    next--;
    if (next[0] == 0 && next[-1] == 0xFF)
      next--;
    entropy->bits.buffer |= (size_t)*next << taken;
  }
  for (int c = 0; c < info->comps_in_scan; c++)
    entropy->last_dc[c] = landmark->dc[c];
}

/* Jumps from an MCU outside the wanted region as near to the next wanted one as the landmarks allow. */
INLINE int jump(struct huffman *h, j_decompress_ptr info, uint32_t mcu, uint32_t column, int is_row_skipped)
{
  const struct landmark *known = h->known.all;
  uint32_t target = mcu - column + h->first_column;
  if (is_row_skipped && mcu < h->first_mcu)
    target = h->first_mcu;
  else if (is_row_skipped || column > h->last_column)
    target += info->MCUs_per_row;
  while (h->ahead + 1 < h->known.count && known[h->ahead + 1].mcu <= target)
    h->ahead++;
  if (known[h->ahead].mcu <= mcu || known[h->ahead].mcu > target)
    return 0;
  h->landed_at = known[h->ahead].mcu;
  go_to(h, info, &known[h->ahead]);
  return 1;
}

/* Takes note of the place before an MCU, at the beginning of a row or where much has been decoded since the last one. */
static void note(struct huffman *h, j_decompress_ptr info, uint32_t mcu)
{
  const struct entropy *entropy = (const struct entropy *)info->entropy;
  struct landmark last = { .offset = (uint32_t)h->begin };
  if (h->noted.count > 0)
    last = h->noted.all[h->noted.count - 1];
  else if (h->known.count > 0)
    last = h->known.all[h->known.count - 1];
  size_t offset = (size_t)(info->src->next_input_byte - h->file);
  if (mcu <= last.mcu || offset > UINT32_MAX || offset - last.offset < (h->column ? FAR_BYTES : NEAR_BYTES))
    return;
  struct landmark *landmark = &h->noted.all[h->noted.count];
  *landmark = (struct landmark){ .mcu = mcu, .offset = (uint32_t)offset, .bits = (uint8_t)entropy->bits.count };
  for (int c = 0; c < info->comps_in_scan; c++) {
    landmark->dc[c] = (int16_t)entropy->last_dc[c];
    if (landmark->dc[c] != entropy->last_dc[c])
      return;
  }
  h->noted.count++;
}

static boolean decode_mcu(j_decompress_ptr info, JBLOCKROW *blocks)
{
  struct huffman *h = *(struct huffman **)info->client_data;
  struct entropy *entropy = (struct entropy *)info->entropy;
  uint32_t column = h->column, mcu = h->mcu++;
  h->column = column + 1 < info->MCUs_per_row ? column + 1 : 0;
  if (mcu < h->landed_at)
    return TRUE;
  int is_row_skipped = !blocks;
  if (column < h->first_column || column > h->last_column)
    blocks = NULL;
  int restarts = info->restart_interval != 0;
  if (RARELY(entropy->insufficient_data || info->unread_marker != 0 || (restarts && entropy->restarts_to_go == 0)))
    return h->original(info, blocks);
  if (!blocks && h->known.count > 0 && jump(h, info, mcu, column, is_row_skipped))
    return TRUE;
  int exact = restarts || info->src->bytes_in_buffer < (size_t)BLOCK_BYTES * (size_t)info->blocks_in_MCU;
  if (RARELY(!h->decode[exact][blocks != NULL](h, info, blocks)))
    return h->original(info, blocks);
  if (restarts)
    entropy->restarts_to_go--;
  h->decoded++;
  if (h->noted.count < h->noted.room)
    note(h, info, mcu + 1);
  return TRUE;
}

struct huffman *forebay_huffman_new(void)
{
  return calloc(1, sizeof(struct huffman));
}

void forebay_huffman_free(struct huffman *huffman)
{
  free(huffman);
}

/* Whether the state looks as it must just after a baseline scan has begun. A library of another layout would have to
 * show these very pointers at these very places. */
static int is_known(const struct jpeg_decompress_struct *info)
{
  const struct entropy *entropy = (const struct entropy *)info->entropy;
  if (entropy->insufficient_data || entropy->bits.buffer != 0 || entropy->bits.count != 0 ||
      entropy->restarts_to_go != info->restart_interval)
    return 0;
  for (int b = 0; b < info->blocks_in_MCU; b++) {
    int c = info->MCU_membership[b];
    const jpeg_component_info *component = info->cur_comp_info[c];
    int dc = component->dc_tbl_no, ac = component->ac_tbl_no;
    if (entropy->last_dc[c] != 0 || entropy->dc_current[b] != entropy->dc_derived[dc] ||
        entropy->ac_current[b] != entropy->ac_derived[ac] ||
        entropy->dc_current[b]->table != info->dc_huff_tbl_ptrs[dc] ||
        entropy->ac_current[b]->table != info->ac_huff_tbl_ptrs[ac] || entropy->dc_needed[b] != TRUE ||
        entropy->ac_needed[b] != TRUE)
      return 0;
  }
  return 1;
}

void forebay_huffman_install(struct huffman *h, j_decompress_ptr info)
{
  /* Exactly these are decoded by jdhuff.c, in one pass. */
  int baseline = !info->progressive_mode && !info->arith_code && info->data_precision == 8 && info->Ss == 0 &&
                 info->Se == DCTSIZE2 - 1 && info->Ah == 0 && info->Al == 0 && !jpeg_has_multiple_scans(info);
  if (!h || !baseline || !is_known(info))
    return;
  for (int b = 0; b < info->blocks_in_MCU; b++) {
    int c = info->MCU_membership[b];
    int dc = info->cur_comp_info[c]->dc_tbl_no, ac = info->cur_comp_info[c]->ac_tbl_no;
    if (!forebay_huffman_dc(&h->dc_tables[dc], info->dc_huff_tbl_ptrs[dc]) ||
        !forebay_huffman_ac(&h->ac_tables[ac], info->ac_huff_tbl_ptrs[ac]))
      return;
    h->dc[b] = &h->dc_tables[dc];
    h->ac[b] = &h->ac_tables[ac];
    h->component[b] = (uint8_t)c;
  }
  if (info->restart_interval != 0 || info->comps_in_scan > MAX_LANDMARK_COMPONENTS)
    h->known.count = h->noted.room = 0;
  h->begin = (size_t)(info->src->next_input_byte - h->file);
  if (h->begin > UINT32_MAX)
    h->noted.room = 0;
  if (!fit(&h->known, h->begin, info))
    h->known.count = 0;
  h->mcu = h->landed_at = h->first_mcu = h->ahead = 0;
  h->data.file = NULL;
  h->wanted_bytes = (size_t)MAX_BLOCK_BYTES * (size_t)info->blocks_in_MCU + 16;
  h->column = 0;
  h->first_column = 0;
  h->last_column = UINT32_MAX;
  struct entropy *entropy = (struct entropy *)info->entropy;
  h->original = entropy->decode_mcu;
  entropy->decode_mcu = decode_mcu;
  h->decode = plain;
#ifdef __x86_64__
  if (!h->plain_only && __builtin_cpu_supports("bmi2"))
    h->decode = bmi2;
#endif
}

void forebay_huffman_crop(struct huffman *h, uint32_t first, uint32_t last)
{
  if (h) {
    h->first_column = first;
    h->last_column = last;
  }
}

void forebay_huffman_skip(struct huffman *h, const struct jpeg_decompress_struct *info, uint32_t rows)
{
  if (h)
    h->first_mcu = rows * info->MCUs_per_row;
}

void forebay_huffman_lend(struct huffman *h, const uint8_t *file, struct landmarks known, struct landmarks noted)
{
  if (h) {
    h->file = file;
    h->known = known;
    h->noted = noted;
  }
}

uint32_t forebay_huffman_noted(const struct huffman *h)
{
  return h ? h->noted.count : 0;
}

void forebay_huffman_use_plain(struct huffman *h)
{
  if (h)
    h->plain_only = 1;
}

uint64_t forebay_huffman_decoded(const struct huffman *h)
{
  return h ? h->decoded : 0;
}

#else

struct huffman *forebay_huffman_new(void)
{
  return NULL;
}

void forebay_huffman_free(struct huffman *huffman)
{
  (void)huffman;
}

void forebay_huffman_install(struct huffman *huffman, j_decompress_ptr info)
{
  (void)huffman;
  (void)info;
}

void forebay_huffman_crop(struct huffman *huffman, uint32_t first, uint32_t last)
{
  (void)huffman;
  (void)first;
  (void)last;
}

void forebay_huffman_skip(struct huffman *huffman, const struct jpeg_decompress_struct *info, uint32_t rows)
{
  (void)huffman;
  (void)info;
  (void)rows;
}

void forebay_huffman_lend(struct huffman *huffman, const uint8_t *file, struct landmarks known, struct landmarks noted)
{
  (void)huffman;
  (void)file;
  (void)known;
  (void)noted;
}

uint32_t forebay_huffman_noted(const struct huffman *huffman)
{
  (void)huffman;
  return 0;
}

void forebay_huffman_use_plain(struct huffman *huffman)
{
  (void)huffman;
}

uint64_t forebay_huffman_decoded(const struct huffman *huffman)
{
  (void)huffman;
  return 0;
}

#endif
