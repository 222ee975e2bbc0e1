/* Codes of a JPEG's scan one by one, as coefficients or only to get past them, with a record of how many bits libjpeg would
 * have taken for them. All of it is inlined into huffman.c, once for each kind of processor. */

#ifndef FOREBAY_HUFFMAN_READER_H
#define FOREBAY_HUFFMAN_READER_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "huffman_tables.h"

#define INLINE static inline __attribute__((always_inline))
#define RARELY(condition) __builtin_expect(!!(condition), 0)

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

#endif
