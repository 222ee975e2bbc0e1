/* Huffman decoding of baseline JPEGs, about twice as fast as libjpeg-turbo's own where there are no restart markers.
 *
 * It stands in for one function, decode_mcu(), and works on the same state, MCU by MCU. An MCU is either decoded and
 * its state committed as the original would have left it, or nothing is committed and the original is called:
 * for markers, restarts, bad codes, the last bytes of the file, everything that is not a plain baseline scan. So every
 * verdict about damage is libjpeg's. That holds for where it stops reading, too: how many bytes wait in the bit buffer
 * after an MCU decides which bytes count as junk before the next marker. See docs/decisions/0012.
 *
 * What makes it fast: 64 bits are filled at once, from a copy without the zeros that follow each 0xFF; one look-up gives
 * a coefficient or two; blocks that nobody will see are walked over several codes at a time, or jumped over where a picture
 * is known from before: see docs/decisions/0025.
 */

#include "huffman.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "huffman_data.h"
#include "huffman_tables.h"

/* The layouts below are those of one version. Another one brings its own decoder back, until someone has looked. */
#if LIBJPEG_TURBO_VERSION_NUMBER == 3001000 && SIZE_MAX == UINT64_MAX && BITS_IN_JSAMPLE == 8 && defined(__GNUC__)

#define INLINE static inline __attribute__((always_inline))
#define RARELY(condition) __builtin_expect(!!(condition), 0)

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

/* Zigzag to natural order. Beyond the 64th all is the last coefficient, where libjpeg puts those of damaged blocks:
 * an index is at most 62 + 2 * LOOK_END. */
static const uint8_t ORDER[256] = {
  0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21, 28,
  35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47,
  55, 62, 63, [64 ... 255] = 63,
};
_Static_assert(62 + 2 * LOOK_END < 256, "every index is in the table");

struct reader {
  uint64_t buffer; /* the next bit is the highest; below the counted ones are bits to come, or zeros */
  int count;
  int theirs; /* how many bits libjpeg would have in its own, where that is kept */
  const uint8_t *next, *end;
};

INLINE uint64_t load(const uint8_t *bytes)
{
  uint64_t word;
  memcpy(&word, bytes, sizeof word);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  word = __builtin_bswap64(word);
#endif
  return word;
}

/* Byte by byte, as many as it takes to more than `least` bits, or as there are. What is rare takes and gives the reader
 * by value: with its address known elsewhere, it would live in memory. */
static __attribute__((noinline)) struct reader fill_bytes(struct reader r, int least)
{
  for (; r.count <= least && r.next < r.end; r.count += 8)
    r.buffer |= (uint64_t)*r.next++ << (56 - r.count);
  return r;
}

/* To 56 bits or more. Needs a count below 64. */
INLINE int fill(struct reader *r)
{
  if (RARELY(r->end - r->next < 8)) {
    *r = fill_bytes(*r, 55);
    return r->count > 55;
  }
  r->buffer |= load(r->next) >> r->count;
  r->next += (63 - r->count) >> 3;
  r->count |= 56;
  return 1;
}

INLINE void drop(struct reader *r, unsigned count)
{
  r->buffer <<= count;
  r->count -= (int)count;
}

/* The signed number of 63 - `rest` bits that follow `skip` ones: without a leading 1 they are the complement of its
 * amount. */
INLINE int number(uint64_t buffer, unsigned skip, unsigned rest)
{
  uint64_t bits = buffer << skip;
  uint64_t negative = (uint64_t)((int64_t)~bits >> 63);
  uint64_t amount = ((bits ^ negative) >> 1) >> rest;
  return (int)((amount ^ negative) - negative);
}

/* What jpeg_fill_bit_buffer() makes of its bit buffer. */
INLINE int filled(int theirs)
{
  return theirs + ((64 - theirs) & ~7);
}

/* What libjpeg's slow path makes of its bit buffer. It fills for a code when there are less than 8 bits, for a longer one
 * when there are less than 9 or, later, none, and for a number when it is not all there. */
static int after_symbol(int theirs, int size, int bits)
{
  if (theirs < 8)
    theirs = filled(theirs);
  if (size > 8 && theirs < 9)
    theirs = filled(theirs);
  theirs -= size;
  if (theirs < 0)
    theirs += 64;
  if (theirs < bits)
    theirs = filled(theirs);
  return theirs - bits;
}

/* The same for the one or two symbols of an entry of a table. */
static __attribute__((noinline)) int after_entry(int theirs, uint64_t entry)
{
  int size = (int)(entry >> 8) & 63, bits = 63 - ((int)(entry >> 16) & 63), rest = (int)(entry & 63) - size - bits;
  theirs = after_symbol(theirs, size, bits);
  if (rest == 0)
    return theirs;
  int last = (int)(entry >> 40) & 31;
  bits = last < rest ? last : 0;
  return after_symbol(theirs, rest - bits, bits);
}

/* Whether libjpeg would fill somewhere among the bits of an entry. `more` is what it wants beyond them: 8 before the last
 * code. */
INLINE int would_fill(const struct reader *r, uint64_t entry, unsigned more)
{
  return r->theirs < (int)(entry & 63) + (int)more;
}

/* One symbol and its number, as the rare ways need it. A symbol of -1 means that the original should decide. */
struct one {
  struct reader r;
  int symbol, value;
  unsigned last; /* bits after libjpeg last thought of filling */
};

/* Needs no table. Fills before and after. */
static __attribute__((noinline)) struct one symbol_alone(struct reader r, const struct codes *codes)
{
  struct one one = { .symbol = -1 };
  if (!fill(&r))
    return one;
  uint32_t top = (uint32_t)(r.buffer >> 48);
  unsigned size = 1;
  while (size <= 16 && top >= codes->limit[size])
    size++;
  if (size > 16)
    return one;
  int symbol = codes_symbol(codes, top, size);
  unsigned bits = symbol & 15;
  one.value = number(r.buffer, size, 63 - bits);
  one.last = bits ? bits : size;
  drop(&r, size + bits);
  r.theirs = after_symbol(r.theirs, (int)size, (int)bits);
  if (fill(&r))
    one.symbol = symbol;
  one.r = r;
  return one;
}

INLINE struct one symbol(struct reader *r, const struct codes *codes, unsigned *last)
{
  struct one one = symbol_alone(*r, codes);
  *r = one.r;
  *last = one.last;
  return one;
}

/* The difference of a DC coefficient: takes up to DC_BITS + 15 bits. */
INLINE int dc_difference(struct reader *r, const struct dc_table *table, int exact, int *difference, unsigned *last)
{
  uint32_t entry = table->look[r->buffer >> (64 - DC_BITS)];
  if (RARELY(!entry)) {
    struct one one = symbol(r, &table->codes, last);
    *difference = one.value;
    return one.symbol >= 0;
  }
  *difference = number(r->buffer, (entry >> 8) & 63, (entry >> 16) & 63);
  *last = (entry >> 24) & 31;
  if (exact)
    r->theirs = would_fill(r, entry, entry >> 29) ? after_entry(r->theirs, entry) : r->theirs - (int)(entry & 63);
  drop(r, entry & 63);
  return 1;
}

enum step { GO_ON, BLOCK_ENDS, LET_THE_ORIGINAL };

/* The next AC coefficient of a block, or two. Without a block they are read and forgotten. */
INLINE enum step ac_store(struct reader *r, const struct ac_table *table, int exact, int16_t *block, size_t *place,
                          unsigned *last)
{
  uint64_t entry = table->look[r->buffer >> (64 - AC_BITS)];
  if (RARELY(!entry)) {
    struct one one = symbol(r, &table->codes, last);
    if (one.symbol < 0)
      return LET_THE_ORIGINAL;
    *place += (size_t)ac_advance(one.symbol);
    if (block && one.symbol & 15)
      block[ORDER[*place]] = (int16_t)one.value;
    return *place >= 63 ? BLOCK_ENDS : GO_ON;
  }
  size_t first = *place + ((entry >> 24) & 255);
  size_t second = *place + ((entry >> 32) & 255);
  uint64_t before = r->buffer;
  int theirs = r->theirs;
  if (exact)
    r->theirs = would_fill(r, entry, (entry >> 45) & 7) ? after_entry(theirs, entry) : theirs - (int)(entry & 63);
  drop(r, entry & 63);
  if (block) {
    /* In this order, because without a second one both are the same place. At the end of the block a zero is stored
     * where a zero is. */
    block[ORDER[second]] = (int16_t)(entry >> 48);
    block[ORDER[first]] = (int16_t)number(before, (entry >> 8) & 63, (entry >> 16) & 63);
  }
  *place = second;
  if (second < 63)
    return GO_ON;
  *last = (unsigned)(entry >> 40) & 31;
  if (RARELY(first >= 63 && first != second)) {
    /* Full with the first: the second is part of the next block. What is needed for it is computed here and not,
     * as the compiler likes to, before: that would take registers from the loop. */
    __asm__("" : "+r"(entry));
    unsigned size = (unsigned)(entry >> 8) & 63, bits = 63 - ((unsigned)(entry >> 16) & 63);
    r->buffer = before << (size + bits);
    r->count += (int)(entry & 63) - (int)(size + bits);
    if (exact)
      r->theirs = after_symbol(theirs, (int)size, (int)bits);
    *last = bits ? bits : size;
  }
  return BLOCK_ENDS;
}

/* Walks over as many AC coefficients as the table has at once. */
INLINE enum step ac_walk(struct reader *r, const struct ac_table *table, int exact, size_t *place, unsigned *last)
{
  uint32_t entry = table->walk[r->buffer >> (64 - AC_BITS)];
  size_t after = *place + ((entry >> 8) & 255);
  if (RARELY(!entry))
    goto alone;
  /* Of those together it is not known where each one begins. */
  if (exact && would_fill(r, entry, (entry >> 16) & 255))
    return ac_store(r, table, exact, NULL, place, last);
  if (after < 63) {
    if (exact)
      r->theirs -= (int)(entry & 63);
    drop(r, entry & 63);
    *place = after;
    return GO_ON;
  }
  /* Either the end of a block that was not full, or a single symbol, or several that go beyond the block. */
  if (RARELY((after < WALK_END || after >= WALK_END + 63) && !(entry & 64)))
    goto alone;
  if (exact)
    r->theirs -= (int)(entry & 63);
  drop(r, entry & 63);
  *last = entry >> 24;
  return BLOCK_ENDS;
alone:;
  struct one one = symbol(r, &table->codes, last);
  if (one.symbol < 0)
    return LET_THE_ORIGINAL;
  *place += (size_t)ac_advance(one.symbol);
  return *place >= 63 ? BLOCK_ENDS : GO_ON;
}

INLINE enum step ac_step(struct reader *r, const struct ac_table *table, int exact, int16_t *block, size_t *place,
                         unsigned *last)
{
  return block ? ac_store(r, table, exact, block, place, last) : ac_walk(r, table, exact, place, last);
}

/* The AC coefficients of a block; 0 where the original should decide. */
INLINE int ac_block(struct reader *r, const struct ac_table *table, int exact, int16_t *block, unsigned *last)
{
  size_t place = 0;
  for (;;) {
    enum step step = ac_step(r, table, exact, block, &place, last);
    if (step != GO_ON)
      return step == BLOCK_ENDS;
    if (RARELY(!fill(r)))
      return 0;
    step = ac_step(r, table, exact, block, &place, last);
    if (step != GO_ON)
      return step == BLOCK_ENDS;
  }
}

/* What decode_mcu_fast() has in its bit buffer: before every code and every number with 16 bits or less in it, it takes
 * another 48. So how many it has taken follows from where it last did so. */
INLINE int theirs_after_fast(const struct reader *r, const struct reader *from, unsigned last)
{
  long used = from->count + 8 * (long)(r->next - from->next) - r->count;
  long missing = used - (long)last + 17 - from->count;
  long taken = from->count + (missing > 0 ? (missing + 47) / 48 * 48 : 0);
  return (int)(taken - used);
}

/* Leaves as many bits in the buffer as libjpeg has; it never has less than it began with. */
INLINE int settle(struct reader *r, int theirs)
{
  ptrdiff_t bytes = (theirs - r->count) / 8;
  if (bytes > r->end - r->next)
    return 0;
  for (; r->count < theirs; r->count += 8)
    r->buffer |= (uint64_t)*r->next++ << (56 - r->count);
  if (bytes < 0)
    r->next += bytes;
  r->count = theirs;
  return 1;
}

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

/* Jumps from an MCU that nobody will see as far towards the next one that somebody will as is known. */
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
  struct landmark last = { 0 };
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
