/* A convolution over the weights that exist: what a sparse network is read with on a CPU.

A vector holds one place of one channel of as many images as it has lanes, so that a weight is one load and one
multiplication for all of them, wherever it stands. A map is [group of images][row][channel][column] of such vectors,
with a frame of zeros around it, so that nobody asks where the image ends; what a place is made of is near together.

Weights are sorted into parts by input channel: what a part reads for a few places of all outputs stays in the first
cache. Sums wait in the output between parts. */

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
#error "this CPU does not compute in float16"
#endif

/* Whether there are 32 registers for vectors: half of them for sums. */
#if defined(__aarch64__) || defined(__AVX512F__)
#define MANY 1
#else
#define MANY 0
#endif

typedef number vector __attribute__((vector_size(BYTES)));
typedef word bits __attribute__((vector_size(BYTES)));

/* Of one layer: its maps, and its weights as lists. Of output k in part p they are [start[p * outputs + k], the next). */
typedef struct {
  const vector *in, *residual; /* residual: NULL for none */
  vector *out;
  const int32_t *start, *offset; /* offset: from the place to what the weight is multiplied with, in vectors */
  const number *value, *shift;
  int64_t parts, in_rows, inputs, in_columns, outputs, rows, columns, stride, corner, relu;
} layer;

#define INLINE static inline __attribute__((always_inline))
#define EACH(i, count) _Pragma("GCC unroll 16") for (int i = 0; i < (count); i++)

/* By its bits, because compilers take float16 apart to compare it. NaN stays NaN. */
INLINE vector relu(vector x) {
  const bits b = (bits)x, positive = ~(b >> (8 * sizeof(word) - 1)), no_number = (b & LARGEST) > INFINITE;
  return (vector)(b & (positive | no_number));
}

int64_t lanes(void) { return sizeof(vector) / sizeof(number); }

/* All outputs at `height` x `width` places; the constants are known where this is compiled into. */
INLINE void places(const int height, const int width, const int stride, const layer *l, const vector *from, int64_t at) {
  const int64_t line = l->columns + 2, next = l->outputs * line, in_next = l->inputs * l->in_columns * stride;
  for (int64_t part = 0; part < l->parts; part++)
    for (int64_t k = 0; k < l->outputs; k++) {
      const int32_t *range = l->start + part * l->outputs + k;
      const int64_t first = at + k * line;
      vector sum[16];
      EACH(i, height * width) {
        const int64_t place = first + i / width * next + i % width;
        sum[i] = part ? l->out[place] : (vector){0} + l->shift[k];
      }
      for (int32_t i = range[0]; i < range[1]; i++) {
        const number w = l->value[i];
        EACH(y, height) {
          const vector *x = from + l->offset[i] + y * in_next;
          __asm__("" : "+r"(x)); /* one address a row, and the places at fixed distances from it */
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
    const int64_t x = c + width > l->columns ? l->columns - width : c; /* the last ones once more, rather than fewer */
    places(height, width, stride, l, in + x * l->stride, (group * (l->rows + 2) + y + 1) * line + x + 1);
  }
}

#define ROW(height, width) \
  (l->stride == 1 ? row(height, width, 1, l, group, y) : row(height, width, 2, l, group, y), at += (height) - 1)

/* Rows of all groups, counted through: [first, last). */
void convolve(const layer *l, int64_t first, int64_t last) {
  for (int64_t at = first; at < last; at++) {
    const int64_t group = at / l->rows, y = at % l->rows, left = l->rows - y < last - at ? l->rows - y : last - at;
    if (l->stride > 2 || l->columns < 4) row(1, 1, 1, l, group, y);
    else if (MANY && l->columns >= 16) ROW(1, 16);
    else if (MANY && l->columns >= 8 && left >= 2) ROW(2, 8);
    else if (l->columns >= 8) ROW(1, 8);
    else if (left >= 2) ROW(2, 4);
    else ROW(1, 4);
  }
}
