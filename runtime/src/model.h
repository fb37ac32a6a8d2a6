/* What the files of the runtime share: a model is a file, a graph of operations, and a plan of memory. */

#ifndef MOON_MODEL_H
#define MOON_MODEL_H

#include <stdatomic.h>
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
#define MAX_CHANNEL ((int64_t)1 << 30)  /* of one channel as it is stored, in bytes */
#define MAX_OPERATIONS 8192
/* These are multiplied by the limit that a model is loaded with: see moon.h. */
#define MAX_MEMORY 2e9         /* bytes, for files of any length; */
#define MAX_MEMORY_PER_BYTE 32 /* and for each byte of the file */
#define MAX_IMAGE_WORK 1e12    /* operations for one image */

#define PIECE (1 << 20) /* vectors that are computed before looking whether to stop: about a millisecond */

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
  CONV, LINEAR, ADD, MUL, CONCAT, MAX_POOL, AVG_POOL, GLOBAL_AVG_POOL, GLOBAL_DEVIATION, FLATTEN, ACT, AFFINE, SOFTMAX,
  FUSED
} operation_kind; /* FUSED: done by the operation before it */

/* Weights that are not zero, row by row. `index` is the position in the flattened (in / groups, rows, columns). */
typedef struct {
  int rows, columns;
  uint32_t *start, *index;
  float *value;
} sparse;

/* A convolution as the kernel needs it; see convolution.c. */
typedef struct {
  const layout *in, *out;        /* `in` is that of the input, or of a copy of it */
  bool is_copied, fills_borders; /* what is done with the input first */
  int height, width;             /* of a tile */
  int together, lists;           /* outputs of a list of weights, and number of lists */
  int64_t corner;                /* from the beginning of a channel to what offset 0 means for the first output */
  int blocks, block_channels;
  const uint32_t *start, *work; /* work: number of weights up to each list */
  const uint16_t *offset, *order;
  const void *value;
} convolution_plan;

typedef struct {
  const layout *in;
  bool is_copied, fills_borders;
  const float *divisors;
} pool_plan;

/* LINEAR, one image. */
typedef struct {
  const sparse *rows;  /* few weights, without their values; */
  const void *value;
  const void *dense;   /* or many weights, input by input */
  const float *bias;   /* of `stride` outputs */
  int64_t stride;
} linear_plan;

typedef struct {
  operation_kind kind;
  activation act;
  int *in, inputs, out, residual; /* tensors; residual: added before the activation, -1 for none */
  int shape[4], stride[2], padding[2], dilation[2], groups;
  bool ceil_mode, count_padding;
  const char *weight; /* name in the file */
  const float *bias, *scale;
  const layout *source[2];         /* of a filter: the layout in which it reads its input */
  const convolution_plan *plan[2]; /* for one image; for as many images as a vector has lanes */
  const pool_plan *pool[2];
  const linear_plan *linear;
} operation;

typedef struct {
  int channels, rows, columns;
  bool defined;
  int same_as;         /* the tensor that has the memory; itself unless it is flattened */
  int first, last;     /* operations that write and last read it; the input is written by -1 */
  const layout *layout[2];
  int64_t at[2];       /* in the arena of one image, and of a group of images; in vectors */
} tensor;

typedef struct {
  const char *name;
  int tensor;
} output;

typedef struct {
  char *arena[2], *copy; /* for one image and for a group; an input that is copied into another layout */
  char *images;          /* what is computed image by image, for a group */
} workspace;

typedef struct classifier classifier; /* see classifier.h */

struct moon_model {
  memory memory, plans, scratch; /* plans: depends on the precision */
  budget budget;                 /* of all three */
  double program_work, image_work; /* for one image: of the detector's program, and of all */
  atomic_bool is_stopped;        /* by moon_interrupt */
  file file;
  const kernels *kernels;
  int input[3];
  operation *operations;
  int count, cut; /* operations before `cut` are computed image by image even in batches */
  tensor *tensors;
  int tensor_count;
  output *outputs;
  int output_count;
  int64_t arena_size[2], copy_size, image_size; /* bytes */
  bool has_plan[2];
  pool *pool;
  int threads;
  workspace *work; /* one for each thread */
  classifier *classifier;
};

/* disk.c */
/* Reads a regular file whose length is the one that its header declares; with NULL for `bytes`, only checks it. Returns
   whether that is so. */
bool read_disk(const char *path, uint8_t **bytes, size_t *size, char *error, size_t error_size);

/* file.c */
/* From the first 8 bytes of a file (`got`: how many it has) of this size. */
size_t header_length(memory *m, const uint8_t *start, size_t got, uint64_t size);
const json *parse_header(memory *m, const char *text, size_t length);
/* How many bytes of data the header declares. */
int64_t declared_bytes(memory *m, const json *header);
/* Reads f->bytes. Returns the description of the network, in `scratch`. */
const json *read_file(memory *keep, memory *scratch, file *f);
const file_tensor *find_tensor(const file *f, const char *name);
const file_tensor *need_tensor(memory *m, const file *f, const char *name);

/* weights.c */
/* How many weights of an operation the file stores. */
int64_t count_weights(const file *f, const operation *op);
const float *read_floats(memory *m, const file *f, const char *name, int64_t elements);
sparse *read_weights(memory *m, const file *f, const operation *op);

/* graph.c */
void read_graph(moon_model *model, const json *description);

static inline int64_t positions(const tensor *t) { return (int64_t)t->rows * t->columns; }
static inline int64_t elements(const tensor *t) { return t->channels * positions(t); }

/* plan.c: `batch` is 0 for one image, 1 for groups of images. */
void simplify_graph(moon_model *model);
void make_plan(moon_model *model, int batch);
bool crosses_cut(const moon_model *model, int tensor); /* computed image by image, and read by what computes groups */

/* layout.c: those of the tensors, and the sources of the filters. */
void make_layouts(moon_model *model, int batch);
places places_of(const layout *l, int lanes);

/* convolution.c */
/* `same`: an earlier operation whose weights are used again, or NULL. */
void plan_convolution(moon_model *model, operation *op, const operation *same, int batch, bool fills_borders);

/* operations.c */
void plan_pool(moon_model *model, operation *op, int batch, bool fills_borders);
void plan_linear(moon_model *model, operation *op, const operation *same); /* as plan_convolution */

/* What one of several threads that compute together does, see run.c. */
typedef struct {
  const moon_model *model;
  workspace *work; /* of this thread */
  char *arena;     /* shared by the team */
  char *shared;    /* a copied input that the team shares */
  int batch;
  int thread, threads;
  pool *pool;
} team;

static inline char *tensor_data(const team *t, int index) {
  const tensor *base = &t->model->tensors[t->model->tensors[index].same_as];
  return t->arena + base->at[t->batch] * t->model->kernels->bytes;
}

/* Share `count` things: the first that belongs to `thread`. */
static inline int share_of(int64_t count, int thread, int threads) { return (int)(count * thread / threads); }

static inline bool is_stopped(const moon_model *model) {
  return atomic_load_explicit(&model->is_stopped, memory_order_relaxed);
}

/* run.c: as `moon_run`, for images that are known to be finite. */
int run_images(moon_model *model, const float *images, int64_t count, float *const *outputs, char *error,
               size_t error_size);
/* What moon_run and moon_predict return if they are stopped: -3. */
int report_stop(char *error, size_t error_size);
void wait_for_team(const team *t);
/* Copy channels [from, to) into the layout in which a filter reads them; `outside`: the value around the image. */
void copy_input(const team *t, const operation *op, const layout *target, char *copy, float outside, int from, int to);
void convolve(const team *t, const operation *op);
void compute(const team *t, const operation *op); /* operations.c: all others */

#endif
