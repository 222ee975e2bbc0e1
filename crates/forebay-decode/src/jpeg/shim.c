/* The libjpeg API of libjpeg-turbo, behind functions that return codes.
 *
 * libjpeg reports errors by a callback that must not return, so the callback jumps. Every jump begins and ends in
 * this file: no Rust frame is ever skipped. A warning that means damage is treated as an error at once, so that no
 * time is spent on pixels that will be discarded. The TurboJPEG API is not used because its handle stays unusable after
 * a bad header; here a failure ends the library's instance.
 *
 * No picture depends on the one before. libjpeg keeps tables from file to file, for streams that leave them out; a
 * damaged file would then be decoded with the tables of whatever the thread decoded last. See docs/decisions/0027.
 */

#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>

#include "huffman.h"
#include "memory.h"
#include "reviewed.h"

/* Results; src/jpeg.rs has the same list. */
enum {
  DONE = 0,
  DAMAGED = 1,
  TRUNCATED = 2,
  UNSUPPORTED = 3,
  NO_MEMORY = 4,
  NOT_PLANAR = 5,
};

/* Real progressive files have about 10 scans. Each costs a pass over all blocks however short it is, so a file of a
 * few kilobytes could keep a core busy for minutes. libjpeg-turbo's own fuzzers stop at 500. */
#define MAX_SCANS 500

/* What one picture is, and what a failure left behind. */
struct shape {
  uint32_t width, height;
  uint32_t components;
  uint32_t multi_scan;        /* all scans are read before the first row comes out */
  uint32_t has_landmarks;     /* decoding may begin inside of its data */
  uint64_t coefficient_bytes; /* held for that */
  uint64_t data_offset;       /* where the entropy-coded data of the first scan begins */
  uint64_t least_blocks;      /* of a component that a Huffman-coded scan has; arithmetic coding needs no bits for them */
};

#define MAX_PLANES 3
#define MAX_MCU_ROWS (MAX_SAMP_FACTOR * DCTSIZE)

/* Samples of one component, as many as whole MCUs have. */
struct plane {
  uint32_t x, y;             /* where in the component's own samples they begin */
  uint32_t stride;           /* samples in a row */
  uint32_t mcu_rows;         /* rows that a row of MCUs gives */
  uint32_t pitch_x, pitch_y; /* pixels that a sample stands for */
};

struct planes {
  uint32_t count;
  uint32_t mcu_rows; /* rows of MCUs */
  struct plane plane[MAX_PLANES];
};

struct trouble {
  uint32_t row, scan;
  const char *message;
};

struct decompressor {
  struct huffman *huffman; /* first: info.client_data points here */
  struct memory *memory;   /* second: and it is looked for there */
  struct jpeg_decompress_struct info;
  struct jpeg_decompress_struct fresh; /* as it was before the first picture */
  struct jpeg_error_mgr error;
  struct jpeg_source_mgr source;
  struct jpeg_progress_mgr progress;
  jmp_buf out;
  int result;
  int in_scan; /* the first scan has begun */
  uint32_t max_extraneous_bytes;
  uint32_t row, scan;
  uint32_t row_pixels; /* rows of the picture that one of the result stands for */
  char message[JMSG_LENGTH_MAX];
};

static void leave(struct decompressor *d, int result)
{
  d->result = result;
  longjmp(d->out, 1);
}

static void on_error(j_common_ptr info)
{
  struct decompressor *d = info->client_data;
  (*info->err->format_message)(info, d->message);
  switch (info->err->msg_code) {
  case JERR_OUT_OF_MEMORY:
    leave(d, NO_MEMORY);
    break;
  case JERR_ARITH_NOTIMPL:
  case JERR_BAD_PRECISION:
  case JERR_CCIR601_NOTIMPL:
  case JERR_CONVERSION_NOTIMPL:
  case JERR_FRACT_SAMPLE_NOTIMPL:
  case JERR_NOTIMPL:
  case JERR_NOT_COMPILED:
  case JERR_SOF_UNSUPPORTED:
    leave(d, UNSUPPORTED);
    break;
  default:
    leave(d, DAMAGED);
  }
}

/* Level -1 is a warning, others are traces. */
static void on_message(j_common_ptr info, int level)
{
  struct decompressor *d = info->client_data;
  if (level >= 0)
    return;
  switch (info->err->msg_code) {
  /* Says nothing about pixels: Pillow and every viewer ignore these. */
  case JWRN_ADOBE_XFORM:
  case JWRN_BOGUS_ICC:
  case JWRN_JFIF_MAJOR:
  case JWRN_NOT_SEQUENTIAL:
    return;
  case JWRN_EXTRANEOUS_DATA:
    /* Junk between header segments costs nothing (a lost table is an error of its own). Between coded data and the
     * next marker it means that decoding lost its place, unless it is a few bytes of padding. */
    if (!d->in_scan || (uint32_t)info->err->msg_parm.i[0] <= d->max_extraneous_bytes)
      return;
    break;
  default:
    break;
  }
  (*info->err->format_message)(info, d->message);
  leave(d, DAMAGED);
}

static void on_output(j_common_ptr info)
{
  (void)info;
}

static void on_progress(j_common_ptr info)
{
  struct decompressor *d = info->client_data;
  if (info->is_decompressor && d->info.input_scan_number > MAX_SCANS) {
    snprintf(d->message, sizeof d->message, "more than %d scans", MAX_SCANS);
    leave(d, DAMAGED);
  }
}

static void source_begin(j_decompress_ptr info)
{
  (void)info;
}

static boolean source_fill(j_decompress_ptr info)
{
  struct decompressor *d = info->client_data;
  snprintf(d->message, sizeof d->message, "Premature end of JPEG file");
  leave(d, TRUNCATED);
  return FALSE;
}

static void source_skip(j_decompress_ptr info, long count)
{
  if (count <= 0)
    return;
  if ((size_t)count > info->src->bytes_in_buffer)
    source_fill(info);
  info->src->next_input_byte += count;
  info->src->bytes_in_buffer -= (size_t)count;
}

static void source_end(j_decompress_ptr info)
{
  (void)info;
}

/* Makes the library's instance, which has no picture and no tables. Jumps when there is no memory for it. */
static void create(struct decompressor *d)
{
  jpeg_create_decompress(&d->info);
  forebay_memory_install(d->memory, &d->info);
  d->info.src = &d->source;
  d->info.progress = &d->progress;
  d->fresh = d->info;
}

/* Notes where it failed, and ends the instance: a jump may have left the library's private state anyhow. */
static int failed(struct decompressor *d)
{
  d->row = d->info.output_scanline * d->row_pixels;
  d->scan = (uint32_t)d->info.input_scan_number;
  if (d->info.mem) {
    jpeg_abort_decompress(&d->info);
    jpeg_destroy_decompress(&d->info);
  }
  return d->result;
}

/* Forgets the picture before with everything that came from it: tables, restart interval, what its markers said. The
 * memory that its tables were in is free already. */
static void forget(struct decompressor *d)
{
  if (d->info.mem) {
    jpeg_abort_decompress(&d->info);
    d->info = d->fresh;
  } else {
    create(d);
  }
}

static void read_header(struct decompressor *d, const uint8_t *data, size_t size)
{
  forget(d);
  d->message[0] = 0;
  d->row = d->scan = 0;
  d->row_pixels = 1;
  d->in_scan = 0;
  d->source.next_input_byte = data;
  d->source.bytes_in_buffer = size;
  jpeg_read_header(&d->info, TRUE);
  d->in_scan = 1;
}

struct decompressor *forebay_jpeg_new(uint32_t max_extraneous_bytes)
{
  struct decompressor *d = calloc(1, sizeof *d);
  if (!d)
    return NULL;
  d->info.err = jpeg_std_error(&d->error);
  d->error.error_exit = on_error;
  d->error.emit_message = on_message;
  d->error.output_message = on_output;
  d->info.client_data = d;
  d->memory = forebay_memory_new();
  if (!d->memory) {
    free(d);
    return NULL;
  }
  d->source.init_source = source_begin;
  d->source.fill_input_buffer = source_fill;
  d->source.skip_input_data = source_skip;
  d->source.resync_to_restart = jpeg_resync_to_restart;
  d->source.term_source = source_end;
  d->progress.progress_monitor = on_progress;
  d->max_extraneous_bytes = max_extraneous_bytes;
  d->huffman = forebay_huffman_new();
  return d;
}

void forebay_jpeg_free(struct decompressor *d)
{
  jpeg_destroy_decompress(&d->info);
  forebay_memory_free(d->memory);
  forebay_huffman_free(d->huffman);
  free(d);
}

/* For tests: leaves all entropy decoding to the library. */
void forebay_jpeg_use_original(struct decompressor *d)
{
  forebay_huffman_free(d->huffman);
  d->huffman = NULL;
}

/* For tests: leaves out what only some processors have. */
void forebay_jpeg_use_plain(struct decompressor *d)
{
  forebay_huffman_use_plain(d->huffman);
}

/* For tests: MCUs that were not left to it. */
uint64_t forebay_jpeg_own_mcus(const struct decompressor *d)
{
  return forebay_huffman_decoded(d->huffman);
}

/* For tests: how often memory for a picture was asked of the system. */
uint64_t forebay_jpeg_memory_asked(const struct decompressor *d)
{
  return forebay_memory_asked(d->memory);
}

#ifdef __SANITIZE_ADDRESS__
/* For tests: an overrun inside of the memory of a picture. */
void forebay_jpeg_overrun(struct decompressor *d, int offset)
{
  if (setjmp(d->out))
    return;
  forget(d);
  forebay_memory_overrun(&d->info, offset);
}
#endif

void forebay_jpeg_trouble(const struct decompressor *d, struct trouble *trouble)
{
  trouble->row = d->row;
  trouble->scan = d->scan;
  trouble->message = d->message;
}

/* Blocks of the component that has the fewest: a file may well leave out the others. */
static uint64_t least_blocks(const struct jpeg_decompress_struct *info)
{
  uint64_t least = UINT64_MAX;
  for (int c = 0; c < info->num_components; c++) {
    const jpeg_component_info *component = &info->comp_info[c];
    uint64_t across = (uint64_t)info->image_width * component->h_samp_factor / (info->max_h_samp_factor * DCTSIZE);
    uint64_t down = (uint64_t)info->image_height * component->v_samp_factor / (info->max_v_samp_factor * DCTSIZE);
    least = across * down < least ? across * down : least;
  }
  return least;
}

/* Reads up to the first scan; keeps nothing. */
int forebay_jpeg_header(struct decompressor *d, const uint8_t *data, size_t size, struct shape *shape)
{
  if (setjmp(d->out))
    return failed(d);
  read_header(d, data, size);
  struct jpeg_decompress_struct *info = &d->info;
  shape->width = info->image_width;
  shape->height = info->image_height;
  shape->components = (uint32_t)info->num_components;
  shape->multi_scan = jpeg_has_multiple_scans(info);
  shape->has_landmarks = !shape->multi_scan && !info->progressive_mode && !info->arith_code &&
                         info->restart_interval == 0 && info->num_components <= MAX_LANDMARK_COMPONENTS;
  shape->data_offset = (uint64_t)(d->source.next_input_byte - data);
  shape->coefficient_bytes = 0;
  shape->least_blocks = info->arith_code ? 0 : least_blocks(info);
  if (shape->multi_scan) {
    for (int c = 0; c < info->num_components; c++) {
      /* The arrays hold whole MCUs. */
      const jpeg_component_info *component = &info->comp_info[c];
      uint64_t across = (info->image_width + info->max_h_samp_factor * DCTSIZE - 1) /
                        (info->max_h_samp_factor * DCTSIZE) * component->h_samp_factor;
      uint64_t down = (info->image_height + info->max_v_samp_factor * DCTSIZE - 1) /
                      (info->max_v_samp_factor * DCTSIZE) * component->v_samp_factor;
      shape->coefficient_bytes += across * down * sizeof(JBLOCK);
    }
  }
  jpeg_abort_decompress(info);
  return DONE;
}

/* Some coefficients of an incomplete progressive file are unknown: the library then smooths across blocks. */
static int smooths(const struct jpeg_decompress_struct *info)
{
  if (!info->progressive_mode || !info->coef_bits)
    return 0;
  for (int c = 0; c < info->num_components; c++)
    for (int k = 1; k < 10; k++)
      if (info->coef_bits[c][k] != 0)
        return 1;
  return 0;
}

/* The size of the smallest blocks that come out: 8 unless the picture is scaled. */
static uint32_t block_pixels(const struct jpeg_decompress_struct *info)
{
#if JPEG_LIB_VERSION >= 70
  return (uint32_t)info->min_DCT_h_scaled_size;
#else
  return (uint32_t)info->min_DCT_scaled_size;
#endif
}

/* Pixels across a column of MCUs, as the library itself counts these. */
static uint32_t column_pixels(const struct jpeg_decompress_struct *info)
{
  return block_pixels(info) * (info->num_components > 1 ? (uint32_t)info->max_h_samp_factor : 1);
}

/* Leaves out columns of MCUs that have nothing to do with these columns of pixels, which are widened to whole ones on
 * the left. */
static void crop_columns(struct decompressor *d, uint32_t *x, uint32_t *width)
{
  struct jpeg_decompress_struct *info = &d->info;
  if (*width >= info->output_width)
    return;
  jpeg_crop_scanline(info, x, width);
  uint32_t across = column_pixels(info);
  forebay_huffman_crop(d->huffman, *x / across, (*x + *width - 1) / across);
}

/* The row of MCUs that is wanted first. To interpolate chroma the library decodes the one before it, too. */
static void skip_rows(struct decompressor *d, uint32_t first)
{
  forebay_huffman_skip(d->huffman, &d->info, first > 0 ? first - 1 : 0);
}

/* What is known of the places in the picture that comes next, and room to note more: see huffman.h. */
void forebay_jpeg_lend(struct decompressor *d, const uint8_t *data, struct landmarks known, struct landmarks noted)
{
  forebay_huffman_lend(d->huffman, data, known, noted);
}

uint32_t forebay_jpeg_noted(const struct decompressor *d)
{
  return forebay_huffman_noted(d->huffman);
}

/* Whether the picture is lossless, by the parameters of its scan: they mean other things there. */
static int is_lossless(const struct jpeg_decompress_struct *info)
{
  return !info->progressive_mode && (info->Ss != 0 || info->Se != DCTSIZE2 - 1);
}

/* Begins decoding, and goes to row `y`. The columns are widened so that those asked for come out as they would of
 * the whole picture: `x` and `width` say which will come. `channels` is 1 (grey), 3 (RGB) or 4 (CMYK as stored). `data` must
 * live until forebay_jpeg_finish() or a failure. */
int forebay_jpeg_begin(struct decompressor *d, const uint8_t *data, size_t size, uint32_t y, uint32_t *x,
                       uint32_t *width, uint32_t *channels)
{
  if (setjmp(d->out))
    return failed(d);
  read_header(d, data, size);
  struct jpeg_decompress_struct *info = &d->info;
  int cmyk = info->jpeg_color_space == JCS_CMYK || info->jpeg_color_space == JCS_YCCK;
  info->out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
  /* Of lossless pictures the library converts nothing, not even grey. */
  if (is_lossless(info) && info->jpeg_color_space == JCS_GRAYSCALE)
    info->out_color_space = JCS_GRAYSCALE;
  /* The defaults, written down because parity with Pillow rests on them. Never changed on a live instance: 3.1.0
   * uses freed memory in jpeg_skip_scanlines() when upsampling was merged before and is not now. */
  info->dct_method = JDCT_ISLOW;
  info->do_fancy_upsampling = TRUE;
  info->do_block_smoothing = TRUE;
  if (info->data_precision != 8)
    ERREXIT1(info, JERR_BAD_PRECISION, info->data_precision);
  jpeg_start_decompress(info);
  forebay_huffman_install(d->huffman, info);
  *channels = (uint32_t)info->output_components;

  /* The library can neither crop nor skip in a lossless picture (its SOS has other parameters), and is not exact
   * where it smooths. */
  int whole = smooths(info) || is_lossless(info);
  uint32_t right = *x + *width;
  if (whole || right > info->output_width || *width == 0) {
    *x = 0;
    right = info->output_width;
  } else {
    /* Fancy upsampling looks one chroma sample to either side, and chroma samples are up to 4 pixels wide. */
    uint32_t margin = 2 * (uint32_t)info->max_h_samp_factor;
    *x = *x > margin ? *x - margin : 0;
    right = right + margin < info->output_width ? right + margin : info->output_width;
  }
  *width = right - *x;
  crop_columns(d, x, width);
  skip_rows(d, y / ((uint32_t)info->max_v_samp_factor * DCTSIZE));

  if (whole) {
    JSAMPROW spare = (*info->mem->alloc_large)((j_common_ptr)info, JPOOL_IMAGE, (size_t)*width * *channels);
    while (info->output_scanline < y)
      jpeg_read_scanlines(info, &spare, 1);
  } else if (y > 0) {
    jpeg_skip_scanlines(info, y);
  }
  return DONE;
}

/* Decodes `count` rows of `stride` bytes each. */
int forebay_jpeg_rows(struct decompressor *d, uint8_t *rows, size_t stride, uint32_t count)
{
  if (setjmp(d->out))
    return failed(d);
  for (uint32_t k = 0; k < count; k++) {
    JSAMPROW row = rows + (size_t)k * stride;
    if (jpeg_read_scanlines(&d->info, &row, 1) != 1) {
      snprintf(d->message, sizeof d->message, "no row %u", (unsigned)d->info.output_scanline);
      leave(d, DAMAGED);
    }
  }
  return DONE;
}

#if IS_REVIEWED
#define HAS_PLANES 1
#define STATE_RAW 206 /* DSTATE_RAW_OK of jpegint.h */
#else
#define HAS_PLANES 0
#define STATE_RAW 0
#endif

/* The size of a component's blocks. */
static uint32_t component_pixels(const jpeg_component_info *component)
{
#if JPEG_LIB_VERSION >= 70
  return (uint32_t)component->DCT_h_scaled_size;
#else
  return (uint32_t)component->DCT_scaled_size;
#endif
}

/* Whether rows come out of forebay_jpeg_rows() only when those of the next MCUs have been decoded, because chroma is
 * interpolated between them. */
static int looks_ahead(const struct jpeg_decompress_struct *info)
{
  for (int c = 0; c < info->num_components; c++) {
    const jpeg_component_info *component = &info->comp_info[c];
    int across = info->max_h_samp_factor / component->h_samp_factor;
    int down = info->max_v_samp_factor / component->v_samp_factor;
    uint32_t columns = (info->image_width * (uint32_t)component->h_samp_factor + (uint32_t)info->max_h_samp_factor - 1) /
                       (uint32_t)info->max_h_samp_factor;
    if (down == 2 && (across == 1 || (across == 2 && columns > 2)))
      return 1;
  }
  return 0;
}

/* Begins decoding for samples as they are stored, luma and chroma apart, and goes to the MCUs that have row `y`; each
 * block comes out as `block` samples in a square (8, 4, 2 or 1), or chroma as more. Gives the layout of what
 * forebay_jpeg_planes() will write, and NOT_PLANAR, with nothing begun, for pictures of other colours. As much is
 * decoded as would be for pixels of the same `height` rows, so that the same damage is seen. */
int forebay_jpeg_begin_planes(struct decompressor *d, const uint8_t *data, size_t size, uint32_t block, uint32_t x,
                              uint32_t y, uint32_t width, uint32_t height, struct planes *planes)
{
  if (setjmp(d->out))
    return failed(d);
  read_header(d, data, size);
  struct jpeg_decompress_struct *info = &d->info;
  int grey = info->jpeg_color_space == JCS_GRAYSCALE && info->num_components == 1;
  int colour = info->jpeg_color_space == JCS_YCbCr && info->num_components == 3;
  /* Lossless pictures have no blocks: their unit is one sample, whatever their parameters say. */
  if (!HAS_PLANES || !(grey || colour) || info->data_precision != 8 || component_pixels(info->comp_info) != DCTSIZE) {
    jpeg_abort_decompress(info);
    return NOT_PLANAR;
  }
  /* Upsampling is set up, though it will not happen, because skipping needs it. To RGB it could be merged with the
   * change of colours, which must not happen on an instance that is also used without: see above. */
  info->out_color_space = info->jpeg_color_space;
  info->dct_method = JDCT_ISLOW;
  info->do_fancy_upsampling = FALSE;
  info->do_block_smoothing = TRUE;
  info->scale_num = block;
  info->scale_denom = DCTSIZE;
  jpeg_start_decompress(info);
  int sequential = info->progressive_mode || (info->Ss == 0 && info->Se == DCTSIZE2 - 1);
  if (!sequential || smooths(info) || x + width > info->image_width || y + height > info->image_height) {
    jpeg_abort_decompress(info);
    return NOT_PLANAR;
  }
  forebay_huffman_install(d->huffman, info);
  d->row_pixels = DCTSIZE / block;

  uint32_t left = x * block / DCTSIZE;
  uint32_t right = ((x + width) * block + DCTSIZE - 1) / DCTSIZE;
  uint32_t columns = right - left;
  crop_columns(d, &left, &columns);
  uint32_t first_column = left / column_pixels(info);
  uint32_t mcus = (left + columns + column_pixels(info) - 1) / column_pixels(info) - first_column;

  uint32_t down = (uint32_t)info->max_v_samp_factor;
  uint32_t first_row = y / (DCTSIZE * down), last = y + height - 1, last_row = last / (DCTSIZE * down);
  if (looks_ahead(info) && last % (DCTSIZE * down) / down == DCTSIZE - 1 && last_row + 1 < info->total_iMCU_rows)
    last_row++;
  skip_rows(d, first_row);
  if (first_row > 0)
    jpeg_skip_scanlines(info, first_row * block * down);
  info->global_state = STATE_RAW;

  planes->count = (uint32_t)info->num_components;
  planes->mcu_rows = last_row - first_row + 1;
  for (int c = 0; c < info->num_components; c++) {
    const jpeg_component_info *component = &info->comp_info[c];
    uint32_t size = component_pixels(component), rows = (uint32_t)component->v_samp_factor * size;
    uint32_t across = size * (info->num_components > 1 ? (uint32_t)component->h_samp_factor : 1);
    struct plane *plane = &planes->plane[c];
    plane->x = first_column * across;
    plane->y = first_row * rows;
    plane->stride = mcus * across;
    plane->mcu_rows = rows;
    plane->pitch_x = (uint32_t)(info->max_h_samp_factor * DCTSIZE) / ((uint32_t)component->h_samp_factor * size);
    plane->pitch_y = (uint32_t)(info->max_v_samp_factor * DCTSIZE) / rows;
  }
  return DONE;
}

/* Decodes all rows of MCUs into the planes. */
int forebay_jpeg_planes(struct decompressor *d, const struct planes *planes, uint8_t *const *samples)
{
  if (setjmp(d->out))
    return failed(d);
  JSAMPROW rows[MAX_PLANES][MAX_MCU_ROWS];
  JSAMPARRAY data[MAX_PLANES];
  uint32_t lines = (uint32_t)d->info.max_v_samp_factor * block_pixels(&d->info);
  for (uint32_t row = 0; row < planes->mcu_rows; row++) {
    for (uint32_t c = 0; c < planes->count; c++) {
      const struct plane *plane = &planes->plane[c];
      data[c] = rows[c];
      for (uint32_t k = 0; k < plane->mcu_rows; k++)
        rows[c][k] = samples[c] + ((size_t)row * plane->mcu_rows + k) * plane->stride;
    }
    if (jpeg_read_raw_data(&d->info, data, lines) != lines) {
      snprintf(d->message, sizeof d->message, "no row %u", (unsigned)d->info.output_scanline);
      leave(d, DAMAGED);
    }
  }
  return DONE;
}

/* Ends decoding. After the last row, it reads on to the end marker: junk before it is how damage shows itself. */
int forebay_jpeg_finish(struct decompressor *d, int is_last_row)
{
  if (setjmp(d->out))
    return failed(d);
  if (is_last_row)
    jpeg_finish_decompress(&d->info);
  else
    jpeg_abort_decompress(&d->info);
  return DONE;
}
