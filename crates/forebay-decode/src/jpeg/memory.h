/* Memory for one picture, used again for the next: see memory.c. */

#ifndef FOREBAY_MEMORY_H
#define FOREBAY_MEMORY_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <jpeglib.h>

struct memory;

/* NULL where there is no memory left. */
struct memory *forebay_memory_new(void);

/* After the decompressor is destroyed. */
void forebay_memory_free(struct memory *memory);

/* Takes over from the library's memory manager: what is asked for from now on is free when the picture ends, tables
 * included. `info->client_data` must point to two pointers, the second to `memory`. */
void forebay_memory_install(struct memory *memory, j_decompress_ptr info);

/* For tests: how often it had to ask the system for memory. */
uint64_t forebay_memory_asked(const struct memory *memory);

#ifdef __SANITIZE_ADDRESS__
/* For tests: writes a byte behind what was asked for (`offset` 0 or more), or before it. */
void forebay_memory_overrun(j_decompress_ptr info, ptrdiff_t offset);
#endif

#endif
