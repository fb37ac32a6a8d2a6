/* Convolutions: which tiles are computed, in which order weights are read, who computes what.

Weights are read as they are in the filter: the offset from an output position to the input of a weight is the same for
all positions (layout.c). A tile of output positions is computed for all output channels, before the next one. If the
inputs of a tile do not fit into the L1 cache, they are divided into blocks of channels, and the sums wait in the output
between two blocks. Where a map has few positions, the weights of several outputs are read together; these have as many
weights as the longest list among them, and outputs are sorted so that few are added. */

#include <stdlib.h>
#include <string.h>

#include "model.h"

#define L1_CACHE 24000 /* bytes of input that a block may have */
#define FEWEST 16      /* weights of a list in a block, on average; a block loads and stores the sums */

static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* Vectors of the input that a tile reads of each channel. */
static int64_t input_of_tile(const operation *op, int64_t height, int64_t width) {
  return ((height - 1) * op->stride[0] + (int64_t)(op->shape[2] - 1) * op->dilation[0] + 1) *
         ((width - 1) * op->stride[1] + (int64_t)(op->shape[3] - 1) * op->dilation[1] + 1);
}

/* The tile with the fewest loads: of inputs, and two for each weight; among these, with the smallest input. */
static void choose_tile(const kernels *k, convolution_plan *p, const operation *op) {
  const int rows = p->out->block[0], columns = p->out->block[1], most = op->stride[1] > 2 ? 1 : MOST_COLUMNS;
  double best = 0;
  for (int height = 1; height <= smaller(rows, MOST_ROWS); height++)
    for (int width = 1; width <= smaller(columns, most) && width * height <= k->sums; width++) {
      const double tiles = (double)divide_up(rows, height) * (double)divide_up(columns, width);
      const double area = height * width;
      const double cost = (double)rows * columns + 2 * tiles + 0.1 * tiles * (double)input_of_tile(op, height, width);
      if (best && cost >= best) continue;
      best = cost;
      p->height = height;
      p->width = width;
      p->together = op->groups == 1 && op->shape[0] % TOGETHER == 0 && tiles == 1 && TOGETHER * area <= k->sums
                        ? TOGETHER
                        : 1;
    }
}

/* From an output position to the input of a weight, within its block, in vectors. */
static int64_t offset_of(const convolution_plan *p, const operation *op, int64_t index) {
  const int64_t area = (int64_t)op->shape[2] * op->shape[3], place = index % area;
  return index / area * p->in->size + place / op->shape[3] * op->dilation[0] * p->in->pitch +
         place % op->shape[3] * op->dilation[1];
}

static void choose_blocks(moon_model *model, convolution_plan *p, const operation *op, const sparse *weights) {
  const int channels = op->shape[1];
  const double per_channel = (double)weights->start[weights->rows] / weights->rows / channels;
  const int64_t bytes = input_of_tile(op, p->height, p->width) * model->kernels->bytes;
  int64_t block = L1_CACHE / bytes;
  if (p->together > 1) block = channels; /* lists of a block would differ more in their lengths */
  if (block < 1) block = 1;
  while (block < channels && (double)block * per_channel < FEWEST) block *= 2;
  const int64_t reach = offset_of(p, op, (int64_t)op->shape[2] * op->shape[3] - 1);
  if (reach > UINT16_MAX) fail(&model->memory, "the convolution \"%.80s\" is too large", op->weight);
  block = smaller(smaller(block, channels), 1 + (UINT16_MAX - reach) / p->in->size);
  p->blocks = (int)divide_up(channels, block);
  p->block_channels = (int)divide_up(channels, p->blocks);
  p->blocks = (int)divide_up(channels, p->block_channels);
}

typedef struct {
  uint32_t weights;
  uint16_t output;
} length;

static int compare_lengths(const void *a, const void *b) {
  const length *x = a, *y = b;
  if (x->weights != y->weights) return x->weights < y->weights ? -1 : 1;
  return x->output < y->output ? -1 : 1;
}

static const uint16_t *sort_outputs(moon_model *model, const sparse *weights) {
  length *lengths = take(&model->scratch, (size_t)weights->rows, sizeof *lengths);
  for (int row = 0; row < weights->rows; row++)
    lengths[row] = (length){weights->start[row + 1] - weights->start[row], (uint16_t)row};
  qsort(lengths, (size_t)weights->rows, sizeof *lengths, compare_lengths);
  uint16_t *order = take(&model->plans, (size_t)weights->rows, sizeof *order);
  for (int row = 0; row < weights->rows; row++) order[row] = lengths[row].output;
  return order;
}

/* Where the weights of each output and block begin. */
static uint32_t *find_blocks(moon_model *model, const convolution_plan *p, const sparse *weights, uint32_t block_size) {
  uint32_t *first = take(&model->scratch, (size_t)p->blocks * weights->rows + 1, sizeof *first);
  for (int row = 0; row < weights->rows; row++) {
    uint32_t i = weights->start[row];
    for (int block = 0; block < p->blocks; block++) {
      first[(int64_t)row * p->blocks + block] = i;
      while (i < weights->start[row + 1] && weights->index[i] / block_size == (uint32_t)block) i++;
    }
  }
  first[(int64_t)p->blocks * weights->rows] = weights->start[weights->rows];
  return first;
}

/* The lists in the order in which they are read; lists of outputs that are read together alternate. */
static void sort_weights(moon_model *model, convolution_plan *p, const operation *op, const sparse *weights) {
  const int area = op->shape[2] * op->shape[3], together = p->together;
  const uint32_t block_size = (uint32_t)(p->block_channels * area);
  const int64_t lists = (int64_t)p->blocks * p->lists;
  if (lists * together > MAX_ELEMENTS) fail(&model->memory, "the convolution \"%.80s\" is too large", op->weight);
  const uint32_t *first = find_blocks(model, p, weights, block_size);
  uint32_t *start = take(&model->plans, (size_t)lists + 1, sizeof *start);
  uint32_t *work = take(&model->plans, (size_t)p->lists + 1, sizeof *work);
  for (int64_t list = 0; list < lists; list++) {
    uint32_t longest = 0;
    for (int i = 0; i < together; i++) {
      const int64_t output = list % p->lists * together + i, row = p->order ? p->order[output] : output;
      const uint32_t *range = first + row * p->blocks + list / p->lists;
      if (range[1] - range[0] > longest) longest = range[1] - range[0];
    }
    if (start[list] + (uint64_t)longest > (uint64_t)(INT32_MAX / together))
      fail(&model->memory, "weight \"%.80s\" is too large", op->weight);
    start[list + 1] = start[list] + longest;
    work[list % p->lists + 1] += longest;
  }
  for (int list = 0; list < p->lists; list++) work[list + 1] += work[list] + 1; /* an empty list is some work, too */
  const size_t total = (size_t)start[lists] * (size_t)together;
  uint16_t *offset = take(&model->plans, total, sizeof *offset);
  float *value = take(&model->scratch, total, sizeof *value);
  for (int64_t list = 0; list < lists; list++)
    for (int i = 0; i < together; i++) {
      const int64_t output = list % p->lists * together + i, row = p->order ? p->order[output] : output;
      const uint32_t *range = first + row * p->blocks + list / p->lists, count = range[1] - range[0];
      for (uint32_t n = 0; n < start[list + 1] - start[list]; n++) {
        /* What is added to make lists equally long is the last weight again, times zero. */
        const uint32_t from = range[0] + (n < count || !count ? n : count - 1);
        const uint32_t place = count ? weights->index[from] % block_size : 0;
        const size_t to = ((size_t)start[list] + n) * (size_t)together + (size_t)i;
        offset[to] = (uint16_t)offset_of(p, op, place);
        value[to] = n < count ? weights->value[from] : 0;
      }
    }
  void *values = take(&model->plans, total, (size_t)(model->kernels->bytes / model->kernels->lanes));
  model->kernels->convert(values, value, (int64_t)total);
  p->start = start;
  p->work = work;
  p->offset = offset;
  p->value = values;
}

void plan_convolution(moon_model *model, operation *op, const operation *same, int batch, bool fills_borders) {
  const tensor *in = &model->tensors[op->in[0]], *out = &model->tensors[op->out];
  convolution_plan *p = take(&model->plans, 1, sizeof *p);
  op->plan[batch] = p;
  if (same) {
    *p = *same->plan[batch];
    p->fills_borders = fills_borders && !p->is_copied;
    return;
  }
  const sparse *weights = read_weights(&model->scratch, &model->file, op);
  p->in = op->source[batch];
  p->out = out->layout[batch];
  p->is_copied = p->in != in->layout[batch];
  p->fills_borders = fills_borders && !p->is_copied;
  p->corner = (p->in->low[0] - op->padding[0]) * p->in->pitch + p->in->low[1] - op->padding[1];
  choose_tile(model->kernels, p, op);
  p->lists = op->shape[0] / p->together;
  if (p->together > 1) p->order = sort_outputs(model, weights);
  choose_blocks(model, p, op, weights);
  sort_weights(model, p, op, weights);
  const int64_t size = p->is_copied ? p->in->size * in->channels * model->kernels->bytes : 0;
  if (size > model->copy_size) model->copy_size = size;
}

/* The first list before which there are `wanted` weights. */
static int find_list(const convolution_plan *p, uint64_t wanted) {
  int low = 0, high = p->lists;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (p->work[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low;
}

/* The first list of a thread, so that all have about as many weights. */
static int share_lists(const convolution_plan *p, int thread, int threads) {
  return find_list(p, (uint64_t)p->work[p->lists] * (uint64_t)thread / (uint64_t)threads);
}

/* Compute the lists [from, to), tile by tile. */
static void multiply(const team *t, const operation *op, const convolution_plan *p, const char *in, int from, int to) {
  const kernels *k = t->model->kernels;
  const layout *o = p->out;
  const int64_t first = o->low[0] * o->pitch + o->low[1];
  tile job = {
      .bias = op->bias,
      .start = p->start,
      .offset = p->offset,
      .value = p->value,
      .order = p->order,
      .in_row = p->in->pitch * op->stride[0],
      .out_row = o->pitch,
      .block_size = p->block_channels * p->in->size,
      .group_size = op->shape[1] * p->in->size,
      .out_size = o->size,
      .blocks = p->blocks,
      .lists = p->lists,
      .outputs_per_group = op->shape[0] / op->groups,
      .act = op->act,
  };
  const char *residual = op->residual < 0 ? NULL : tensor_data(t, op->residual);
  for (int row = 0; row < o->block[0]; row += p->height)
    for (int column = 0; column < o->block[1]; column += p->width) {
      const int height = (int)smaller(p->height, o->block[0] - row), width = (int)smaller(p->width, o->block[1] - column);
      const int64_t at = first + row * o->pitch + column;
      job.in = in + (p->corner + row * job.in_row + (int64_t)column * op->stride[1]) * k->bytes;
      job.out = tensor_data(t, op->out) + at * k->bytes;
      job.residual = residual ? residual + at * k->bytes : NULL;
      const convolve_function(*table)[MOST_ROWS][MOST_COLUMNS] =
          p->together > 1 ? k->convolve_together : k->convolve;
      const convolve_function function = table[op->stride[1] == 2][height - 1][width - 1];
      for (int begin = from, end; begin < to && !is_stopped(t->model); begin = end) {
        const bool is_large = p->work[to] - p->work[begin] > PIECE / MOST_COLUMNS;
        end = is_large ? (int)smaller(find_list(p, (uint64_t)p->work[begin] + PIECE / MOST_COLUMNS), to) : to;
        function(&job, begin, end);
      }
    }
}

void convolve(const team *t, const operation *op) {
  const convolution_plan *p = op->plan[t->batch];
  const kernels *k = t->model->kernels;
  const int channels = t->model->tensors[op->in[0]].channels;
  const int from = share_of(channels, t->thread, t->threads), to = share_of(channels, t->thread + 1, t->threads);
  char *in = p->is_copied ? t->shared : tensor_data(t, op->in[0]);
  if (p->is_copied) copy_input(t, op, p->in, in + from * p->in->size * k->bytes, 0, from, to);
  if (p->fills_borders)
    for (int c = from; c < to && !is_stopped(t->model); c++) k->fill_borders(in + c * p->in->size * k->bytes, p->in, 0);
  if (p->is_copied || p->fills_borders) wait_for_team(t);
  multiply(t, op, p, in, share_lists(p, t->thread, t->threads), share_lists(p, t->thread + 1, t->threads));
}
