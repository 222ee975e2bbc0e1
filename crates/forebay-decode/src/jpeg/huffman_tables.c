/* Tables are kept from picture to picture: most files have the ones that the standard suggests. */

#include "huffman_tables.h"

#include <string.h>

static int is_made(const struct codes *codes, const JHUFF_TBL *source)
{
  return memcmp(codes->counts + 1, source->bits + 1, 16) == 0 &&
         memcmp(codes->symbols, source->huffval, sizeof codes->symbols) == 0;
}

/* 0 for codes that are none: libjpeg has refused them before, but the tables' bounds rest on it. */
static int make_codes(struct codes *codes, const JHUFF_TBL *source)
{
  memset(codes, 0, sizeof *codes);
  uint32_t code = 0;
  int32_t index = 0;
  for (unsigned length = 1; length <= 16; length++) {
    codes->offset[length] = index - (int32_t)code;
    code += source->bits[length];
    index += source->bits[length];
    if (index > 256 || code > 1u << length)
      return 0;
    codes->limit[length] = code << (16 - length);
    code <<= 1;
  }
  memcpy(codes->counts, source->bits, sizeof codes->counts);
  memcpy(codes->symbols, source->huffval, sizeof codes->symbols);
  return 1;
}

static uint32_t single(unsigned size, unsigned bits)
{
  return (size + bits) | size << 8 | (63 - bits) << 16;
}

static unsigned last(unsigned size, unsigned bits)
{
  return bits ? bits : size;
}

/* What is missing to 8 bits from where the last code begins. */
static unsigned besides(unsigned size, unsigned bits)
{
  return size + bits < 8 ? 8 - size - bits : 0;
}

int forebay_huffman_dc(struct dc_table *table, const JHUFF_TBL *source)
{
  if (is_made(&table->codes, source))
    return 1;
  if (!make_codes(&table->codes, source))
    return 0;
  memset(table->look, 0, sizeof table->look);
  uint32_t *entry = table->look;
  const uint8_t *symbol = table->codes.symbols;
  /* Codes in order are entries in order. */
  for (unsigned size = 1; size <= DC_BITS; size++)
    for (unsigned left = source->bits[size]; left > 0; left--, symbol++) {
      unsigned bits = *symbol & 15;
      for (unsigned copies = 1u << (DC_BITS - size); copies > 0; copies--)
        *entry++ = single(size, bits) | last(size, bits) << 24 | besides(size, bits) << 29;
    }
  return 1;
}

/* The symbol that bits begin with. */
struct first {
  uint8_t size, bits, all, advance; /* of the code, of the number, of both; all 0 if the code is longer */
};

/* What the last `n` bits of an entry hold, for each of their values `j`, at [1 << n | j]: the first symbol, as the second
 * one of an entry; and all symbols, to walk over. 0 where not even one is complete. */
struct rests {
  uint64_t look[1 << AC_BITS];
  uint32_t walk[1 << AC_BITS];
};

static uint64_t second_look(struct first symbol, unsigned amount)
{
  int value = (int)amount;
  if (symbol.bits && amount < 1u << (symbol.bits - 1))
    value -= (1 << symbol.bits) - 1;
  return symbol.all | (uint64_t)symbol.advance << 32 | (uint64_t)last(symbol.size, symbol.bits) << 40 |
         (uint64_t)besides(symbol.size, symbol.bits) << 45 | (uint64_t)(uint16_t)value << 48;
}

/* The symbol, and the walk over those after it. */
static uint32_t longer_walk(struct first symbol, uint32_t rest)
{
  unsigned advance = symbol.advance < LOOK_END ? symbol.advance : WALK_END;
  unsigned zeros = rest >> 8 & (WALK_END - 1);
  if (rest == 0 || advance == WALK_END || advance + zeros >= LOOK_END)
    return symbol.all | 64u | advance << 8 | besides(symbol.size, symbol.bits) << 16 |
           last(symbol.size, symbol.bits) << 24;
  return (symbol.all + (rest & 63)) | (advance + (rest >> 8 & 255)) << 8 | (rest & 0xFFFF0000u);
}

static void make_rests(struct rests *rests, const struct first *first, unsigned most)
{
  rests->look[1] = rests->walk[1] = 0;
  for (unsigned n = 1; n <= most; n++)
    for (unsigned j = 0; j < 1u << n; j++) {
      struct first symbol = first[j << (AC_BITS - n)];
      uint64_t look = 0;
      uint32_t walk = 0;
      /* A code that was recognised by bits which are not there is longer than those that are. */
      if (symbol.size && symbol.all <= n) {
        unsigned m = n - symbol.all;
        look = second_look(symbol, j >> m & ((1u << symbol.bits) - 1));
        walk = longer_walk(symbol, rests->walk[1u << m | (j & ((1u << m) - 1))]);
      }
      rests->look[1u << n | j] = look;
      rests->walk[1u << n | j] = walk;
    }
}

/* Which entries begin with which symbol; gives the most bits that are left after a symbol that does not end a block. */
static unsigned make_firsts(struct first *first, const struct codes *codes)
{
  unsigned at = 0, most = 0;
  const uint8_t *symbol = codes->symbols;
  for (unsigned size = 1; size <= AC_BITS; size++)
    for (unsigned left = codes->counts[size]; left > 0; left--, symbol++) {
      unsigned bits = *symbol & 15;
      struct first one = { (uint8_t)size, (uint8_t)bits, (uint8_t)(size + bits), (uint8_t)ac_advance(*symbol) };
      if (one.advance < LOOK_END && one.all + most < AC_BITS)
        most = AC_BITS - one.all;
      for (unsigned end = at + (1u << (AC_BITS - size)); at < end; at++)
        first[at] = one;
    }
  memset(first + at, 0, ((1u << AC_BITS) - at) * sizeof *first);
  return most;
}

int forebay_huffman_ac(struct ac_table *table, const JHUFF_TBL *source)
{
  if (is_made(&table->codes, source))
    return 1;
  if (!make_codes(&table->codes, source))
    return 0;
  struct first first[1 << AC_BITS];
  struct rests rests;
  make_rests(&rests, first, make_firsts(first, &table->codes));
  for (unsigned at = 0; at < 1u << AC_BITS;) {
    struct first symbol = first[at];
    uint64_t *look = table->look + at;
    uint32_t *walk = table->walk + at;
    if (!symbol.size) {
      size_t count = (1u << AC_BITS) - at;
      memset(look, 0, count * sizeof *look);
      memset(walk, 0, count * sizeof *walk);
      break;
    }
    uint64_t one = single(symbol.size, symbol.bits) | (uint64_t)symbol.advance << 24;
    uint64_t alone = (uint64_t)symbol.advance << 32 | (uint64_t)last(symbol.size, symbol.bits) << 40 |
                     (uint64_t)besides(symbol.size, symbol.bits) << 45;
    unsigned n = symbol.all < AC_BITS && symbol.advance < LOOK_END ? AC_BITS - symbol.all : 0;
    for (unsigned j = 0; j < 1u << n; j++) {
      uint64_t second = rests.look[1u << n | j];
      look[j] = second ? one + second + ((uint64_t)symbol.advance << 32) : one | alone;
      walk[j] = longer_walk(symbol, rests.walk[1u << n | j]);
    }
    /* The same whatever the number is. */
    size_t made = (size_t)1 << n, count = (size_t)1 << (AC_BITS - symbol.size);
    for (; made < count; made *= 2) {
      memcpy(look + made, look, made * sizeof *look);
      memcpy(walk + made, walk, made * sizeof *walk);
    }
    at += (unsigned)count;
  }
  return 1;
}
