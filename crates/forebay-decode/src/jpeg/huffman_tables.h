/* Look-up tables for the codes of one Huffman table. */

#ifndef FOREBAY_HUFFMAN_TABLES_H
#define FOREBAY_HUFFMAN_TABLES_H

#include <stdint.h>
#include <stdio.h>

#include <jpeglib.h>

/* Bits that one look-up sees. The tables of luma and chroma, 16 KB and 8 KB each, should stay in the first-level
 * cache. Measured: docs/decisions/0012. */
#define DC_BITS 9
#define AC_BITS 11

/* How far the end of a block advances, so that one comparison ends the loop: in `look`, and in `walk`. */
#define LOOK_END 64
#define WALK_END 128

/* The canonical codes: those of `n` bits are below `limit[n]` when written with 16, and above all shorter ones. */
struct codes {
  uint32_t limit[17];
  int32_t offset[17]; /* of a code's symbol, from the code */
  uint8_t counts[17];
  uint8_t symbols[256];
};

struct dc_table {
  struct codes codes;
  /* 0 for a code that is longer, or none. Else, from the lowest byte: bits of code and number; bits of the code; 63
   * less the bits of the number; in 5 bits those of what comes last, number or code; in 3 bits how many bits libjpeg
   * wants to have besides all these, to begin with the last code without filling. */
  uint32_t look[1 << DC_BITS];
};

struct ac_table {
  struct codes codes;
  /* As above for the first symbol, except that the lowest byte is all bits of one symbol or two. Then, from the
   * fourth byte: how far the first advances, how far all advance, bits of what comes last and bits besides, value of
   * the second. */
  uint64_t look[1 << AC_BITS];
  /* As many symbols as fit: all bits (and 64 for a single symbol), how far they advance, bits besides, bits of what
   * comes last. */
  uint32_t walk[1 << AC_BITS];
};

/* Makes the table, unless it is already that of these codes. 0 where they are none. */
int forebay_huffman_dc(struct dc_table *table, const JHUFF_TBL *source);
int forebay_huffman_ac(struct ac_table *table, const JHUFF_TBL *source);

/* `top` begins with a code of `length` bits. */
static inline int codes_symbol(const struct codes *codes, uint32_t top, unsigned length)
{
  return codes->symbols[(uint8_t)((int32_t)(top >> (16 - length)) + codes->offset[length])];
}

/* How far a symbol advances in its block: past the zeros to the coefficient after them, 16 zeros, or to the end. */
static inline int ac_advance(int symbol)
{
  if (symbol & 15)
    return (symbol >> 4) + 1;
  return symbol == 0xF0 ? 16 : LOOK_END;
}

#endif
