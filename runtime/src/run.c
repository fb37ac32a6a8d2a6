/* The public functions: load, run, free. */

#include "moon.h"

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
    if (op->kind == FLATTEN || op->kind == FUSED) continue;
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

/* Copy results that were computed image by image. */
static void copy_outputs(const team *t, const call *c, int64_t image, int before) {
  for (int i = 0; i < c->model->output_count; i++) {
    const int index = c->model->outputs[i].tensor;
    const tensor *from = &c->model->tensors[index];
    float *to = output_of(c, i, image);
    if (to && c->model->tensors[from->same_as].first < before)
      memcpy(to, tensor_data(t, index), (size_t)elements(from) * sizeof *to);
  }
}

static void run_image(const team *t, const call *c, int64_t image, int to) {
  const int64_t size = elements(&c->model->tensors[0]);
  if (!t->thread) memcpy(tensor_data(t, 0), c->images + image * size, (size_t)size * sizeof(float));
  wait_for_team(t);
  run_operations(t, 0, to);
  if (!t->thread) copy_outputs(t, c, image, to);
  wait_for_team(t);
}

/* As many images as a vector has lanes: the wide layers one by one, the others together. */
static void run_group(const team *one, const team *group, const call *c, int64_t image) {
  const moon_model *model = c->model;
  const int lanes = model->kernels->lanes, cut = model->cut;
  for (int lane = 0; lane < lanes; lane++) {
    run_image(one, c, image + lane, cut);
    for (int i = 0; i < model->tensor_count; i++) {
      const tensor *t = &model->tensors[i];
      if (!t->defined || t->same_as != i || t->first >= cut || t->last < cut) continue;
      const float *from = tensor_data(one, i);
      float *to = tensor_data(group, i) + lane;
      for (int64_t e = 0; e < elements(t); e++) to[e * lanes] = from[e];
    }
  }
  run_operations(group, cut, model->count);
  for (int i = 0; i < model->output_count; i++) {
    const int index = model->outputs[i].tensor;
    const tensor *t = &model->tensors[index];
    if (model->tensors[t->same_as].first < cut || !c->outputs[i]) continue;
    for (int lane = 0; lane < lanes; lane++)
      for (int64_t e = 0; e < elements(t); e++)
        output_of(c, i, image + lane)[e] = tensor_data(group, index)[e * lanes + lane];
  }
}

/* One thread computes its images alone. Which images form a group does not depend on the number of threads. */
static void run_alone(void *argument, int thread) {
  const call *c = argument;
  const moon_model *model = c->model;
  workspace *w = &model->work[thread];
  const int lanes = model->kernels->lanes;
  const team one = {model, w, w->arena[0], w->packed, 0, 1, 0, 1, NULL};
  const team group = {model, w, w->arena[1], w->packed, 1, lanes, 0, 1, NULL};
  const int64_t groups = c->count / lanes, rest = c->count % lanes;
  for (int64_t i = groups * thread / model->threads; i < groups * (thread + 1) / model->threads; i++)
    run_group(&one, &group, c, i * lanes);
  for (int64_t i = rest * thread / model->threads; i < rest * (thread + 1) / model->threads; i++)
    run_image(&one, c, groups * lanes + i, model->count);
}

/* All threads compute each image together. */
static void run_together(void *argument, int thread) {
  const call *c = argument;
  const moon_model *model = c->model;
  const team t = {model, &model->work[thread], model->work[0].arena[0], model->work[0].packed, 0, 1, thread,
                  model->threads, model->pool};
  for (int64_t image = 0; image < c->count; image++) run_image(&t, c, image, model->count);
}

static void allocate_floats(moon_model *model, float **pointer, int64_t floats) {
  if (*pointer || !floats) return;
  *pointer = aligned_alloc(64, ((size_t)floats * sizeof(float) + 63) / 64 * 64);
  if (!*pointer) fail(&model->memory, "not enough memory");
  memset(*pointer, 0, (size_t)floats * sizeof(float));
}

static void free_workspaces(moon_model *model) {
  for (int i = 0; model->work && i < model->threads; i++) {
    free(model->work[i].arena[0]);
    free(model->work[i].arena[1]);
    free(model->work[i].packed);
  }
  free(model->work);
  model->work = NULL;
}

/* Memory is allocated when it is first needed. */
static void prepare(moon_model *model, int64_t count) {
  const bool has_groups = count >= model->kernels->lanes;
  if (has_groups && !model->has_batch_plan) {
    free_workspaces(model); /* what was packed may become larger */
    make_plan(model, 1);
    model->has_batch_plan = true;
  }
  if (!model->work) model->work = calloc((size_t)model->threads, sizeof *model->work);
  if (!model->work) fail(&model->memory, "not enough memory");
  for (int i = 0; i < model->threads; i++) {
    allocate_floats(model, &model->work[i].packed, model->packed_size);
    if (i == 0 || count >= model->threads) allocate_floats(model, &model->work[i].arena[0], model->arena_size[0]);
    if (has_groups) allocate_floats(model, &model->work[i].arena[1], model->arena_size[1]);
  }
}

int moon_run(moon_model *model, const float *images, int64_t count, float *const *outputs, char *error,
             size_t error_size) {
  jmp_buf on_error;
  model->memory.on_error = model->scratch.on_error = &on_error;
  model->memory.error = model->scratch.error = error;
  model->memory.error_size = model->scratch.error_size = error_size;
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

/* Returns whether the file could be used. */
static bool build(moon_model *model) {
  jmp_buf on_error;
  model->memory.on_error = model->scratch.on_error = &on_error;
  if (setjmp(on_error)) return false;
  model->kernels = choose_kernels(getenv("MOON_INSTRUCTIONS"));
  if (!model->kernels) fail(&model->memory, "this CPU does not support MOON_INSTRUCTIONS");
  const json *description = read_file(&model->memory, &model->scratch, &model->file);
  read_graph(model, description);
  read_classifier(model, description);
  release(&model->scratch);
  make_plan(model, 0);
  return true;
}

static moon_model *load(uint8_t *bytes, size_t size, char *error, size_t error_size) {
  moon_model *model = calloc(1, sizeof *model);
  if (!model) {
    free(bytes);
    snprintf(error, error_size, "not enough memory");
    return NULL;
  }
  model->memory = model->scratch = (memory){.error = error, .error_size = error_size};
  model->file.bytes = bytes;
  model->file.size = size;
  model->threads = 1;
  if (build(model)) return model;
  moon_free(model);
  return NULL;
}

moon_model *moon_load_memory(const void *data, size_t size, char *error, size_t error_size) {
  uint8_t *bytes = malloc(size ? size : 1);
  if (!bytes) {
    snprintf(error, error_size, "not enough memory");
    return NULL;
  }
  if (size) memcpy(bytes, data, size);
  return load(bytes, size, error, error_size);
}

moon_model *moon_load(const char *path, char *error, size_t error_size) {
  FILE *f = fopen(path, "rb");
  uint8_t *bytes = NULL;
  size_t size = 0, room = 0, got = 1;
  bool is_good = f != NULL;
  while (is_good && got) { /* also reads what has no size, such as a pipe */
    if (size == room) {
      uint8_t *larger = realloc(bytes, room = room ? 2 * room : 1 << 20);
      if (!larger) break;
      bytes = larger;
    }
    got = fread(bytes + size, 1, room - size, f);
    size += got;
    is_good = !ferror(f);
  }
  if (f) fclose(f);
  if (is_good && !got) return load(bytes, size, error, error_size);
  snprintf(error, error_size, is_good ? "not enough memory" : "cannot read \"%.200s\"", path);
  free(bytes);
  return NULL;
}

void moon_free(moon_model *model) {
  if (!model) return;
  pool_stop(model->pool);
  free_workspaces(model);
  free_classifier(model->classifier);
  release(&model->memory);
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
