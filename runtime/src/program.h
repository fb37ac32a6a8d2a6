/* The program of a detector: operations on vectors of doubles, from the logits and features of an image to its score.
   README.md lists the operations. All is checked when a file is loaded, so that running cannot fail. */

#ifndef MOON_PROGRAM_H
#define MOON_PROGRAM_H

#include "model.h"

#define MAX_VECTOR ((int64_t)1 << 20)  /* elements of one vector */
#define MAX_WORK ((int64_t)1 << 24)    /* doubles of all vectors that are needed at the same time */

typedef enum {
  DO_NEG, DO_ABS, DO_EXP, DO_LOG, DO_SQRT, DO_SQUARE, DO_ISNAN, DO_NOT,
  DO_ADD, DO_SUB, DO_MUL, DO_DIV, DO_POW, DO_MINIMUM, DO_MAXIMUM, DO_GT, DO_GE, DO_LT, DO_LE, DO_EQ, DO_NE,
  DO_WHERE,
  DO_SUM, DO_MEAN, DO_AMAX, DO_AMIN, DO_ARGMAX, DO_NORM, DO_LOGSUMEXP,
  DO_SOFTMAX, DO_LOG_SOFTMAX,
  DO_TOPK, DO_TOPK_INDEX, DO_SLICE, DO_CONCAT, DO_SCATTER,
  DO_MATMUL, DO_DISTANCES, DO_ROW, DO_RANK
} step_kind;

typedef struct {
  const double *constant; /* NULL: computed */
  int vector;             /* that is computed before; its number while the file is read */
  int64_t at, length;     /* at: in the workspace */
} operand;

/* A constant matrix: `single` (F16, F32) or `twice` (F64). */
typedef struct {
  const float *single;
  const double *twice;
  int64_t rows, columns;
} table;

typedef struct {
  step_kind kind;
  operand *in;
  int inputs, out;
  table table;         /* DO_MATMUL, DO_DISTANCES, DO_ROW */
  int64_t start;       /* DO_SLICE */
  int64_t at, length;  /* of the result */
} step;

typedef struct {
  step *steps;
  int count;
  int64_t logits, features;  /* lengths; the workspace begins with both */
  int64_t result;            /* where the score is */
  int64_t rounded;           /* where there is room for a vector of floats */
  int64_t work_size;         /* in doubles */
  bool needs_features;
} program;

/* Read "program" and "output" of a detector; `features` is 0 if the network does not offer them. */
const program *read_program(moon_model *model, const json *detector, int64_t logits, int64_t features);

/* The vector constant of a file as doubles (F64, F32 or F16). Fails if it is missing, empty or not a vector. */
const double *read_vector(memory *m, const file *f, const char *name, int64_t *length);

/* The score of one image. `features` may be NULL if they are not needed. */
double run_program(const program *p, const moon_model *model, const float *logits, const float *features, double *work);

/* Positions of the first maximum and the number of values of an ascending vector that are not above x. NaN is the
   largest number, as in torch. */
int64_t find_largest(const double *x, int64_t length);
int64_t count_not_above(const double *ascending, int64_t length, double x);

#endif
