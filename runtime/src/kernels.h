/* The inner loops, compiled for each set of vector instructions (kernels.inc) and chosen when a model is loaded. */

#ifndef MOON_KERNELS_H
#define MOON_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

/* Whether the compiler knows the instructions for float16; whether the CPU has them is found out when a model is loaded. */
#if defined(__x86_64__) && !defined(__APPLE__) && \
    ((defined(__clang__) && __clang_major__ >= 16) || (!defined(__clang__) && __GNUC__ >= 12))
#define HAS_AVX512_HALF
#endif
#if defined(__aarch64__) && (defined(__linux__) || defined(__APPLE__)) && \
    (defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC) || (!defined(__clang__) && __GNUC__ >= 10))
#define HAS_NEON_HALF
#endif

typedef enum { NONE, RELU, RELU6, SILU, GELU, HARDSWISH, HARDSIGMOID, SIGMOID } activation;

#define MOST_ROWS 4 /* of a tile */
#define MOST_COLUMNS 8
#define TOGETHER 4 /* outputs that are computed at the same time where a tile is small */

/* A vector at the border of a channel: the lanes of another one, or what is outside of the image (from = -1). `lanes`
   has the source of each lane and then a mask, as words of the size of a number. */
typedef struct {
  int32_t to, from;
  const void *lanes;
} border;

/* How a feature map is stored: see convolution.c. Sizes are in vectors. */
typedef struct {
  int rows, columns;
  int grid[2], block[2]; /* the lanes of a vector are a grid of blocks; 1 x 1 if they are images */
  int low[2], high[2];   /* rows and columns before and behind a block */
  int64_t pitch, size;   /* from one row, or channel, to the next */
  const int32_t *at[2];  /* where a row and a column are, in numbers */
  const int32_t *plain[2]; /* the same in an array with rows and columns */
  const border *borders;
  int border_count;
} layout;

/* A tile of output positions, for all output channels. The weights of the list l (an output, or TOGETHER outputs) in
   block b of the input channels are those from start[b * lists + l] up to start[b * lists + l + 1]. Sizes are in
   vectors. */
typedef struct {
  const void *in, *residual; /* residual: NULL for none */
  void *out;
  const float *bias; /* NULL for none */
  const uint32_t *start;
  const uint16_t *offset; /* from an output position to the input of a weight */
  const void *value;
  const uint16_t *order; /* the outputs of the lists, if they have several */
  int64_t in_row, out_row, block_size, group_size, out_size;
  int blocks, lists, outputs_per_group;
  activation act;
} tile;

/* The lists [from, to). */
typedef void (*convolve_function)(const tile *t, int from, int to);

/* Pooling of a channel: positions of the input with the steps between windows and between values of a window. */
typedef struct {
  int64_t in_row, in_step, out_row, window_row, window_step;
  int rows, columns, window_rows, window_columns;
  bool is_max;
} pooling;

/* Where the elements of a feature map are; for layouts, and for arrays of floats (rows, then columns). */
typedef struct {
  int64_t channel;
  const int32_t *row, *column;
} places;

typedef void (*copy_function)(void *to, const places *t, const void *from, const places *f, int channels, int rows,
                              int columns);

typedef struct {
  const char *name, *precision;
  int lanes, bytes; /* of a vector */
  int sums;         /* vectors of the largest tile */
  convolve_function convolve[2][MOST_ROWS][MOST_COLUMNS]; /* strides 1 and 2; rows - 1, columns - 1 of the tile */
  convolve_function convolve_together[2][MOST_ROWS][MOST_COLUMNS]; /* TOGETHER outputs */
  void (*fill_borders)(void *channel, const layout *l, float outside);
  void (*activate)(activation act, void *x, int64_t vectors);
  void (*add)(void *out, const void *a, const void *b, int64_t vectors);
  void (*multiply)(void *out, const void *a, const void *b, int64_t vectors);
  void (*scale)(void *out, const void *in, const void *factor, bool is_vector, int64_t vectors);
  void (*affine)(void *out, const void *in, float scale, float shift, int64_t vectors);
  void (*pool)(void *out, const void *in, const void *divisors, const pooling *p);
  void (*softmax)(void *out, const void *in, int channels, int64_t vectors, int64_t stride);
  void (*average)(void *out, const void *in, const layout *stored, const layout *order, bool is_deviation);
  void (*interleave)(void *to, const layout *target, const void *from, const layout *source, int64_t image_size,
                     int channels);
  void (*linear)(float *out, const void *in, const void *weights, const float *bias, int columns, int64_t stride,
                 int64_t outputs);
  void (*linear_sparse)(float *out, const void *in, const void *value, const uint32_t *start, const uint32_t *index,
                        const float *bias, int64_t from, int64_t to);
  float (*dot)(const float *a, const float *b, int64_t count);
  /* Copy the elements of channels: numbers to numbers, floats to numbers, numbers to floats. */
  copy_function move, import, export;
  void (*fill)(void *to, float value, int64_t numbers);
  void (*convert)(void *to, const float *from, int64_t count);
} kernels;

/* The best kernels of this CPU for "float32" or "float16", or those with the given name; NULL if the CPU does not
   support them. */
const kernels *choose_kernels(const char *name, const char *precision);

#endif
