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
        *entry++ = single(size, bits) | last(size, bits) << 24;
    }
  return 1;
}

int forebay_huffman_ac(struct ac_table *table, const JHUFF_TBL *source)
{
  if (is_made(&table->codes, source))
    return 1;
  if (!make_codes(&table->codes, source))
    return 0;

  /* Which entries begin with which symbol. */
  struct {
    uint8_t size, bits, advance, all;
  } first[1 << AC_BITS];
  memset(first, 0, sizeof first);
  unsigned at = 0;
  const uint8_t *symbol = table->codes.symbols;
  for (unsigned size = 1; size <= AC_BITS; size++)
    for (unsigned left = source->bits[size]; left > 0; left--, symbol++)
      for (unsigned copies = 1u << (AC_BITS - size); copies > 0; copies--, at++) {
        first[at].size = (uint8_t)size;
        first[at].bits = *symbol & 15;
        first[at].advance = (uint8_t)ac_advance(*symbol);
        first[at].all = (uint8_t)(size + (*symbol & 15));
      }

  for (unsigned bits = 0; bits < 1 << AC_BITS; bits++) {
    unsigned size = first[bits].size;
    if (!size) {
      table->look[bits] = table->walk[bits] = 0;
      continue;
    }
    unsigned used = first[bits].all, advance = first[bits].advance;
    unsigned tail = last(size, first[bits].bits);
    uint64_t look = single(size, first[bits].bits) | (uint64_t)advance << 24;
    uint32_t walk = used | 64 | (advance < LOOK_END ? advance : WALK_END) << 8 | tail << 24;
    uint64_t second = (uint64_t)advance << 32 | (uint64_t)tail << 40;
    for (unsigned count = 2; used < AC_BITS && advance < LOOK_END; count++) {
      unsigned rest = (bits << used) & ((1 << AC_BITS) - 1);
      unsigned there = AC_BITS - used;
      /* A code may be recognised by bits that are not there only if it is longer than those that are. */
      if (!first[rest].size || first[rest].all > there)
        break;
      unsigned number_bits = first[rest].bits;
      if (first[rest].advance < LOOK_END && advance + first[rest].advance >= LOOK_END)
        break;
      tail = last(first[rest].size, number_bits);
      used += first[rest].all;
      if (count == 2) {
        unsigned amount = bits >> (AC_BITS - used) & ((1 << number_bits) - 1);
        int value = (int)amount;
        if (number_bits && amount < 1u << (number_bits - 1))
          value -= (1 << number_bits) - 1;
        second = (uint64_t)(advance + first[rest].advance) << 32 | (uint64_t)tail << 40 |
                 (uint64_t)(uint16_t)value << 48;
        look = (look & ~(uint64_t)255) | used;
      }
      advance += first[rest].advance;
      unsigned walked = advance < LOOK_END ? advance : advance - LOOK_END + WALK_END;
      walk = used | walked << 8 | tail << 24;
    }
    table->look[bits] = look | second;
    table->walk[bits] = walk;
  }
  return 1;
}
