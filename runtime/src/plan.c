/* Decides how a network is computed: which operations are fused, where feature maps are, which kernels are used. */

#include "model.h"

#define DENSE 0.3  /* density from which the product of a matrix and a vector does not skip zeros */
#define NARROW 2   /* vectors: a feature map with no more is computed with one lane per image in batches */

/* The number of operations that read a tensor; an output of the network counts as one. */
static int readers(const moon_model *model, int index) {
  int count = 0;
  for (int i = 0; i < model->count; i++)
    for (int j = 0; j < model->operations[i].inputs; j++)
      count += model->tensors[model->operations[i].in[j]].same_as == index;
  for (int i = 0; i < model->output_count; i++) count += model->tensors[model->outputs[i].tensor].same_as == index;
  return count;
}

static int last_reader(const moon_model *model, int index) {
  for (int i = model->count - 1; i > model->tensors[index].first; i--) {
    const operation *op = &model->operations[i];
    if (op->kind == FUSED) continue;
    if (op->residual >= 0 && model->tensors[op->residual].same_as == index) return i;
    for (int j = 0; j < op->inputs; j++)
      if (model->tensors[op->in[j]].same_as == index) return i;
  }
  return model->tensors[index].first;
}

/* A sum whose later term is a convolution becomes part of it. */
static void fuse_sums(moon_model *model) {
  for (int i = 0; i < model->count; i++) {
    operation *sum = &model->operations[i];
    if (sum->kind != ADD || sum->in[0] == sum->in[1]) continue;
    const tensor *a = &model->tensors[sum->in[0]], *b = &model->tensors[sum->in[1]];
    const int later = a->first > b->first ? 0 : 1;
    const int first = model->tensors[sum->in[later]].first;
    operation *conv = first < 0 ? NULL : &model->operations[first];
    if (!conv || conv->kind != CONV || conv->out != sum->in[later] || conv->act != NONE || conv->residual >= 0 ||
        readers(model, conv->out) != 1)
      continue;
    const int other = model->tensors[sum->in[1 - later]].same_as;
    conv->residual = sum->in[1 - later];
    conv->act = sum->act;
    conv->out = sum->out;
    sum->kind = FUSED;
    model->tensors[sum->out].first = first;
    if (model->tensors[other].last == i) model->tensors[other].last = last_reader(model, other);
    model->tensors[sum->in[later]].defined = false;
  }
}

/* Where an operation of one image would leave most lanes empty, batches have one lane for each image. */
static int find_cut(const moon_model *model) {
  int cut = model->count;
  while (cut > 0 && positions(&model->tensors[model->operations[cut - 1].out]) <= NARROW * model->kernels->lanes) cut--;
  return cut;
}

static bool overlap(const tensor *a, const tensor *b) { return a->first <= b->last && b->first <= a->last; }

/* First fit: tensors that live at the same time get different memory. */
static void place_tensors(moon_model *model, int batch, int unit, int64_t slack) {
  const int lanes = model->kernels->lanes;
  const int begin = batch ? model->cut : -1;
  int64_t end = slack;
  int *placed = take(&model->scratch, (size_t)model->tensor_count, sizeof *placed), count = 0;
  for (int i = 0; i < model->tensor_count; i++) {
    tensor *t = &model->tensors[i];
    if (!t->defined || t->same_as != i || t->last < begin) continue;
    const int64_t size = (elements(t) * unit + lanes - 1) / lanes * lanes;
    int64_t at = slack;
    for (bool is_free = false; !is_free;) {
      is_free = true;
      for (int j = 0; j < count; j++) {
        const tensor *other = &model->tensors[placed[j]];
        const int64_t other_end = other->at[batch] + (elements(other) * unit + lanes - 1) / lanes * lanes;
        if (overlap(t, other) && at < other_end && other->at[batch] < at + size) {
          at = other_end;
          is_free = false;
        }
      }
    }
    t->at[batch] = at;
    placed[count++] = i;
    if (at + size > end) end = at + size;
  }
  model->arena_size[batch] = end + slack;
  if (model->arena_size[batch] > MAX_ARENA) fail(&model->memory, "the network needs too much memory");
}

static void plan_linear(moon_model *model, operation *op) {
  sparse *rows = read_weights(&model->memory, &model->file, op);
  op->rows = rows;
  const int64_t size = (int64_t)rows->rows * rows->columns;
  if (size > MAX_ELEMENTS || rows->start[rows->rows] < DENSE * (double)size) return;
  float *dense = take(&model->memory, (size_t)size, sizeof *dense);
  for (int row = 0; row < rows->rows; row++)
    for (uint32_t i = rows->start[row]; i < rows->start[row + 1]; i++)
      dense[(int64_t)row * rows->columns + rows->index[i]] = rows->value[i];
  op->dense = dense;
}

void make_plan(moon_model *model, int batch) {
  const int unit = batch ? model->kernels->lanes : 1;
  int64_t slack = 64; /* floats before and after the feature maps that a kernel may read, but does not use */
  if (!batch) {
    fuse_sums(model);
    model->cut = find_cut(model);
  }
  for (int i = batch ? model->cut : 0; i < model->count; i++) {
    operation *op = &model->operations[i];
    if (op->kind == LINEAR && !batch) plan_linear(model, op);
    if (op->kind != CONV && (op->kind != LINEAR || !batch)) continue;
    const tensor *in = &model->tensors[op->in[0]];
    const sparse *weights = read_weights(&model->scratch, &model->file, op);
    convolution_plan *p = op->plan[batch] = plan_convolution(model, op, weights, unit);
    release(&model->scratch);
    const int64_t size = packed_size(p, in->channels) + 4 * unit + 64;
    if (size > MAX_ARENA) fail(&model->memory, "the convolution \"%.80s\" needs too much memory", op->weight);
    if (size > model->packed_size) model->packed_size = size;
    /* What is outside of the image is read, too, and then set to zero. */
    const int64_t reach_rows = p->mask ? (int64_t)p->phase_rows + op->padding[0] + 2 : 1;
    const int64_t reach = reach_rows * in->columns + op->padding[1] + (int64_t)p->copies * op->dilation[1] +
                          (int64_t)p->columns * op->stride[1] + 64;
    if (reach > slack) slack = (reach + 15) / 16 * 16;
  }
  place_tensors(model, batch, unit, slack);
  release(&model->scratch);
}
