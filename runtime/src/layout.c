/* Where the values of a feature map are.

A vector holds one position of a map for as many blocks of the image as it has lanes: with 16 lanes a map of 32 x 32
is a grid of 4 x 4 blocks of 8 x 8 positions, and is stored as 8 x 8 vectors. In batches the lanes are images instead,
and the block is the whole map. Either way a weight of a filter reads whole vectors wherever it is in the filter, and
strides cost nothing.

A block is stored with a border, as wide as the filters that read it need. In the border is what the neighbouring
blocks have there, i.e. a vector of this map with its lanes moved, or zeros outside of the image. Where the grid does
not divide the map, the last blocks have positions outside of the image; these become zeros as well.

All maps with the same rows and columns have the same layout, so that element-wise operations need not look at it. */

#include <string.h>

#include "model.h"

static int divide_up(int64_t a, int64_t b) { return (int)((a + b - 1) / b); }
static int larger(int a, int b) { return a > b ? a : b; }

/* Blocks as near to squares as possible, unless another grid leaves far fewer lanes empty. */
static void choose_grid(layout *l, int lanes) {
  int best = 1;
  while (best * best * 4 <= lanes) best *= 2;
  int64_t fewest = (int64_t)divide_up(l->rows, best) * divide_up(l->columns, lanes / best);
  for (int rows = 1; rows <= lanes; rows *= 2) {
    const int64_t vectors = (int64_t)divide_up(l->rows, rows) * divide_up(l->columns, lanes / rows);
    if (vectors * 5 < fewest * 4) best = rows, fewest = vectors;
  }
  l->grid[0] = best;
  l->grid[1] = lanes / best;
}

static layout *find_layout(moon_model *model, layout *all, int *count, const tensor *t, int batch) {
  for (int i = 0; i < *count; i++)
    if (all[i].rows == t->rows && all[i].columns == t->columns) return &all[i];
  layout *l = &all[(*count)++];
  *l = (layout){.rows = t->rows, .columns = t->columns, .grid = {1, 1}};
  if (!batch) choose_grid(l, model->kernels->lanes);
  l->block[0] = divide_up(t->rows, l->grid[0]);
  l->block[1] = divide_up(t->columns, l->grid[1]);
  return l;
}

/* Blocks of the input must begin where the blocks of the output need them. */
static bool fits(const operation *op, const layout *in, const layout *out) {
  for (int axis = 0; axis < 2; axis++)
    if (in->grid[axis] != out->grid[axis] ||
        (in->grid[axis] > 1 && in->block[axis] != (int64_t)op->stride[axis] * out->block[axis]))
      return false;
  return true;
}

/* How far a filter reads beyond the block of the input. */
static void need_borders(const operation *op, layout *in, const layout *out) {
  for (int axis = 0; axis < 2; axis++) {
    const int64_t last = (int64_t)(out->block[axis] - 1) * op->stride[axis] - op->padding[axis] +
                         (int64_t)(op->shape[2 + axis] - 1) * op->dilation[axis];
    const int64_t beyond = last - (in->block[axis] - 1);
    if (op->padding[axis] > in->low[axis]) in->low[axis] = op->padding[axis];
    if (beyond > in->high[axis]) in->high[axis] = (int)beyond;
  }
}

/* An odd number of vectors, so that channels do not compete for the same lines of the cache. */
static void measure(moon_model *model, layout *l) {
  l->pitch = (int64_t)l->low[1] + l->block[1] + l->high[1];
  l->size = l->pitch * ((int64_t)l->low[0] + l->block[0] + l->high[0]) | 1;
  if (l->size * model->kernels->bytes > MAX_CHANNEL) fail(&model->memory, "a feature map with its padding is too large");
}

static void place_elements(moon_model *model, layout *l) {
  const int lanes = model->kernels->lanes;
  const int64_t step[2] = {l->pitch * lanes, lanes};
  for (int axis = 0; axis < 2; axis++) {
    const int side = axis ? l->columns : l->rows;
    int32_t *at = take(&model->plans, (size_t)side, sizeof *at), *plain = take(&model->plans, (size_t)side, sizeof *at);
    for (int i = 0; i < side; i++) {
      at[i] = (int32_t)((i % l->block[axis] + l->low[axis]) * step[axis] +
                        i / l->block[axis] * (axis ? 1 : l->grid[1]));
      plain[i] = axis ? i : i * l->columns;
    }
    l->at[axis] = at;
    l->plain[axis] = plain;
  }
}

static int remainder_of(int a, int b) { return (a % b + b) % b; }

/* The border at row and column of a block. */
static void make_border(moon_model *model, const layout *l, int row, int column, border *b) {
  const int lanes = model->kernels->lanes, word = model->kernels->bytes / lanes;
  const int source[2] = {remainder_of(row, l->block[0]), remainder_of(column, l->block[1])};
  int32_t moved[64] = {0}, mask[64] = {0};
  int valid = 0;
  const int cells = l->grid[0] * l->grid[1];
  for (int lane = 0; lane < cells; lane++) {
    const int y = lane / l->grid[1] * l->block[0] + row, x = lane % l->grid[1] * l->block[1] + column;
    if (y < 0 || y >= l->rows || x < 0 || x >= l->columns) continue;
    moved[lane] = y / l->block[0] * l->grid[1] + x / l->block[1];
    mask[lane] = -1;
    valid++;
  }
  b->to = (int32_t)((row + l->low[0]) * l->pitch + column + l->low[1]);
  b->from = valid ? (int32_t)((source[0] + l->low[0]) * l->pitch + source[1] + l->low[1]) : -1;
  if (!valid) return;
  char *words = take(&model->plans, 2, (size_t)model->kernels->bytes);
  for (int lane = 0; lane < lanes; lane++) {
    const int16_t halves[2] = {(int16_t)moved[lane], (int16_t)mask[lane]};
    const int32_t singles[2] = {moved[lane], mask[lane]};
    for (int i = 0; i < 2; i++)
      memcpy(words + i * model->kernels->bytes + lane * word, word == 2 ? (const void *)&halves[i] : &singles[i],
             (size_t)word);
  }
  b->lanes = words;
}

static void make_borders(moon_model *model, layout *l) {
  /* The rows and columns of a block that are inside of the image in every block: nothing to do there. */
  const int rows = larger(l->rows - (l->grid[0] - 1) * l->block[0], 0);
  const int columns = larger(l->columns - (l->grid[1] - 1) * l->block[1], 0);
  border *borders = take(&model->plans, (size_t)(l->size - (int64_t)rows * columns), sizeof *borders);
  for (int row = -l->low[0]; row < l->block[0] + l->high[0]; row++)
    for (int column = -l->low[1]; column < l->block[1] + l->high[1]; column++) {
      if (row >= 0 && row < rows && column == 0) column = columns;
      if (column < l->block[1] + l->high[1]) make_border(model, l, row, column, &borders[l->border_count++]);
    }
  l->borders = borders;
}

/* That of the input if it fits. */
static const layout *input_layout(moon_model *model, const operation *op, int batch) {
  const tensor *in = &model->tensors[op->in[0]];
  const layout *out = model->tensors[op->out].layout[batch];
  if (fits(op, in->layout[batch], out)) return in->layout[batch];
  layout *l = take(&model->plans, 1, sizeof *l);
  *l = (layout){.rows = in->rows, .columns = in->columns};
  for (int axis = 0; axis < 2; axis++) {
    l->grid[axis] = out->grid[axis];
    const int64_t block = (int64_t)op->stride[axis] * out->block[axis];
    if (block > MAX_SIDE) fail(&model->memory, "a feature map with its padding is too large");
    l->block[axis] = (int)block;
  }
  need_borders(op, l, out);
  measure(model, l);
  for (int axis = 0; axis < 2; axis++) { /* of the rows and columns of a block with its border */
    const int side = l->low[axis] + l->block[axis] + l->high[axis];
    int32_t *at = take(&model->plans, (size_t)side, sizeof *at);
    for (int i = 0; i < side; i++) at[i] = (int32_t)(i * (axis ? 1 : l->pitch) * model->kernels->lanes);
    l->at[axis] = at;
  }
  return l;
}

static bool has_filter(const operation *op, int batch) {
  return op->kind == CONV || op->kind == MAX_POOL || op->kind == AVG_POOL || (op->kind == LINEAR && batch);
}

void make_layouts(moon_model *model, int batch) {
  layout *all = take(&model->plans, (size_t)model->tensor_count, sizeof *all);
  layout **of = take(&model->scratch, (size_t)model->tensor_count, sizeof *of);
  int count = 0;
  for (int i = 0; i < model->tensor_count; i++)
    if (model->tensors[i].defined)
      model->tensors[i].layout[batch] = of[i] = find_layout(model, all, &count, &model->tensors[i], batch);
  for (int i = batch ? model->cut : 0; i < model->count; i++) {
    const operation *op = &model->operations[i];
    if (!has_filter(op, batch)) continue;
    layout *in = of[op->in[0]];
    const layout *out = of[op->out];
    if (fits(op, in, out)) need_borders(op, in, out);
  }
  for (int i = 0; i < count; i++) {
    measure(model, &all[i]);
    place_elements(model, &all[i]);
    make_borders(model, &all[i]);
  }
  for (int i = batch ? model->cut : 0; i < model->count; i++) {
    operation *op = &model->operations[i];
    if (has_filter(op, batch)) op->source[batch] = input_layout(model, op, batch);
  }
}

places places_of(const layout *l, int lanes) { return (places){l->size * lanes, l->at[0], l->at[1]}; }

/* The part of a cell with its border that is inside of the image, along one axis. */
typedef struct {
  int64_t begin, size, skipped; /* skipped: positions of the border before it */
} extent;

static extent find_extent(const layout *l, int axis, int place, int side) {
  const int64_t first = (int64_t)place * l->block[axis] - l->low[axis];
  const int64_t end = first + l->low[axis] + l->block[axis] + l->high[axis];
  const int64_t begin = first < 0 ? 0 : first;
  return (extent){begin, (end < side ? end : side) - begin, begin - first};
}

/* Cell by cell with its border: each position has values of several blocks of the input's own layout. */
void copy_input(const team *t, const operation *op, const layout *target, char *copy, float outside, int from, int to) {
  const kernels *k = t->model->kernels;
  const tensor *in = &t->model->tensors[op->in[0]];
  const layout *source = in->layout[t->batch];
  const char *data = tensor_data(t, op->in[0]);
  const bool is_large = target->size > PIECE / 16; /* else a look at each channel is enough */
  for (int c = from; c < to && !is_stopped(t->model); c++, copy += target->size * k->bytes) {
    /* All cells, while the channel is in the cache. */
    k->fill(copy, outside, target->size * k->lanes);
    for (int cell = 0; cell < target->grid[0] * target->grid[1]; cell++) {
      if (is_large && is_stopped(t->model)) return;
      const extent rows = find_extent(target, 0, cell / target->grid[1], in->rows);
      const extent columns = find_extent(target, 1, cell % target->grid[1], in->columns);
      if (rows.size <= 0 || columns.size <= 0) continue;
      const places y = {0, target->at[0] + rows.skipped, target->at[1] + columns.skipped};
      const places x = {0, source->at[0] + rows.begin, source->at[1] + columns.begin};
      k->move(copy + cell * (k->bytes / k->lanes), &y, data + c * source->size * k->bytes, &x, 1, (int)rows.size,
              (int)columns.size);
    }
  }
}
