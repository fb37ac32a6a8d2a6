/* What the files of the runtime share: a model is a file, a graph of operations, and a plan of memory. */

#ifndef MOON_MODEL_H
#define MOON_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "json.h"
#include "kernels.h"
#include "memory.h"
#include "moon.h"
#include "threads.h"

/* Limits that no real network meets. They bound what a malicious file can ask for, and keep products of sizes within
   64 bits. */
#define MAX_SIDE 65536               /* of one dimension */
#define MAX_ELEMENTS ((int64_t)1 << 26) /* of one feature map */
#define MAX_ARENA ((int64_t)1 << 28)    /* of all feature maps, in floats */
#define MAX_OPERATIONS 8192

typedef enum { F64, F32, F16, I8, U8, U32, OTHER } data_type;

typedef struct {
  const char *name, *type_name;
  data_type type;
  int dimensions;
  int64_t shape[8], elements;
  const uint8_t *data;
} file_tensor;

typedef struct {
  uint8_t *bytes;
  size_t size;
  file_tensor *tensors; /* sorted by name */
  size_t count;
  const char *metadata;
} file;

typedef enum {
  CONV, LINEAR, ADD, MUL, CONCAT, MAX_POOL, AVG_POOL, GLOBAL_AVG_POOL, FLATTEN, ACT, AFFINE, SOFTMAX, FUSED
} operation_kind; /* FUSED: done by the operation before it */

/* Weights that are not zero, row by row. `index` is the position in the flattened (in / groups, rows, columns). */
typedef struct {
  int rows, columns;
  uint32_t *start, *index;
  float *value;
} sparse;

/* A convolution as the kernel needs it; see convolution.c. */
typedef struct {
  int unit;                      /* floats of a position: 1, or one vector with a lane for each image */
  bool packed;                   /* whether the input is copied; a 1x1 convolution reads it where it is */
  int rows, columns;             /* of the output; 1 x all positions if not packed */
  int slab_rows, slabs;          /* output rows for which the input is packed at once */
  int copies, column_step;       /* copies of the input, one for each column of the filter */
  int phases, phase_rows;        /* rows of the input with the same remainder modulo the stride follow each other */
  int64_t copy_size, channel_size; /* in positions */
  const int32_t *mask;           /* all ones where a packed value is inside of the image; NULL: pack row by row */
  int64_t mask_size;             /* of one copy */
  int blocks, block_channels;
  const uint32_t *start;
  const uint16_t *offset;
  const float *value;
} convolution_plan;

typedef struct {
  operation_kind kind;
  activation act;
  int *in, inputs, out, residual; /* tensors; residual: added before the activation, -1 for none */
  int shape[4], stride[2], padding[2], dilation[2], groups;
  bool ceil_mode, count_padding;
  const char *weight; /* name in the file */
  const float *bias, *scale;
  convolution_plan *plan[2]; /* for one image; for as many images as a vector has lanes */
  const sparse *rows;        /* LINEAR, one image, few weights */
  const float *dense;        /* LINEAR, one image, many weights */
} operation;

typedef struct {
  int channels, rows, columns;
  bool defined;
  int same_as;         /* the tensor that has the memory; itself unless it is flattened */
  int first, last;     /* operations that write and last read it; the input is written by -1 */
  int64_t at[2];       /* in the arena of one image, and of a group of images */
} tensor;

typedef struct {
  const char *name;
  int tensor;
} output;

typedef struct {
  float *arena[2], *packed; /* for one image and for a group; the input of a convolution */
} workspace;

typedef struct classifier classifier; /* see classifier.h */

struct moon_model {
  memory memory, scratch;
  file file;
  const kernels *kernels;
  int input[3];
  operation *operations;
  int count, cut; /* operations before `cut` are computed image by image even in batches */
  tensor *tensors;
  int tensor_count;
  output *outputs;
  int output_count;
  int64_t arena_size[2], packed_size;
  bool has_batch_plan;
  pool *pool;
  int threads;
  workspace *work; /* one for each thread */
  classifier *classifier;
};

/* file.c */
/* Reads f->bytes. Returns the description of the network, in `scratch`. */
const json *read_file(memory *keep, memory *scratch, file *f);
const file_tensor *find_tensor(const file *f, const char *name);
const file_tensor *need_tensor(memory *m, const file *f, const char *name);

/* weights.c */
const float *read_floats(memory *m, const file *f, const char *name, int64_t elements);
sparse *read_weights(memory *m, const file *f, const operation *op);

/* graph.c */
void read_graph(moon_model *model, const json *description);

/* plan.c: `batch` is 0 for one image, 1 for groups of images. */
void make_plan(moon_model *model, int batch);
static inline int64_t positions(const tensor *t) { return (int64_t)t->rows * t->columns; }
static inline int64_t elements(const tensor *t) { return t->channels * positions(t); }

/* convolution.c */
convolution_plan *plan_convolution(moon_model *model, const operation *op, const sparse *weights, int unit);
int64_t packed_size(const convolution_plan *plan, int channels);

/* What one of several threads that compute together does, see run.c. */
typedef struct {
  const moon_model *model;
  workspace *work;  /* of this thread */
  float *arena;     /* shared by the team */
  float *shared;    /* packed input that the team shares */
  int batch, unit;
  int thread, threads;
  pool *pool;
} team;

static inline float *tensor_data(const team *t, int index) {
  return t->arena + t->model->tensors[t->model->tensors[index].same_as].at[t->batch];
}

void wait_for_team(const team *t);
void convolve(const team *t, const operation *op);
void compute(const team *t, const operation *op); /* operations.c: all others */

#endif
