/* All operations but convolutions. A position has `unit` floats: 1, or one for each image of a group. */

#include <float.h>
#include <math.h>
#include <string.h>

#include "model.h"

typedef struct {
  const float *in;
  float *out;
  const tensor *from, *to;
  int unit;
} maps;

static void affine(float *out, const float *in, int64_t count, float scale, float shift) {
  for (int64_t i = 0; i < count; i++) out[i] = in[i] * scale + shift;
}

static void add(float *out, const float *a, const float *b, int64_t count) {
  for (int64_t i = 0; i < count; i++) out[i] = a[i] + b[i];
}

static void multiply(float *out, const float *a, const float *b, int64_t count) {
  for (int64_t i = 0; i < count; i++) out[i] = a[i] * b[i];
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* The elements [range[0], range[1]) of a filter that are inside of the image. It begins at `start`, maybe below 0. */
static void inside_of(int64_t start, int64_t dilation, int64_t kernel, int64_t side, int64_t range[2]) {
  range[0] = start < 0 ? smaller((-start + dilation - 1) / dilation, kernel) : 0;
  range[1] = start < side ? smaller((side - start + dilation - 1) / dilation, kernel) : 0;
  if (range[1] < range[0]) range[1] = range[0];
}

/* The value or values of one position, over a window of the input. */
static void pool_position(const maps *m, const operation *op, const float *in, float *out, int row, int column) {
  const int unit = m->unit, top = row * op->stride[0] - op->padding[0], left = column * op->stride[1] - op->padding[1];
  const bool is_max = op->kind == MAX_POOL;
  for (int u = 0; u < unit; u++) out[u] = is_max ? -INFINITY : 0;
  int64_t rows[2], columns[2];
  inside_of(top, op->dilation[0], op->shape[2], m->from->rows, rows);
  inside_of(left, op->dilation[1], op->shape[3], m->from->columns, columns);
  for (int64_t i = rows[0]; i < rows[1]; i++)
    for (int64_t j = columns[0]; j < columns[1]; j++) {
      const float *value =
          in + ((top + i * op->dilation[0]) * m->from->columns + left + j * op->dilation[1]) * (int64_t)unit;
      if (is_max) /* NaN wins, as in torch */
        for (int u = 0; u < unit; u++) out[u] = value[u] > out[u] || value[u] != value[u] ? value[u] : out[u];
      else
        for (int u = 0; u < unit; u++) out[u] += value[u];
    }
  if (is_max) return;
  /* Padding counts, but what ceil_mode adds beyond it does not. */
  const int64_t bottom = top + op->shape[2], right = left + op->shape[3];
  const int64_t most_rows = m->from->rows + op->padding[0], most_columns = m->from->columns + op->padding[1];
  const int64_t counted = (smaller(bottom, most_rows) - top) * (smaller(right, most_columns) - left);
  const int64_t inside = (rows[1] - rows[0]) * (columns[1] - columns[0]);
  const float size = (float)(op->count_padding ? counted : inside);
  for (int u = 0; u < unit; u++) out[u] /= size;
}

static void pool_channel(const maps *m, const operation *op, int channel) {
  const float *in = m->in + channel * positions(m->from) * m->unit;
  float *out = m->out + channel * positions(m->to) * m->unit;
  for (int row = 0; row < m->to->rows; row++)
    for (int column = 0; column < m->to->columns; column++, out += m->unit)
      pool_position(m, op, in, out, row, column);
}

static void average_channel(const maps *m, int channel) {
  const int64_t count = positions(m->from);
  const float *in = m->in + channel * count * m->unit;
  double sum[MOST_LANES] = {0};
  for (int64_t i = 0; i < count; i++)
    for (int u = 0; u < m->unit; u++) sum[u] += in[i * m->unit + u];
  for (int u = 0; u < m->unit; u++) m->out[channel * m->unit + u] = (float)(sum[u] / (double)count);
}

/* Over the channels of each position. */
static void softmax(const maps *m) {
  const int64_t stride = positions(m->from) * m->unit;
  for (int64_t i = 0; i < stride; i++) {
    float largest = -FLT_MAX, sum = 0;
    for (int c = 0; c < m->from->channels; c++) largest = fmaxf(largest, m->in[c * stride + i]);
    for (int c = 0; c < m->from->channels; c++) sum += m->out[c * stride + i] = expf(m->in[c * stride + i] - largest);
    for (int c = 0; c < m->from->channels; c++) m->out[c * stride + i] /= sum;
  }
}

/* One image: the product of a matrix and a vector. */
static float linear_row(const kernels *k, const operation *op, const float *in, int row) {
  const int columns = op->rows->columns;
  if (op->dense) return k->dot(op->dense + (int64_t)row * columns, in, columns);
  float sum[4] = {0};
  uint32_t i = op->rows->start[row];
  const uint32_t end = op->rows->start[row + 1], *index = op->rows->index;
  const float *value = op->rows->value;
  for (; i + 4 <= end; i += 4)
    for (int j = 0; j < 4; j++) sum[j] += value[i + j] * in[index[i + j]];
  for (; i < end; i++) sum[0] += value[i] * in[index[i]];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static void concatenate(const team *t, const operation *op) {
  float *out = tensor_data(t, op->out);
  for (int i = 0; i < op->inputs; i++) {
    const int64_t count = elements(&t->model->tensors[op->in[i]]) * t->unit;
    memcpy(out, tensor_data(t, op->in[i]), (size_t)count * sizeof *out);
    out += count;
  }
}

static void compute_channel(const team *t, const operation *op, const maps *m, int c) {
  const int64_t count = positions(m->to) * m->unit;
  const float *in = m->in + c * count; /* of operations that keep the number of positions */
  float *out = m->out + c * count;
  switch (op->kind) {
    case LINEAR: out[0] = linear_row(t->model->kernels, op, m->in, c) + (op->bias ? op->bias[c] : 0); break;
    case ADD: add(out, in, tensor_data(t, op->in[1]) + c * count, count); break;
    case MUL: {
      const float *factor = tensor_data(t, op->in[1]);
      if (positions(&t->model->tensors[op->in[1]]) == positions(m->to)) multiply(out, in, factor + c * count, count);
      else
        for (int64_t i = 0; i < count; i += m->unit) multiply(out + i, in + i, factor + c * m->unit, m->unit);
      break;
    }
    case MAX_POOL: case AVG_POOL: pool_channel(m, op, c); break;
    case GLOBAL_AVG_POOL: average_channel(m, c); break;
    case AFFINE: affine(out, in, count, op->scale[c], op->bias[c]); break;
    case ACT: memcpy(out, in, (size_t)count * sizeof *out); break;
    default: break;
  }
}

void compute(const team *t, const operation *op) {
  if (op->kind == FLATTEN || op->kind == FUSED) return;
  const maps m = {tensor_data(t, op->in[0]), tensor_data(t, op->out), &t->model->tensors[op->in[0]],
                  &t->model->tensors[op->out], t->unit};
  const kernels *k = t->model->kernels;
  const int64_t size = positions(m.to) * t->unit;
  if (op->kind == CONCAT || op->kind == SOFTMAX) { /* rare and cheap: by one thread */
    if (t->thread) return;
    if (op->kind == CONCAT) concatenate(t, op);
    else softmax(&m);
    if (op->act != NONE) k->activate(op->act, m.out, m.to->channels * size);
    return;
  }
  const int from = (int)((int64_t)m.to->channels * t->thread / t->threads);
  const int to = (int)((int64_t)m.to->channels * (t->thread + 1) / t->threads);
  for (int c = from; c < to; c++) compute_channel(t, op, &m, c);
  if (op->act != NONE && to > from) k->activate(op->act, m.out + from * size, (to - from) * size);
}
