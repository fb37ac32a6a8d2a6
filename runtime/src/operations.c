/* All operations but convolutions, channel by channel. */

#include <math.h>
#include <string.h>

#include "model.h"

#define DENSE 0.25 /* density from which the product of a matrix and a vector does not skip zeros */

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* The elements [range[0], range[1]) of a filter that are inside of the image. It begins at `start`, maybe below 0. */
static void inside_of(int64_t start, int64_t dilation, int64_t kernel, int64_t side, int64_t range[2]) {
  range[0] = start < 0 ? smaller((-start + dilation - 1) / dilation, kernel) : 0;
  range[1] = start < side ? smaller((side - start + dilation - 1) / dilation, kernel) : 0;
  if (range[1] < range[0]) range[1] = range[0];
}

/* What the sum of a window is divided by. Padding counts, but what ceil_mode adds beyond it does not. */
static float divisor_of(const operation *op, const tensor *in, int row, int column) {
  const int64_t top = (int64_t)row * op->stride[0] - op->padding[0];
  const int64_t left = (int64_t)column * op->stride[1] - op->padding[1];
  int64_t rows[2], columns[2];
  inside_of(top, 1, op->shape[2], in->rows, rows);
  inside_of(left, 1, op->shape[3], in->columns, columns);
  const int64_t counted = (smaller(top + op->shape[2], in->rows + op->padding[0]) - top) *
                          (smaller(left + op->shape[3], in->columns + op->padding[1]) - left);
  return (float)(op->count_padding ? counted : (rows[1] - rows[0]) * (columns[1] - columns[0]));
}

/* For each position of a block, and each lane. */
static const float *make_divisors(moon_model *model, const operation *op, const layout *out) {
  const tensor *in = &model->tensors[op->in[0]];
  const int lanes = model->kernels->lanes;
  float *divisors = take(&model->plans, (size_t)((int64_t)out->block[0] * out->block[1] * lanes), sizeof *divisors);
  for (int row = 0, i = 0; row < out->block[0]; row++)
    for (int column = 0; column < out->block[1]; column++)
      for (int lane = 0; lane < lanes; lane++, i++) {
        const int cell = out->grid[0] * out->grid[1] == 1 ? 0 : lane;
        const int y = cell / out->grid[1] * out->block[0] + row, x = cell % out->grid[1] * out->block[1] + column;
        divisors[i] = y < out->rows && x < out->columns ? divisor_of(op, in, y, x) : 1;
      }
  return divisors;
}

void plan_pool(moon_model *model, operation *op, int batch, bool fills_borders) {
  pool_plan *p = take(&model->plans, 1, sizeof *p);
  p->in = op->source[batch];
  p->is_copied = p->in != model->tensors[op->in[0]].layout[batch];
  p->fills_borders = fills_borders && !p->is_copied;
  if (op->kind == AVG_POOL) p->divisors = make_divisors(model, op, model->tensors[op->out].layout[batch]);
  op->pool[batch] = p;
  const int64_t size = p->is_copied ? p->in->size * model->kernels->bytes : 0;
  if (size > model->copy_size) model->copy_size = size;
}

static void pool_channel(const team *t, const operation *op, char *data, char *result) {
  const kernels *k = t->model->kernels;
  const pool_plan *p = op->pool[t->batch];
  const layout *in = p->in, *out = t->model->tensors[op->out].layout[t->batch];
  pooling job = {
      .in_row = in->pitch * op->stride[0],
      .in_step = op->stride[1],
      .out_row = out->pitch,
      .window_row = in->pitch * op->dilation[0],
      .window_step = op->dilation[1],
      .window_rows = op->shape[2],
      .window_columns = op->shape[3],
      .is_max = op->kind == MAX_POOL,
  };
  data += ((in->low[0] - op->padding[0]) * in->pitch + in->low[1] - op->padding[1]) * k->bytes;
  result += (out->low[0] * out->pitch + out->low[1]) * k->bytes;
  const int64_t window = (int64_t)op->shape[2] * op->shape[3];
  int height = out->block[0], width = out->block[1];
  if (window * height * width > PIECE) {
    height = 1;
    width = (int)smaller(larger(PIECE / window, 1), width);
  }
  for (int row = 0; row < out->block[0]; row += height)
    for (int column = 0; column < out->block[1] && !is_stopped(t->model); column += width) {
      job.rows = (int)smaller(height, out->block[0] - row);
      job.columns = (int)smaller(width, out->block[1] - column);
      const int64_t position = (int64_t)row * out->block[1] + column;
      k->pool(result + (row * job.out_row + column) * k->bytes, data + (row * job.in_row + column * job.in_step) * k->bytes,
              p->divisors ? p->divisors + position * k->lanes : NULL, &job);
    }
}

/* Few weights as lists, without zeros; or many as a matrix, if it is not too large. */
static void prepare_weights(moon_model *model, const operation *op, linear_plan *p) {
  const kernels *k = model->kernels;
  const size_t word = (size_t)(k->bytes / k->lanes);
  const sparse *rows = read_weights(&model->scratch, &model->file, op);
  const int64_t nonzeros = rows->start[rows->rows], size = p->stride * rows->columns;
  if (size > MAX_ELEMENTS || (double)nonzeros < DENSE * (double)size) {
    void *value = take(&model->plans, (size_t)nonzeros, word);
    k->convert(value, rows->value, nonzeros);
    p->rows = read_weights(&model->plans, &model->file, op); /* again, to keep them */
    p->value = value;
    return;
  }
  float *dense = take(&model->scratch, (size_t)size, sizeof *dense);
  for (int row = 0; row < rows->rows; row++)
    for (uint32_t i = rows->start[row]; i < rows->start[row + 1]; i++)
      dense[rows->index[i] * p->stride + row] = rows->value[i];
  void *converted = take(&model->plans, (size_t)size, word);
  k->convert(converted, dense, size);
  p->dense = converted;
}

void plan_linear(moon_model *model, operation *op, const operation *same) {
  const kernels *k = model->kernels;
  linear_plan *p = take(&model->plans, 1, sizeof *p);
  op->linear = p;
  if (same) *p = *same->linear;
  p->stride = (op->shape[0] + k->lanes - 1) / k->lanes * k->lanes;
  float *bias = take(&model->plans, (size_t)p->stride, sizeof *bias);
  if (op->bias) memcpy(bias, op->bias, (size_t)op->shape[0] * sizeof *bias);
  p->bias = bias;
  if (!same) prepare_weights(model, op, p);
  const int64_t needed = op->shape[1] * (int64_t)(k->bytes / k->lanes) + p->stride * 4 + 128;
  if (needed > model->copy_size) model->copy_size = needed;
}

/* One image: the product of a matrix and a vector. Its input and output have one value in each vector. */
static void linear(const team *t, const operation *op) {
  static const int32_t ZERO[1];
  const kernels *k = t->model->kernels;
  const linear_plan *p = op->linear;
  const layout *in = t->model->tensors[op->in[0]].layout[0], *out = t->model->tensors[op->out].layout[0];
  const int columns = op->shape[1];
  char *x = t->work->copy;
  float *y = (float *)(x + ((int64_t)columns * (k->bytes / k->lanes) + 63) / 64 * 64);
  const places packed = {1, ZERO, ZERO}, from = places_of(in, k->lanes), to = places_of(out, k->lanes);
  k->move(x, &packed, tensor_data(t, op->in[0]), &from, columns, 1, 1);
  int64_t first = share_of(p->stride / k->lanes, t->thread, t->threads) * k->lanes;
  int64_t last = share_of(p->stride / k->lanes, t->thread + 1, t->threads) * k->lanes;
  if (p->dense) {
    const char *weights = (const char *)p->dense + first * (k->bytes / k->lanes);
    k->linear(y + first, x, weights, p->bias + first, columns, p->stride, last - first);
  }
  last = smaller(last, op->shape[0]);
  for (int64_t row = first; !p->dense && row < last && !is_stopped(t->model); row += 64)
    k->linear_sparse(y, x, p->value, p->rows->start, p->rows->index, p->bias, row, smaller(row + 64, last));
  if (first >= last) return;
  char *result = tensor_data(t, op->out) + first * out->size * k->bytes;
  k->import(result, &to, y + first, &packed, (int)(last - first), 1, 1);
  if (op->act != NONE) k->activate(op->act, result, (last - first) * out->size);
}

/* The elements of a map become channels. */
static void flatten(const team *t, const operation *op) {
  const kernels *k = t->model->kernels;
  const tensor *in = &t->model->tensors[op->in[0]];
  const layout *source = in->layout[t->batch], *target = t->model->tensors[op->out].layout[t->batch];
  const int lanes = source->grid[0] * source->grid[1] == 1 ? k->lanes : 1; /* all images, or the first value */
  const int64_t word = k->bytes / k->lanes;
  char *to = tensor_data(t, op->out) + (target->at[0][0] + target->at[1][0]) * word;
  for (int c = 0; c < in->channels; c++) {
    const char *from = tensor_data(t, op->in[0]) + c * source->size * k->bytes;
    for (int row = 0; row < in->rows; row++)
      for (int column = 0; column < in->columns; column++, to += target->size * k->bytes)
        memcpy(to, from + (source->at[0][row] + source->at[1][column]) * word, (size_t)(lanes * word));
  }
}

static void concatenate(const team *t, const operation *op) {
  char *out = tensor_data(t, op->out);
  for (int i = 0; i < op->inputs; i++) {
    const tensor *in = &t->model->tensors[op->in[i]];
    const int64_t count = in->channels * in->layout[t->batch]->size * t->model->kernels->bytes;
    memcpy(out, tensor_data(t, op->in[i]), (size_t)count);
    out += count;
  }
}

static void compute_channel(const team *t, const operation *op, int c) {
  const kernels *k = t->model->kernels;
  const layout *in = t->model->tensors[op->in[0]].layout[t->batch];
  const layout *out = t->model->tensors[op->out].layout[t->batch];
  char *x = tensor_data(t, op->in[0]) + c * in->size * k->bytes, *y = tensor_data(t, op->out) + c * out->size * k->bytes;
  const char *other = op->inputs > 1 ? tensor_data(t, op->in[1]) : NULL;
  switch (op->kind) {
    case ADD: k->add(y, x, other + c * in->size * k->bytes, out->size); break;
    case MUL: {
      const layout *factor = t->model->tensors[op->in[1]].layout[t->batch];
      other += c * factor->size * k->bytes;
      if (factor == in) k->multiply(y, x, other, out->size);
      else k->scale(y, x, other + (factor->at[0][0] + factor->at[1][0]) * (k->bytes / k->lanes), t->batch, out->size);
      break;
    }
    case MAX_POOL: case AVG_POOL: {
      const pool_plan *p = op->pool[t->batch];
      const float outside = op->kind == MAX_POOL ? -INFINITY : 0;
      if (p->is_copied) copy_input(t, op, p->in, x = t->work->copy, outside, c, c + 1);
      if (p->fills_borders) k->fill_borders(x, p->in, outside);
      pool_channel(t, op, x, y);
      break;
    }
    case GLOBAL_AVG_POOL: case GLOBAL_DEVIATION: {
      const layout *order = t->model->tensors[op->in[0]].layout[0];
      k->average(y + (out->low[0] * out->pitch + out->low[1]) * k->bytes, x, in, order, op->kind == GLOBAL_DEVIATION);
      break;
    }
    case AFFINE: k->affine(y, x, op->scale[c], op->bias[c], out->size); break;
    case ACT: memcpy(y, x, (size_t)(out->size * k->bytes)); break;
    default: break;
  }
}

void compute(const team *t, const operation *op) {
  const kernels *k = t->model->kernels;
  const tensor *out = &t->model->tensors[op->out];
  const int64_t size = out->layout[t->batch]->size;
  if (is_stopped(t->model)) return;
  if (op->kind == LINEAR) {
    linear(t, op);
    return;
  }
  if (op->kind == CONCAT || op->kind == SOFTMAX || op->kind == FLATTEN) { /* rare and cheap: by one thread */
    if (t->thread) return;
    if (op->kind == CONCAT) concatenate(t, op);
    else if (op->kind == FLATTEN) flatten(t, op);
    else k->softmax(tensor_data(t, op->out), tensor_data(t, op->in[0]), out->channels, size, size);
    if (op->act != NONE) k->activate(op->act, tensor_data(t, op->out), out->channels * size);
    return;
  }
  const int from = share_of(out->channels, t->thread, t->threads), to = share_of(out->channels, t->thread + 1, t->threads);
  for (int c = from; c < to && !is_stopped(t->model); c++) {
    compute_channel(t, op, c);
    if (op->act != NONE) k->activate(op->act, tensor_data(t, op->out) + c * size * k->bytes, size);
  }
}
