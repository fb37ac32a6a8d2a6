/* The public functions: load, run, free. */

#include "moon.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "classifier.h"
#include "model.h"

#define MAX_THREADS 256

void wait_for_team(const team *t) {
  if (t->threads > 1) pool_barrier(t->pool);
}

static void run_operations(const team *t, int from, int to) {
  for (int i = from; i < to; i++) {
    const operation *op = &t->model->operations[i];
    if (op->kind == FUSED || t->model->tensors[op->out].same_as != op->out) continue; /* nothing to do */
    if (op->plan[t->batch]) convolve(t, op);
    else compute(t, op);
    wait_for_team(t);
  }
}

typedef struct {
  moon_model *model;
  const float *images;
  float *const *outputs;
  int64_t count;
} call;

static float *output_of(const call *c, int output, int64_t image) {
  if (!c->outputs[output]) return NULL;
  return c->outputs[output] + image * elements(&c->model->tensors[c->model->outputs[output].tensor]);
}

/* Copy results that were computed by operations [from, to); `lane`: of the image, if lanes are images. */
static void copy_outputs(const team *t, const call *c, int64_t image, int lane, int from, int to) {
  const kernels *k = t->model->kernels;
  for (int i = 0; i < c->model->output_count; i++) {
    const int index = c->model->outputs[i].tensor;
    const tensor *result = &c->model->tensors[index];
    const int first = c->model->tensors[result->same_as].first;
    float *array = output_of(c, i, image);
    if (!array || first < from || first >= to) continue;
    const layout *l = result->layout[t->batch];
    const places target = {positions(result), l->plain[0], l->plain[1]}, source = places_of(l, k->lanes);
    k->export(array, &target, tensor_data(t, index) + lane * (k->bytes / k->lanes), &source, result->channels,
              result->rows, result->columns);
  }
}

static void run_image(const team *t, const call *c, int64_t image, int to) {
  const kernels *k = c->model->kernels;
  const tensor *in = &c->model->tensors[0];
  if (!t->thread) {
    const layout *l = in->layout[0];
    const places target = places_of(l, k->lanes), source = {positions(in), l->plain[0], l->plain[1]};
    k->import(tensor_data(t, 0), &target, c->images + image * elements(in), &source, in->channels, in->rows,
              in->columns);
  }
  wait_for_team(t);
  run_operations(t, 0, to);
  if (!t->thread) copy_outputs(t, c, image, 0, -1, to);
  wait_for_team(t);
}

/* Copy what an image leaves for its group, without borders. */
static void keep_image(const team *one, char *to) {
  const moon_model *model = one->model;
  for (int i = 0; i < model->tensor_count; i++) {
    if (!crosses_cut(model, i)) continue;
    const tensor *t = &model->tensors[i];
    const layout *l = t->layout[0];
    const int64_t bytes = model->kernels->bytes, line = l->block[1] * bytes;
    const char *from = tensor_data(one, i) + (l->low[0] * l->pitch + l->low[1]) * bytes;
    for (int c = 0; c < t->channels; c++, from += l->size * bytes)
      for (int row = 0; row < l->block[0]; row++, to += line) memcpy(to, from + row * l->pitch * bytes, (size_t)line);
  }
}

/* As many images as a vector has lanes: the wide layers one by one, the others together. */
static void run_group(const team *one, const team *group, const call *c, int64_t image) {
  const moon_model *model = c->model;
  const kernels *k = model->kernels;
  const int cut = model->cut;
  for (int lane = 0; lane < k->lanes; lane++) {
    run_image(one, c, image + lane, cut);
    keep_image(one, one->work->images + lane * model->image_size);
  }
  const char *images = one->work->images;
  for (int i = 0; i < model->tensor_count; i++) {
    if (!crosses_cut(model, i)) continue;
    const tensor *t = &model->tensors[i];
    const layout *l = t->layout[0];
    k->interleave(tensor_data(group, i), t->layout[1], images, l, model->image_size / (k->bytes / k->lanes),
                  t->channels);
    images += (int64_t)t->channels * l->block[0] * l->block[1] * k->bytes;
  }
  run_operations(group, cut, model->count);
  for (int lane = 0; lane < k->lanes; lane++) copy_outputs(group, c, image + lane, lane, cut, model->count);
}

/* How many groups of images there are. In float32 it does not matter which images form a group, so all threads can have
   as many; otherwise that must not depend on the number of threads. */
static int64_t count_groups(const moon_model *model, int64_t count) {
  const bool is_exact = !strcmp(model->kernels->precision, "float32");
  const int64_t threads = is_exact ? model->threads : 1;
  return count / (model->kernels->lanes * threads) * threads;
}

/* One thread computes its images alone. */
static void run_alone(void *argument, int thread) {
  const call *c = argument;
  const moon_model *model = c->model;
  workspace *w = &model->work[thread];
  const int lanes = model->kernels->lanes;
  const team one = {model, w, w->arena[0], w->copy, 0, 0, 1, NULL};
  const team group = {model, w, w->arena[1], w->copy, 1, 0, 1, NULL};
  const int64_t groups = count_groups(model, c->count), rest = c->count - groups * lanes;
  for (int64_t i = groups * thread / model->threads; i < groups * (thread + 1) / model->threads && !is_stopped(model); i++)
    run_group(&one, &group, c, i * lanes);
  for (int64_t i = rest * thread / model->threads; i < rest * (thread + 1) / model->threads && !is_stopped(model); i++)
    run_image(&one, c, groups * lanes + i, model->count);
}

/* All threads compute each image together. */
static void run_together(void *argument, int thread) {
  const call *c = argument;
  const moon_model *model = c->model;
  const team t = {model, &model->work[thread], model->work[0].arena[0], model->work[0].copy, 0, thread, model->threads,
                  model->pool};
  for (int64_t image = 0; image < c->count; image++) run_image(&t, c, image, model->count);
}

static void allocate_bytes(moon_model *model, char **pointer, int64_t bytes) {
  if (*pointer || !bytes) return;
  *pointer = allocate_pages((size_t)bytes);
  if (!*pointer) fail(&model->memory, "not enough memory");
  for (int64_t done = 0, piece = (int64_t)1 << 24; done < bytes; done += piece) {
    if (is_stopped(model)) {
      free(*pointer);
      *pointer = NULL;
      fail(&model->memory, "stopped");
    }
    memset(*pointer + done, 0, (size_t)(bytes - done < piece ? bytes - done : piece));
  }
}

static void free_workspaces(moon_model *model) {
  for (int i = 0; model->work && i < model->threads; i++) {
    free(model->work[i].arena[0]);
    free(model->work[i].arena[1]);
    free(model->work[i].copy);
    free(model->work[i].images);
  }
  free(model->work);
  model->work = NULL;
}

/* Memory is allocated when it is first needed. */
static void prepare(moon_model *model, int64_t count) {
  const bool has_groups = count_groups(model, count) > 0;
  if (!model->has_plan[0]) fail(&model->memory, "not enough memory");
  if (has_groups && !model->has_plan[1]) {
    free_workspaces(model); /* what is copied may become larger */
    make_plan(model, 1);
    model->has_plan[1] = true;
  }
  if (!model->work) model->work = calloc((size_t)model->threads, sizeof *model->work);
  if (!model->work) fail(&model->memory, "not enough memory");
  for (int i = 0; i < model->threads; i++) {
    allocate_bytes(model, &model->work[i].copy, model->copy_size);
    if (i == 0 || count >= model->threads) allocate_bytes(model, &model->work[i].arena[0], model->arena_size[0]);
    if (!has_groups) continue;
    allocate_bytes(model, &model->work[i].arena[1], model->arena_size[1]);
    allocate_bytes(model, &model->work[i].images, model->image_size * model->kernels->lanes);
  }
}

/* Where errors go. */
static void report_to(moon_model *model, jmp_buf *on_error, char *error, size_t error_size) {
  memory *all[] = {&model->memory, &model->plans, &model->scratch};
  for (int i = 0; i < 3; i++) {
    all[i]->on_error = on_error;
    all[i]->error = error;
    all[i]->error_size = error_size;
  }
}

int run_images(moon_model *model, const float *images, int64_t count, float *const *outputs, char *error,
               size_t error_size) {
  jmp_buf on_error;
  report_to(model, &on_error, error, error_size);
  if (setjmp(on_error)) {
    release(&model->scratch);
    return -1;
  }
  if (count < 1) return 0;
  prepare(model, count);
  call c = {model, images, outputs, count};
  if (model->threads == 1) run_alone(&c, 0);
  else pool_run(model->pool, count >= model->threads ? run_alone : run_together, &c);
  return 0;
}

int report_stop(char *error, size_t error_size) {
  snprintf(error, error_size, "stopped by moon_interrupt");
  return -3;
}

void moon_interrupt(moon_model *model) { atomic_store(&model->is_stopped, true); }

static bool is_finite(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return (bits & 0x7f800000) != 0x7f800000; /* the exponent of infinity and NaN; unlike isfinite, fast in a loop */
}

static bool all_finite(const float *values, int64_t count) {
  int bad = 0;
  for (int64_t i = 0; i < count; i++) bad |= !is_finite(values[i]);
  return !bad;
}

int moon_run(moon_model *model, const float *images, int64_t count, float *const *outputs, char *error,
             size_t error_size) {
  const tensor *in = &model->tensors[0];
  const int64_t size = elements(in), area = positions(in);
  atomic_store(&model->is_stopped, false);
  if (count > 0 && !all_finite(images, count * size)) {
    int64_t i = 0;
    while (is_finite(images[i])) i++;
    snprintf(error, error_size,
             "image %lld has %s in channel %lld, row %lld, column %lld; images must be finite numbers",
             (long long)(i / size), isnan(images[i]) ? "NaN" : "infinity", (long long)(i % size / area),
             (long long)(i % area / in->columns), (long long)(i % in->columns));
    return -2;
  }
  const int code = run_images(model, images, count, outputs, error, error_size);
  return is_stopped(model) ? report_stop(error, error_size) : code;
}

/* Plan for the given kernels; whether there was enough memory. */
static bool plan_again(moon_model *model, const kernels *k, char *error, size_t error_size) {
  jmp_buf on_error;
  report_to(model, &on_error, error, error_size);
  free_workspaces(model);
  release(&model->plans);
  for (int i = 0; i < model->count; i++) {
    operation *op = &model->operations[i];
    for (int batch = 0; batch < 2; batch++) {
      op->plan[batch] = NULL;
      op->pool[batch] = NULL;
    }
    op->linear = NULL;
  }
  model->kernels = k;
  model->copy_size = 0;
  model->has_plan[0] = model->has_plan[1] = false;
  if (setjmp(on_error)) {
    release(&model->scratch);
    return false;
  }
  make_plan(model, 0);
  return model->has_plan[0] = true;
}

int moon_set_precision(moon_model *model, const char *precision, char *error, size_t error_size) {
  const kernels *old = model->kernels, *new = choose_kernels(getenv("MOON_INSTRUCTIONS"), precision);
  if (strcmp(precision, "float32") && strcmp(precision, "float16")) {
    snprintf(error, error_size, "the precision must be float32 or float16, not \"%.40s\"", precision);
    return -1;
  }
  if (!new) {
    snprintf(error, error_size, "this CPU cannot compute in float16; that needs AVX512-FP16 or ARMv8.2 with FP16");
    return -1;
  }
  if (new == old || plan_again(model, new, error, error_size)) return 0;
  char ignored[1];
  plan_again(model, old, ignored, 0);
  return -1;
}

/* Returns whether the file could be used. */
static bool build(moon_model *model, char *error, size_t error_size) {
  jmp_buf on_error;
  report_to(model, &on_error, error, error_size);
  if (setjmp(on_error)) return false;
  if (!(model->budget.limit > 0)) fail(&model->memory, "the limit must be a number above 0");
  model->kernels = choose_kernels(getenv("MOON_INSTRUCTIONS"), "float32");
  if (!model->kernels) fail(&model->memory, "this CPU does not support MOON_INSTRUCTIONS");
  const json *description = read_file(&model->memory, &model->scratch, &model->file);
  read_graph(model, description);
  read_classifier(model, description);
  release(&model->scratch);
  simplify_graph(model);
  make_plan(model, 0);
  return model->has_plan[0] = true;
}

static moon_model *load(uint8_t *bytes, size_t size, double limit, char *error, size_t error_size) {
  moon_model *model = calloc(1, sizeof *model);
  if (!model) {
    free(bytes);
    snprintf(error, error_size, "not enough memory");
    return NULL;
  }
  model->file.bytes = bytes;
  model->file.size = size;
  model->threads = 1;
  model->budget = (budget){.most = limit * (MAX_MEMORY + MAX_MEMORY_PER_BYTE * (double)size), .limit = limit};
  model->memory.budget = model->plans.budget = model->scratch.budget = &model->budget;
  if (build(model, error, error_size)) return model;
  moon_free(model);
  return NULL;
}

moon_model *moon_load_memory(const void *data, size_t size, double limit, char *error, size_t error_size) {
  uint8_t *bytes = malloc(size ? size : 1);
  if (!bytes) {
    snprintf(error, error_size, "not enough memory");
    return NULL;
  }
  if (size) memcpy(bytes, data, size);
  return load(bytes, size, limit, error, error_size);
}

moon_model *moon_load(const char *path, double limit, char *error, size_t error_size) {
  uint8_t *bytes;
  size_t size;
  return read_disk(path, &bytes, &size, error, error_size) ? load(bytes, size, limit, error, error_size) : NULL;
}

int moon_check_length(const char *path, char *error, size_t error_size) {
  return read_disk(path, NULL, NULL, error, error_size) ? 0 : -1;
}

void moon_free(moon_model *model) {
  if (!model) return;
  pool_stop(model->pool);
  free_workspaces(model);
  free_classifier(model->classifier);
  release(&model->memory);
  release(&model->plans);
  release(&model->scratch);
  free(model->file.bytes);
  free(model);
}

int moon_set_threads(moon_model *model, int threads, char *error, size_t error_size) {
  if (threads < 1 || threads > MAX_THREADS) {
    snprintf(error, error_size, "the number of threads must be between 1 and %d", MAX_THREADS);
    return -1;
  }
  if (threads == model->threads) return 0;
  pool *new = threads > 1 ? pool_start(threads) : NULL;
  if (threads > 1 && !new) {
    snprintf(error, error_size, "%d threads cannot be started", threads);
    return -1;
  }
  free_workspaces(model);
  pool_stop(model->pool);
  model->pool = new;
  model->threads = threads;
  return 0;
}

void moon_input_shape(const moon_model *model, int shape[3]) { memcpy(shape, model->input, sizeof model->input); }

int moon_outputs(const moon_model *model) { return model->output_count; }

const char *moon_output_name(const moon_model *model, int output) { return model->outputs[output].name; }

void moon_output_shape(const moon_model *model, int output, int shape[3]) {
  const tensor *t = &model->tensors[model->outputs[output].tensor];
  shape[0] = t->channels;
  shape[1] = t->rows;
  shape[2] = t->columns;
}

double moon_work(const moon_model *model) { return model->image_work; }

const char *moon_metadata(const moon_model *model) { return model->file.metadata; }

const char *moon_instructions(const moon_model *model) { return model->kernels->name; }

const void *moon_tensor(const moon_model *model, const char *name, const char **type, int *dimensions,
                        int64_t shape[8]) {
  const file_tensor *t = find_tensor(&model->file, name);
  if (!t) return NULL;
  *type = t->type_name;
  *dimensions = t->dimensions;
  memcpy(shape, t->shape, sizeof t->shape);
  return t->data;
}
