/* Decides how a network is computed: which operations are fused, where feature maps are, what is prepared. */

#include <math.h>
#include <string.h>

#include "model.h"

#define TIME_OF_ELEMENT 10 /* in multiply-adds: to read, compare, activate or move one */
#define NARROW 2 /* vectors: a feature map with no more is computed with one lane per image in batches */

/* How many operations read each tensor; an output of the network counts as one. */
static const int *count_readers(moon_model *model) {
  int *counts = take(&model->scratch, (size_t)model->tensor_count, sizeof *counts);
  for (int i = 0; i < model->count; i++)
    for (int j = 0; j < model->operations[i].inputs; j++) counts[model->tensors[model->operations[i].in[j]].same_as]++;
  for (int i = 0; i < model->output_count; i++) counts[model->tensors[model->outputs[i].tensor].same_as]++;
  return counts;
}

/* The last operation before `end` that reads a tensor, or the one that writes it. */
static int last_reader(const moon_model *model, int index, int end) {
  for (int i = end - 1; i > model->tensors[index].first; i--) {
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
  const int *readers = count_readers(model);
  for (int i = 0; i < model->count; i++) {
    operation *sum = &model->operations[i];
    if (sum->kind != ADD || sum->in[0] == sum->in[1]) continue;
    const tensor *a = &model->tensors[sum->in[0]], *b = &model->tensors[sum->in[1]];
    const int later = a->first > b->first ? 0 : 1;
    const int first = model->tensors[sum->in[later]].first;
    operation *conv = first < 0 ? NULL : &model->operations[first];
    if (!conv || conv->kind != CONV || conv->out != sum->in[later] || conv->act != NONE || conv->residual >= 0 ||
        readers[conv->out] != 1)
      continue;
    const int other = model->tensors[sum->in[1 - later]].same_as;
    conv->residual = sum->in[1 - later];
    conv->act = sum->act;
    conv->out = sum->out;
    sum->kind = FUSED;
    model->tensors[sum->out].first = first;
    if (model->tensors[other].last == i) model->tensors[other].last = last_reader(model, other, i);
    model->tensors[sum->in[later]].defined = false;
  }
}

/* A flattened map has its own memory, as its elements are stored as channels. */
static void separate_flattened(moon_model *model) {
  for (int i = 0; i < model->count; i++) {
    const operation *op = &model->operations[i];
    if (op->kind != FLATTEN) continue;
    const tensor *in = &model->tensors[op->in[0]];
    tensor *out = &model->tensors[op->out];
    out->last = model->tensors[in->same_as].last;
    out->same_as = positions(in) > 1 ? op->out : in->same_as;
  }
}

void simplify_graph(moon_model *model) {
  separate_flattened(model);
  fuse_sums(model);
}

/* Where an operation of one image would leave few vectors for each weight, batches have one lane for each image. */
static int find_cut(const moon_model *model) {
  int cut = model->count;
  while (cut > 0 && positions(&model->tensors[model->operations[cut - 1].out]) <= NARROW * model->kernels->lanes) cut--;
  return cut;
}

static bool overlap(const tensor *a, const tensor *b) { return a->first <= b->last && b->first <= a->last; }

static int64_t size_of(const tensor *t, int batch) { return t->channels * t->layout[batch]->size; }

/* First fit: tensors that live at the same time get different memory. */
static void place_tensors(moon_model *model, int batch) {
  const int begin = batch ? model->cut : -1;
  int64_t end = 0;
  int *placed = take(&model->scratch, (size_t)model->tensor_count, sizeof *placed), count = 0;
  for (int i = 0; i < model->tensor_count; i++) {
    tensor *t = &model->tensors[i];
    if (!t->defined || t->same_as != i || t->last < begin) continue;
    int64_t at = 0;
    for (bool is_free = false; !is_free;) {
      is_free = true;
      for (int j = 0; j < count; j++) {
        const tensor *other = &model->tensors[placed[j]];
        const int64_t other_end = other->at[batch] + size_of(other, batch);
        if (overlap(t, other) && at < other_end && other->at[batch] < at + size_of(t, batch)) {
          at = other_end;
          is_free = false;
        }
      }
    }
    t->at[batch] = at;
    placed[count++] = i;
    if (at + size_of(t, batch) > end) end = at + size_of(t, batch);
  }
  model->arena_size[batch] = end * model->kernels->bytes;
}

/* What one image takes, in multiply-adds, with those in lanes and borders that nobody needs. */
static double count_work(const moon_model *model) {
  double vectors = 0;
  for (int i = 0; i < model->count; i++) {
    const operation *op = &model->operations[i];
    const tensor *in = &model->tensors[op->in[0]], *out = &model->tensors[op->out];
    if (op->kind == FUSED || out->same_as != op->out) continue;
    const layout *source = op->source[0] ? op->source[0] : in->layout[0], *target = out->layout[0];
    const double block = (double)target->block[0] * target->block[1];
    const int copied = source == in->layout[0] ? 1 : model->kernels->lanes; /* a copy is made number by number */
    vectors += TIME_OF_ELEMENT * ((double)in->channels * (double)source->size * copied +
                                  (double)out->channels * (double)target->size);
    if (op->kind == CONV) vectors += (double)count_weights(&model->file, op) * block;
    if (op->kind == LINEAR) vectors += (double)count_weights(&model->file, op);
    if (op->kind == MAX_POOL || op->kind == AVG_POOL)
      vectors += TIME_OF_ELEMENT * out->channels * block * (double)op->shape[2] * (double)op->shape[3];
  }
  return vectors * model->kernels->lanes;
}

static void check_work(moon_model *model) {
  model->image_work = model->program_work + count_work(model);
  const double times = model->image_work / MAX_IMAGE_WORK, limit = model->budget.limit;
  if (times > limit)
    fail(&model->memory, "an image takes %.0f billion operations, more than the limit of %.0f billion; if you trust the "
         "file, load it with limit=%.0f", model->image_work / 1e9, limit * MAX_IMAGE_WORK / 1e9, ceil(times));
}

/* An earlier operation with the same weights in the same places: its plan is used again. NULL if there is none. */
static const operation *find_same(const moon_model *model, const operation *op, int batch) {
  const tensor *in = &model->tensors[op->in[0]], *out = &model->tensors[op->out];
  for (const operation *other = model->operations; other < op; other++)
    if ((other->plan[batch] || (!batch && other->linear)) && other->kind == op->kind && other->groups == op->groups &&
        !memcmp(other->shape, op->shape, sizeof op->shape) && !memcmp(other->stride, op->stride, sizeof op->stride) &&
        !memcmp(other->padding, op->padding, sizeof op->padding) &&
        !memcmp(other->dilation, op->dilation, sizeof op->dilation) &&
        model->tensors[other->in[0]].layout[batch] == in->layout[batch] &&
        model->tensors[other->out].layout[batch] == out->layout[batch] && !strcmp(other->weight, op->weight))
      return other;
  return NULL;
}

/* What is around the image in the memory of a tensor. */
typedef enum { NOTHING, ZEROS, LOWEST } surroundings;

static void plan_operation(moon_model *model, operation *op, int batch, surroundings *around) {
  const int in = op->in[0];
  surroundings *state = &around[model->tensors[in].same_as];
  if (op->kind == CONV || (op->kind == LINEAR && batch)) {
    const bool is_filter = op->shape[2] * op->shape[3] > 1 || op->padding[0] || op->padding[1];
    plan_convolution(model, op, find_same(model, op, batch), batch, is_filter && *state != ZEROS);
    if (op->plan[batch]->fills_borders) *state = ZEROS;
  } else if (op->kind == LINEAR) {
    plan_linear(model, op, find_same(model, op, batch));
  } else if (op->kind == MAX_POOL || op->kind == AVG_POOL) {
    const surroundings needed = op->kind == MAX_POOL ? LOWEST : ZEROS;
    plan_pool(model, op, batch, *state != needed);
    if (op->pool[batch]->fills_borders) *state = needed;
  }
}

bool crosses_cut(const moon_model *model, int index) {
  const tensor *t = &model->tensors[index];
  return t->defined && t->same_as == index && t->first < model->cut && t->last >= model->cut;
}

/* What an image leaves for the operations that compute a group. */
static int64_t size_of_image(const moon_model *model) {
  int64_t vectors = 0;
  for (int i = 0; i < model->tensor_count; i++) {
    const tensor *t = &model->tensors[i];
    if (crosses_cut(model, i)) vectors += (int64_t)t->channels * t->layout[0]->block[0] * t->layout[0]->block[1];
  }
  return vectors * model->kernels->bytes;
}

void make_plan(moon_model *model, int batch) {
  if (!batch) model->cut = find_cut(model);
  make_layouts(model, batch);
  if (!batch) check_work(model);
  release(&model->scratch);
  surroundings *around = take(&model->plans, (size_t)model->tensor_count, sizeof *around);
  for (int i = batch ? model->cut : 0; i < model->count; i++) {
    plan_operation(model, &model->operations[i], batch, around);
    release(&model->scratch);
  }
  place_tensors(model, batch);
  if (batch) model->image_size = size_of_image(model);
  release(&model->scratch);
  double bytes = (double)model->arena_size[0] + (double)model->arena_size[1] + (double)model->copy_size +
                 (double)model->image_size * model->kernels->lanes;
  for (int i = 0; i < model->output_count; i++) bytes += 4.0 * (double)elements(&model->tensors[model->outputs[i].tensor]);
  need_memory(&model->plans, bytes); /* of the first thread, and results */
}
