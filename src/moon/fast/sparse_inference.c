/* Sparse convolution on a CPU, for inference: only the non-zero weights are multiplied.

A vector holds one pixel of one channel for as many images as it has lanes, so that each weight, whatever its position,
is one load and one multiplication for all of them. A feature map is [group of images][row][channel][column] of such
vectors. It has a border of zeros, so that no bounds are checked, and the inputs of a pixel are close together in
memory.

Weights are sorted into parts by input channel: what a part reads for a few pixels of all outputs stays in the L1 cache.
Between parts the sums are kept in the output. */

#include <stdint.h>

#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif

#ifndef HALF
typedef float number;
typedef int32_t word;
#define LARGEST 0x7fffffff
#define INFINITE 0x7f800000
#elif defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC) || defined(__AVX512FP16__)
typedef _Float16 number;
typedef int16_t word;
#define LARGEST 0x7fff
#define INFINITE 0x7c00
#else
#error "this CPU does not support float16 arithmetic"
#endif

/* Whether there are 32 vector registers: half of them hold sums. */
#if defined(__aarch64__) || defined(__AVX512F__)
#define MANY_REGISTERS 1
#else
#define MANY_REGISTERS 0
#endif

typedef number vector __attribute__((vector_size(BYTES)));
typedef word bits __attribute__((vector_size(BYTES)));

/* A layer: its feature maps, and its weights as lists. The weights of output k in part p are those from
   start[p * outputs + k] up to start[p * outputs + k + 1]. */
typedef struct {
  const vector *in, *residual; /* residual: NULL for none */
  vector *out;
  const int32_t *start, *offset; /* offset: from an output pixel to the input of the weight, in vectors */
  const number *value, *shift;
  int64_t parts, in_rows, inputs, in_columns, outputs, rows, columns, stride, corner, relu;
} layer;

#define INLINE static inline __attribute__((always_inline))
#define EACH(i, count) _Pragma("GCC unroll 16") for (int i = 0; i < (count); i++)

/* Computed on the bits, because compilers split float16 vectors to compare them. NaN stays NaN. */
INLINE vector relu(vector x) {
  const bits b = (bits)x, positive = ~(b >> (8 * sizeof(word) - 1)), is_nan = (b & LARGEST) > INFINITE;
  return (vector)(b & (positive | is_nan));
}

int64_t lanes(void) { return sizeof(vector) / sizeof(number); }

/* Compute all outputs at `height` x `width` pixels; height, width and stride are constants where this is inlined. */
INLINE void pixels(const int height, const int width, const int stride, const layer *l, const vector *in, int64_t at) {
  const int64_t line = l->columns + 2, next = l->outputs * line, in_next = l->inputs * l->in_columns * stride;
  for (int64_t part = 0; part < l->parts; part++)
    for (int64_t k = 0; k < l->outputs; k++) {
      const int32_t *range = l->start + part * l->outputs + k;
      const int64_t first = at + k * line;
      vector sum[16];
      EACH(i, height * width) {
        const int64_t pixel = first + i / width * next + i % width;
        sum[i] = part ? l->out[pixel] : (vector){0} + l->shift[k];
      }
      for (int32_t i = range[0]; i < range[1]; i++) {
        const number w = l->value[i];
        EACH(y, height) {
          const vector *x = in + l->offset[i] + y * in_next;
          __asm__("" : "+r"(x)); /* one address per row, with the pixels at constant distances from it */
          EACH(j, width) sum[y * width + j] += w * x[j * stride];
        }
      }
      if (part + 1 == l->parts) {
        if (l->residual) EACH(i, height * width) sum[i] += l->residual[first + i / width * next + i % width];
        if (l->relu) EACH(i, height * width) sum[i] = relu(sum[i]);
      }
      EACH(i, height * width) l->out[first + i / width * next + i % width] = sum[i];
    }
}

INLINE void row(const int height, const int width, const int stride, const layer *l, int64_t group, int64_t y) {
  const int64_t in_line = l->inputs * l->in_columns, line = l->outputs * (l->columns + 2);
  const vector *in = l->in + group * l->in_rows * in_line + (y * l->stride + l->corner) * in_line + l->corner;
  for (int64_t c = 0; c < l->columns; c += width) {
    const int64_t x = c + width > l->columns ? l->columns - width : c; /* the last tile overlaps the one before it */
    pixels(height, width, stride, l, in + x * l->stride, (group * (l->rows + 2) + y + 1) * line + x + 1);
  }
}

#define ROW(height, width) \
  (l->stride == 1 ? row(height, width, 1, l, group, y) : row(height, width, 2, l, group, y), at += (height) - 1)

/* Compute the rows [first, last), numbered over all groups of images. */
void convolve(const layer *l, int64_t first, int64_t last) {
  for (int64_t at = first; at < last; at++) {
    const int64_t group = at / l->rows, y = at % l->rows;
    const int64_t remaining = l->rows - y < last - at ? l->rows - y : last - at;
    if (l->stride > 2 || l->columns < 4) row(1, 1, 1, l, group, y);
    else if (MANY_REGISTERS && l->columns >= 16) ROW(1, 16);
    else if (MANY_REGISTERS && l->columns >= 8 && remaining >= 2) ROW(2, 8);
    else if (l->columns >= 8) ROW(1, 8);
    else if (remaining >= 2) ROW(2, 4);
    else ROW(1, 4);
  }
}
