/* The inner loops, compiled for each set of vector instructions (kernels.inc) and chosen when a model is loaded. */

#ifndef MOON_KERNELS_H
#define MOON_KERNELS_H

#include <stdint.h>

typedef enum { NONE, RELU, RELU6, SILU, GELU, HARDSWISH, HARDSIGMOID, SIGMOID } activation;

#define MOST_VECTORS 16
#define MOST_LANES 16

/* A tile of output positions that follow each other, for all output channels. The weights of output k that belong to
   block b of the input channels are those from start[b * outputs + k] up to start[b * outputs + k + 1]. */
typedef struct {
  const float *in, *bias, *residual; /* bias, residual: NULL for none */
  float *out;
  const uint32_t *start;
  const uint16_t *offset; /* from an output position to the input of a weight */
  const float *value;
  int64_t block_size, group_size, out_size; /* floats from one block, group or output channel to the next */
  int64_t valid;                            /* floats of an output channel that belong to the tile */
  int blocks, outputs, outputs_per_group;
  activation act;
} tile;

/* Every `step`-th position of some rows. Columns before `first` and from `last` on are set to zero, but read. */
typedef struct {
  int64_t rows, columns, first, last, step, from_size; /* from_size: floats from one row to the next */
  int unit;                                            /* floats of a position: 1, or the lanes of a vector */
} rows_to_copy;

typedef struct {
  const char *name;
  int lanes, vectors; /* vectors: of the largest tile */
  /* Outputs [from, to) of a tile of 1 to `vectors` vectors; offsets count floats, or vectors (one lane per image). */
  void (*convolve[2][MOST_VECTORS + 1])(const tile *t, int from, int to);
  void (*copy_masked)(float *to, const float *from, const int32_t *mask, int64_t floats);
  void (*copy_rows)(float *to, const float *from, const rows_to_copy *r);
  float (*dot)(const float *a, const float *b, int64_t count);
  void (*activate)(activation act, float *x, int64_t count);
} kernels;

/* The best kernels of this CPU, or those with the given name; NULL if the CPU does not support them. */
const kernels *choose_kernels(const char *name);

#endif
