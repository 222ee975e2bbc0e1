/* libjpeg asks for memory ten times a picture and frees all of it at the picture's end. Here the end only forgets, and
 * the next picture finds one block that is large enough: no call to the system's allocator is made from picture to
 * picture.
 *
 * Tables are part of their picture, though libjpeg means them to live longer: no other picture may find them.
 *
 * What is made with the decompressor stays with the library, and so do the arrays of coefficients that a progressive
 * picture needs: those may be large, and are few.
 */

#include "memory.h"

#include <stddef.h>
#include <stdlib.h>

#include <jerror.h>

/* As the library aligns for its vector instructions, which also read up to a row's end in steps of two of these. */
#define ALIGNMENT ((size_t)32)
/* Enough for a header: threads that read look at nothing else. Pictures have it grow, to 64 KB for 500 columns. */
#define FIRST_BYTES ((size_t)4 << 10)
/* Under AddressSanitizer memory that was not allocated, or is free again, is poisoned: an overrun inside of a block
 * would go unnoticed otherwise, because the system's allocator only knows the block. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define GAP_BYTES ALIGNMENT
#else
#define ASAN_POISON_MEMORY_REGION(start, size) ((void)(start), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(start, size) ((void)(start), (void)(size))
#define GAP_BYTES ((size_t)0)
#endif
/* What a thread keeps is not charged to the memory budget: enough for some 8,000 columns. */
#define MAX_KEPT_BYTES ((size_t)1 << 20)

struct block {
  struct block *older;
  size_t size, used; /* of the bytes behind this header */
};

#define HEADER_BYTES ((sizeof(struct block) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT)

struct memory {
  struct block *newest;
  size_t total;  /* in all blocks */
  size_t wanted; /* by the next one */
  uint64_t asked;
  /* The library's own. */
  JSAMPARRAY (*alloc_sarray)(j_common_ptr, int, JDIMENSION, JDIMENSION);
  void (*free_pool)(j_common_ptr, int);
};

static struct memory *memory_of(j_common_ptr info)
{
  return ((struct memory **)info->client_data)[1];
}

static char *bytes_of(struct block *block)
{
  return (char *)block + HEADER_BYTES;
}

static void free_blocks(struct memory *memory)
{
  while (memory->newest) {
    struct block *block = memory->newest;
    memory->newest = block->older;
    ASAN_UNPOISON_MEMORY_REGION(bytes_of(block), block->size);
    free(block);
  }
  memory->total = 0;
}

static void forget(struct memory *memory)
{
  if (!memory->newest)
    return;
  /* Several blocks become one. */
  if (!memory->newest->older && memory->total <= MAX_KEPT_BYTES) {
    ASAN_POISON_MEMORY_REGION(bytes_of(memory->newest), memory->newest->size);
    memory->newest->used = 0;
    return;
  }
  memory->wanted = memory->total <= MAX_KEPT_BYTES ? memory->total : 0;
  free_blocks(memory);
}

static void *take(j_common_ptr info, size_t size)
{
  struct memory *memory = memory_of(info);
  struct block *block = memory->newest;
  if (size > (size_t)info->mem->max_alloc_chunk)
    ERREXIT1(info, JERR_OUT_OF_MEMORY, 20);
  size_t asked = size;
  size = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT + GAP_BYTES;
  if (!block || block->size - block->used < size) {
    /* At least as much as there is already, so that there are few. */
    size_t least = memory->total > memory->wanted ? memory->total : memory->wanted;
    least = least > FIRST_BYTES ? least : FIRST_BYTES;
    size_t bytes = (size > least ? size : least + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    block = aligned_alloc(ALIGNMENT, HEADER_BYTES + bytes);
    if (!block)
      ERREXIT1(info, JERR_OUT_OF_MEMORY, 21);
    memory->asked++;
    block->older = memory->newest;
    block->size = bytes;
    block->used = 0;
    memory->newest = block;
    memory->total += bytes;
    ASAN_POISON_MEMORY_REGION(bytes_of(block), bytes);
  }
  void *start = bytes_of(block) + block->used;
  ASAN_UNPOISON_MEMORY_REGION(start, asked);
  block->used += size;
  return start;
}

static void *alloc(j_common_ptr info, int pool, size_t size)
{
  (void)pool;
  return take(info, size);
}

static JSAMPARRAY alloc_sarray(j_common_ptr info, int pool, JDIMENSION width, JDIMENSION count)
{
  /* More than 8 bits are refused, but not by the library. */
  if (((j_decompress_ptr)info)->data_precision != 8 || width > JPEG_MAX_DIMENSION * 8)
    return memory_of(info)->alloc_sarray(info, pool, width, count);
  size_t stride = ((size_t)width + 2 * ALIGNMENT - 1) / (2 * ALIGNMENT) * (2 * ALIGNMENT);
  JSAMPARRAY rows = take(info, count * sizeof(JSAMPROW));
  JSAMPROW samples = take(info, count * stride);
  for (JDIMENSION row = 0; row < count; row++)
    rows[row] = samples + row * stride;
  return rows;
}

static void free_pool(j_common_ptr info, int pool)
{
  memory_of(info)->free_pool(info, pool);
  if (pool == JPOOL_IMAGE)
    forget(memory_of(info));
}

struct memory *forebay_memory_new(void)
{
  return calloc(1, sizeof(struct memory));
}

void forebay_memory_free(struct memory *memory)
{
  free_blocks(memory);
  free(memory);
}

void forebay_memory_install(struct memory *memory, j_decompress_ptr info)
{
  struct jpeg_memory_mgr *methods = info->mem;
  memory->alloc_sarray = methods->alloc_sarray;
  memory->free_pool = methods->free_pool;
  methods->alloc_small = alloc;
  methods->alloc_large = alloc;
  methods->alloc_sarray = alloc_sarray;
  methods->free_pool = free_pool;
}

uint64_t forebay_memory_asked(const struct memory *memory)
{
  return memory->asked;
}

#ifdef __SANITIZE_ADDRESS__
void forebay_memory_overrun(j_decompress_ptr info, ptrdiff_t offset)
{
  enum { SIZE = 40 };
  volatile char *first = take((j_common_ptr)info, SIZE), *second = take((j_common_ptr)info, SIZE);
  first[0] = second[0] = 0;
  (offset < 0 ? second : first + SIZE)[offset] = 1;
}
#endif
