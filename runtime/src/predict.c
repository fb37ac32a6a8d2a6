/* From pixels to answers: normalise, run the network, run the detector's program, compare with the threshold. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "classifier.h"

/* Floats of the images that are computed at once: some megabytes, or what keeps all threads busy up to a limit. */
#define CHUNK ((int64_t)1 << 20)
#define MAX_CHUNK ((int64_t)1 << 25)

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static void free_buffers(classifier *c) {
  free(c->images);
  c->images = NULL;
  if (c->outputs) free(c->outputs[c->logits]), c->outputs[c->logits] = NULL;
  if (c->outputs && c->features >= 0) free(c->outputs[c->features]), c->outputs[c->features] = NULL;
  c->room = 0;
}

static void free_work(classifier *c) {
  for (int i = 0; i < c->threads; i++) free(c->work[i]);
  free(c->work);
  c->work = NULL;
  c->threads = 0;
}

void free_classifier(classifier *c) {
  if (!c) return;
  free_buffers(c);
  free_work(c);
}

/* Images are computed in groups, one for each lane of a vector; which ones form a group must not depend on chunks. */
static int64_t chunk_of(const moon_model *model) {
  const program *p = model->classifier->program;
  const int64_t lanes = model->kernels->lanes, size = elements(&model->tensors[0]) + p->logits + p->features;
  const int64_t floats = smaller(larger(CHUNK, size * lanes * model->threads), MAX_CHUNK);
  return lanes * larger(1, floats / size / lanes);
}

static bool reserve_output(const moon_model *model, float **output, int index, int64_t images) {
  output[index] = malloc((size_t)(images * elements(&model->tensors[model->outputs[index].tensor])) * sizeof(float));
  return output[index];
}

/* Memory for `images` images; returns false if there is not enough. */
static bool reserve(const moon_model *model, int64_t images) {
  classifier *c = model->classifier;
  if (images > c->room) {
    free_buffers(c);
    c->images = malloc((size_t)(images * elements(&model->tensors[0])) * sizeof *c->images);
    if (!c->images || !reserve_output(model, c->outputs, c->logits, images)) return false;
    if (c->features >= 0 && !reserve_output(model, c->outputs, c->features, images)) return false;
    c->room = images;
  }
  if (c->threads != model->threads) {
    free_work(c);
    c->work = calloc((size_t)model->threads, sizeof *c->work);
    if (!c->work) return false;
    for (; c->threads < model->threads; c->threads++) {
      c->work[c->threads] = malloc((size_t)c->program->work_size * sizeof **c->work);
      if (!c->work[c->threads]) return false;
    }
  }
  return true;
}

typedef struct {
  const moon_model *model;
  const uint8_t *pixels;
  int64_t count;
  moon_answer *answers;
  int threads; /* that share the images; the network may use more for one image */
} call;

/* From bytes, channels last, to floats, channels first. */
static void normalise(const call *c, int64_t image) {
  const classifier *k = c->model->classifier;
  const int channels = c->model->input[0];
  const int64_t area = positions(&c->model->tensors[0]);
  const uint8_t *from = c->pixels + image * area * channels;
  float *to = k->images + image * area * channels;
  for (int channel = 0; channel < channels; channel++)
    for (int64_t i = 0; i < area; i++)
      *to++ = (float)from[i * channels + channel] * k->scale[channel] + k->shift[channel];
}

static float probability_of(const classifier *c, const float *logits, int64_t count, int label) {
  double sum = 0;
  for (int64_t i = 0; i < count; i++) sum += exp(((double)logits[i] - (double)logits[label]) / c->temperature);
  return (float)(1 / sum);
}

static void judge(const classifier *c, moon_answer *answer) {
  const int group = c->group ? answer->label : 0;
  const int64_t from = c->group ? c->group[group] : 0, to = c->group ? c->group[group + 1] : c->calibration_size;
  const int64_t lower = isnan(answer->score) ? 0 : count_not_above(c->calibration + from, to - from, answer->score);
  answer->p_value = (double)(1 + lower) / (double)(to - from + 1);
  answer->is_known = answer->score >= c->threshold[group]; /* false for NaN */
}

static void answer_image(const call *call, int64_t image, double *work) {
  const classifier *c = call->model->classifier;
  const program *p = c->program;
  const float *logits = c->outputs[c->logits] + image * p->logits;
  const float *features = c->features < 0 ? NULL : c->outputs[c->features] + image * p->features;
  moon_answer *answer = &call->answers[image];
  int best = 0;
  for (int i = 1; i < c->classes; i++) /* NaN is the largest, as in torch */
    if (!isnan(logits[best]) && (logits[i] > logits[best] || isnan(logits[i]))) best = i;
  answer->label = best;
  answer->probability = probability_of(c, logits, p->logits, best);
  answer->score = run_program(p, call->model, logits, features, work);
  judge(c, answer);
}

static void normalise_share(void *argument, int thread) {
  const call *c = argument;
  for (int64_t i = c->count * thread / c->threads; i < c->count * (thread + 1) / c->threads; i++) normalise(c, i);
}

static void answer_share(void *argument, int thread) {
  const call *c = argument;
  for (int64_t i = c->count * thread / c->threads; i < c->count * (thread + 1) / c->threads && !is_stopped(c->model); i++)
    answer_image(c, i, c->model->classifier->work[thread]);
}

static void share(void (*function)(void *, int), call *c) {
  if (c->threads > 1) pool_run(c->model->pool, function, c);
  else function(c, 0);
}

int moon_predict(moon_model *model, const uint8_t *pixels, int64_t count, moon_answer *answers, char *error,
                 size_t error_size) {
  const classifier *c = model->classifier;
  if (!c->can_answer) {
    snprintf(error, error_size, "the file has no \"detector\" and \"threshold\": only the network can be run");
    return -1;
  }
  const int64_t chunk = chunk_of(model), size = elements(&model->tensors[0]);
  atomic_store(&model->is_stopped, false);
  for (int64_t done = 0; done < count && !is_stopped(model); done += chunk) {
    call part = {model, pixels + done * size, smaller(count - done, chunk), answers + done, 1};
    if (part.count >= model->threads) part.threads = model->threads; /* else waking them takes longer */
    if (!reserve(model, part.count)) {
      free_buffers(model->classifier);
      free_work(model->classifier);
      snprintf(error, error_size, "not enough memory");
      return -1;
    }
    share(normalise_share, &part);
    const int code = run_images(model, c->images, part.count, c->outputs, error, error_size);
    if (is_stopped(model)) break;
    if (code) return code;
    share(answer_share, &part);
  }
  return is_stopped(model) ? report_stop(error, error_size) : 0;
}
