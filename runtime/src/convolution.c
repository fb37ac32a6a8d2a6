/* Convolutions: how the input is laid out, in which order weights are read, who computes what.

The input is packed so that a weight of the filter reads as many consecutive values as there are consecutive outputs:
there is one copy of each channel for each column of the filter, already shifted, strided and padded with zeros. (Vector
loads that begin in the middle of a cache line take twice as long, so the copies cost less than they save.) The rows of
the filter need no copies, as rows follow each other. Input rows with the same remainder modulo the stride are stored
together.

The output rows are divided into slabs, so that what is packed at once stays in the cache; the input channels of a slab
are divided into blocks that fit into the L1 cache while all outputs read them. */

#include <string.h>

#include "model.h"

#define L1_CACHE 24000 /* bytes of input that a block may have */
#define FEWEST 12      /* weights of an output in a block, on average; a block loads and stores the sums */

static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int smaller(int64_t a, int64_t b) { return (int)(a < b ? a : b); }

/* All ones where copy, row and column of the packed input are inside of the image. */
static const int32_t *make_mask(memory *m, const convolution_plan *p, const operation *op, const tensor *in,
                                int lanes) {
  const int rows = p->slabs * p->slab_rows + p->phase_rows - p->slab_rows;
  int32_t *mask = take(m, (size_t)(p->copies * p->mask_size + lanes), sizeof *mask);
  for (int copy = 0; copy < p->copies; copy++)
    for (int row = 0; row < rows; row++) {
      const int y = row - op->padding[0];
      int32_t *line = mask + copy * p->mask_size + (int64_t)row * p->columns;
      for (int column = 0; column < p->columns; column++) {
        const int x = column + copy * op->dilation[1] - op->padding[1];
        line[column] = y >= 0 && y < in->rows && x >= 0 && x < in->columns ? -1 : 0;
      }
    }
  return mask;
}

static void make_layout(moon_model *model, convolution_plan *p, const operation *op, const tensor *in,
                        const tensor *out) {
  const int lanes = model->kernels->lanes, largest = model->kernels->vectors * lanes;
  const bool is_plain = op->shape[2] * op->shape[3] == 1 && op->stride[0] * op->stride[1] == 1 &&
                        !op->padding[0] && !op->padding[1] && positions(in) <= UINT16_MAX;
  if (is_plain) { /* rows do not matter */
    p->rows = p->slab_rows = p->slabs = 1;
    p->columns = (int)positions(in);
    p->channel_size = p->columns;
    return;
  }
  p->packed = true;
  p->rows = out->rows;
  p->columns = out->columns;
  const int64_t fitting = largest / ((int64_t)p->columns * p->unit);
  p->slabs = (int)divide_up(p->rows, fitting > 1 ? fitting : 1);
  p->slab_rows = (int)divide_up(p->rows, p->slabs);
  p->slabs = (int)divide_up(p->rows, p->slab_rows);
  const int64_t reach = (int64_t)(op->shape[2] - 1) * op->dilation[0];
  p->copies = op->shape[3];
  p->phases = smaller(op->stride[0], reach + 1);
  p->phase_rows = (int)(p->slab_rows + reach / op->stride[0]);
  p->copy_size = (int64_t)p->phases * p->phase_rows * p->columns;
  if (p->unit == 1) p->copy_size = divide_up(p->copy_size, lanes) * lanes;
  p->channel_size = p->copies * p->copy_size;
  if (p->channel_size > UINT16_MAX) fail(&model->memory, "the convolution \"%.80s\" is too large", op->weight);
  const int64_t mask_rows = (int64_t)(p->slabs - 1) * p->slab_rows + p->phase_rows;
  p->mask_size = divide_up(mask_rows * p->columns, lanes) * lanes;
  if (p->unit == 1 && op->stride[0] == 1 && op->stride[1] == 1 && in->columns == out->columns &&
      p->mask_size * p->copies < MAX_ELEMENTS / 16)
    p->mask = make_mask(&model->memory, p, op, in, lanes);
}

/* From an output position to the input of a weight, in positions, within its block. */
static int64_t offset_of(const convolution_plan *p, const operation *op, uint32_t index) {
  const int area = op->shape[2] * op->shape[3], channel = (int)(index / (uint32_t)area);
  const int row = (int)(index % (uint32_t)area) / op->shape[3] * op->dilation[0];
  const int column = (int)(index % (uint32_t)area) % op->shape[3];
  const int64_t line = p->packed ? (int64_t)row % op->stride[0] * p->phase_rows + row / op->stride[0] : 0;
  return channel * p->channel_size + column * p->copy_size + line * p->columns;
}

static void sort_weights(moon_model *model, convolution_plan *p, const operation *op, const sparse *weights) {
  memory *m = &model->memory;
  const uint32_t total = weights->start[weights->rows];
  const uint32_t block_size = (uint32_t)(p->block_channels * op->shape[2] * op->shape[3]);
  const int64_t lists = (int64_t)p->blocks * weights->rows;
  if (lists > MAX_ELEMENTS) fail(m, "the convolution \"%.80s\" is too large", op->weight);
  uint32_t *start = take(m, (size_t)lists + 1, sizeof *start);
  uint16_t *offset = take(m, total, sizeof *offset);
  float *value = take(m, total, sizeof *value);
  uint16_t *offsets = take(&model->scratch, block_size, sizeof *offsets); /* of all places in a block */
  for (uint32_t i = 0; i < block_size; i++) offsets[i] = (uint16_t)offset_of(p, op, i);
  for (int row = 0; row < weights->rows; row++)
    for (uint32_t i = weights->start[row]; i < weights->start[row + 1]; i++)
      start[(int64_t)(weights->index[i] / block_size) * weights->rows + row + 1]++;
  for (int64_t i = 0; i < lists; i++) start[i + 1] += start[i];
  for (int row = 0; row < weights->rows; row++) {
    uint32_t i = weights->start[row];
    for (int block = 0; block < p->blocks; block++) {
      const int64_t list = (int64_t)block * weights->rows + row;
      for (uint32_t n = start[list]; n < start[list + 1]; n++, i++) {
        offset[n] = offsets[weights->index[i] - (uint32_t)block * block_size];
        value[n] = weights->value[i];
      }
    }
  }
  p->start = start;
  p->offset = offset;
  p->value = value;
}

convolution_plan *plan_convolution(moon_model *model, const operation *op, const sparse *weights, int unit) {
  const tensor *in = &model->tensors[op->in[0]], *out = &model->tensors[op->out];
  convolution_plan *p = take(&model->memory, 1, sizeof *p);
  p->unit = unit;
  make_layout(model, p, op, in, out);
  const int channels = op->shape[1];
  const double per_channel = (double)weights->start[weights->rows] / weights->rows / channels;
  int64_t block = L1_CACHE / (p->channel_size * unit * (int64_t)sizeof(float));
  if (block < 1) block = 1;
  while (block < channels && (double)block * per_channel < FEWEST) block *= 2;
  block = smaller(smaller(block, channels), UINT16_MAX / p->channel_size);
  p->blocks = (int)divide_up(channels, block);
  p->block_channels = (int)divide_up(channels, p->blocks);
  p->blocks = (int)divide_up(channels, p->block_channels);
  sort_weights(model, p, op, weights);
  return p;
}

int64_t packed_size(const convolution_plan *p, int channels) {
  return p->packed ? p->channel_size * channels * p->unit : 0;
}

/* Which of `count` strided positions that begin at `start` are inside of an image of `side` rows or columns. */
static void inside_of(int64_t start, int64_t step, int64_t side, int64_t count, int64_t range[2]) {
  range[0] = start >= 0 ? 0 : smaller(divide_up(-start, step), count);
  range[1] = side > start ? smaller(divide_up(side - start, step), count) : 0;
  if (range[1] < range[0]) range[1] = range[0];
}

/* One phase of one copy of channels [from, to). Channels are the inner loop, as divisions take longer than rows. */
static void pack_phase(const team *t, const operation *op, const convolution_plan *p, float *packed, int64_t y,
                       int64_t x, int from, int to) {
  const tensor *in = &t->model->tensors[op->in[0]];
  const int64_t unit = p->unit, line = p->columns * unit;
  int64_t rows[2], columns[2];
  inside_of(y, op->stride[0], in->rows, p->phase_rows, rows);
  inside_of(x, op->stride[1], in->columns, p->columns, columns);
  const rows_to_copy job = {rows[1] - rows[0], p->columns, columns[0], columns[1], op->stride[1],
                            (int64_t)op->stride[0] * in->columns * unit, p->unit};
  const float *image = tensor_data(t, op->in[0]) + ((y + rows[0] * op->stride[0]) * in->columns + x) * unit;
  for (int channel = from; channel < to; channel++) {
    float *target = packed + channel * p->channel_size * unit;
    if (rows[0]) memset(target, 0, (size_t)(rows[0] * line) * sizeof *target);
    if (job.rows) t->model->kernels->copy_rows(target + rows[0] * line, image + channel * positions(in) * unit, &job);
    if (rows[1] < p->phase_rows)
      memset(target + rows[1] * line, 0, (size_t)((p->phase_rows - rows[1]) * line) * sizeof *target);
  }
}

static void pack_masked(const team *t, const operation *op, const convolution_plan *p, float *packed, int64_t y,
                        int from, int to) {
  const tensor *in = &t->model->tensors[op->in[0]];
  const float *image = tensor_data(t, op->in[0]) + y * in->columns - op->padding[1];
  const int32_t *mask = p->mask + (y + op->padding[0]) * p->columns;
  for (int channel = from; channel < to; channel++)
    for (int copy = 0; copy < p->copies; copy++)
      t->model->kernels->copy_masked(packed + channel * p->channel_size + copy * p->copy_size,
                                     image + channel * positions(in) + (int64_t)copy * op->dilation[1],
                                     mask + copy * p->mask_size, (int64_t)p->phase_rows * p->columns);
}

/* Pack channels [from, to) of the input of a slab. */
static void pack(const team *t, const operation *op, const convolution_plan *p, float *packed, int slab, int from,
                 int to) {
  const int64_t y = (int64_t)slab * p->slab_rows * op->stride[0] - op->padding[0];
  if (p->mask) {
    pack_masked(t, op, p, packed, y, from, to);
    return;
  }
  for (int copy = 0; copy < p->copies; copy++)
    for (int phase = 0; phase < p->phases; phase++) {
      float *target = packed + (copy * p->copy_size + (int64_t)phase * p->phase_rows * p->columns) * p->unit;
      pack_phase(t, op, p, target, y + phase, (int64_t)copy * op->dilation[1] - op->padding[1], from, to);
    }
}

/* Compute outputs [from, to) of a slab, tile by tile. */
static void multiply(const team *t, const operation *op, const convolution_plan *p, const float *in, int slab, int from,
                     int to) {
  const kernels *k = t->model->kernels;
  const int64_t row = (int64_t)slab * p->slab_rows, start = row * p->columns * p->unit;
  const int64_t floats = smaller(p->slab_rows, p->rows - row) * (int64_t)p->columns * p->unit;
  const int tiles = (int)divide_up(divide_up(floats, k->lanes), k->vectors);
  const int64_t size = divide_up(divide_up(floats, k->lanes), tiles) * k->lanes;
  for (int64_t at = 0; at < floats; at += size) {
    const int64_t valid = floats - at < size ? floats - at : size;
    const tile job = {
        .in = in + at,
        .bias = op->bias,
        .residual = op->residual < 0 ? NULL : tensor_data(t, op->residual) + start + at,
        .out = tensor_data(t, op->out) + start + at,
        .start = p->start,
        .offset = p->offset,
        .value = p->value,
        .block_size = p->block_channels * p->channel_size * p->unit,
        .group_size = op->shape[1] * p->channel_size * p->unit,
        .out_size = (int64_t)p->rows * p->columns * p->unit,
        .valid = valid,
        .blocks = p->blocks,
        .outputs = op->shape[0],
        .outputs_per_group = op->shape[0] / op->groups,
        .act = op->act,
    };
    k->convolve[p->unit > 1][divide_up(valid, k->lanes)](&job, from, to);
  }
}

/* Share `count` things: the first that belongs to `thread`. */
static int share(int64_t count, int thread, int threads) { return (int)(count * thread / threads); }

void convolve(const team *t, const operation *op) {
  const convolution_plan *p = op->plan[t->batch];
  const int channels = t->model->tensors[op->in[0]].channels, outputs = op->shape[0];
  if (p->packed && (p->slabs % t->threads == 0 || p->slabs >= 4 * t->threads)) { /* each thread has its own slabs */
    for (int slab = share(p->slabs, t->thread, t->threads); slab < share(p->slabs, t->thread + 1, t->threads); slab++) {
      pack(t, op, p, t->work->packed, slab, 0, channels);
      multiply(t, op, p, t->work->packed, slab, 0, outputs);
    }
    return;
  }
  const int from = share(outputs, t->thread, t->threads), to = share(outputs, t->thread + 1, t->threads);
  for (int slab = 0; slab < p->slabs; slab++) { /* all threads share each slab */
    if (p->packed) {
      pack(t, op, p, t->shared, slab, share(channels, t->thread, t->threads),
           share(channels, t->thread + 1, t->threads));
      wait_for_team(t);
    }
    multiply(t, op, p, p->packed ? t->shared : tensor_data(t, op->in[0]), slab, from, to);
    if (slab + 1 < p->slabs) wait_for_team(t);
  }
}
