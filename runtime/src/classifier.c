/* Reads and checks what moon_predict needs besides the network. */

#include "classifier.h"

#include <math.h>
#include <string.h>

static const json *need(memory *m, const json *object, const char *key, json_kind kind, const char *what) {
  const json *value = json_get(object, key);
  if (!value || value->kind != kind) fail(m, "the description needs \"%s\": %s", key, what);
  return value;
}

static void read_names(memory *m, classifier *c, const json *names) {
  if (names->kind != JSON_ARRAY || !names->length || names->length > MAX_SIDE)
    fail(m, "\"classes\" must be a list of 1 to %d names", MAX_SIDE);
  c->names = take(m, names->length, sizeof *c->names);
  for (const json *name = names->first; name; name = name->next) {
    if (name->kind != JSON_STRING) fail(m, "\"classes\" must be a list of names");
    char *copy = take(m, name->length + 1, 1); /* the description is freed after loading */
    c->names[c->classes++] = memcpy(copy, name->text, name->length);
  }
}

static double need_positive(memory *m, const json *value, const char *what) {
  double number;
  if (!json_number(value, &number) || number <= 0) fail(m, "%s must be a positive number", what);
  return number;
}

/* A share is above 0 and below 1. */
static void check_share(memory *m, const json *value, const char *what) {
  if (need_positive(m, value, what) >= 1) fail(m, "%s must be below 1", what);
}

static float *read_channels(memory *m, const json *preprocess, const char *key, int channels, double least) {
  const json *list = json_get(preprocess, key);
  if (!list || list->kind != JSON_ARRAY || list->length != (size_t)channels)
    fail(m, "\"%s\" of \"preprocess\" must have a number for each of the %d channels", key, channels);
  float *result = take(m, (size_t)channels, sizeof *result), *next = result;
  for (const json *value = list->first; value; value = value->next) {
    double number;
    if (!json_number(value, &number) || number < least || number > 1e6)
      fail(m, "\"%s\" of \"preprocess\" must be between %g and 1e6", key, least);
    *next++ = (float)number;
  }
  return result;
}

/* Mean and deviation become scale and shift, in the float32 arithmetic of the training library. */
static void read_preprocess(moon_model *model, classifier *c, const json *preprocess) {
  memory *m = &model->memory;
  const json *resize = json_get(preprocess, "resize"), *side = json_get(preprocess, "shorter_side");
  if (resize && strcmp(json_word(resize), "cover"))
    fail(m, "\"resize\" of \"preprocess\" must be \"cover\", not \"%s\"", json_word(resize));
  if (!json_is_absent(side) && !json_is_integer(side, 1, MAX_SIDE)) /* for those who resize before they ask */
    fail(m, "\"shorter_side\" of \"preprocess\" must be an integer from 1 to %d", MAX_SIDE);
  float *mean = read_channels(m, preprocess, "mean", model->input[0], -1e6);
  float *std = read_channels(m, preprocess, "std", model->input[0], 1e-6);
  for (int i = 0; i < model->input[0]; i++) {
    mean[i] = -mean[i] / std[i];
    std[i] = 1 / (255 * std[i]);
  }
  c->scale = std;
  c->shift = mean;
}

static int find_output(const moon_model *model, const char *name) {
  for (int i = 0; i < model->output_count; i++)
    if (!strcmp(model->outputs[i].name, name)) return i;
  return -1;
}

static int64_t output_size(const moon_model *model, int output) {
  return output < 0 ? 0 : elements(&model->tensors[model->outputs[output].tensor]);
}

static const double *need_doubles(memory *m, const file *f, const char *name, int64_t *length) {
  if (need_tensor(m, f, name)->type != F64) fail(m, "tensor \"%s\" must be F64", name);
  return read_vector(m, f, name, length);
}

/* The calibration scores of the classes follow each other; the counts become where they begin. */
static void read_groups(memory *m, const file *f, classifier *c) {
  const file_tensor *counts = need_tensor(m, f, "calibration.counts");
  if (counts->type != U32 || counts->dimensions != 1 || counts->elements != c->classes)
    fail(m, "tensor \"calibration.counts\" must have one number (U32) for each of the %d classes", c->classes);
  int64_t *group = take(m, (size_t)c->classes + 1, sizeof *group);
  for (int i = 0; i < c->classes; i++) {
    uint32_t count;
    memcpy(&count, counts->data + 4 * (size_t)i, 4);
    group[i + 1] = group[i] + count;
  }
  if (group[c->classes] != c->calibration_size)
    fail(m, "\"calibration.counts\" adds up to %lld, but there are %lld calibration scores",
         (long long)group[c->classes], (long long)c->calibration_size);
  c->group = group;
}

static void check_calibration(memory *m, const classifier *c) {
  int label = 0;
  for (int64_t i = 0; i < c->calibration_size; i++) {
    while (c->group && c->group[label] < i) label++;
    const bool is_first = i == 0 || (c->group && c->group[label] == i);
    if (isnan(c->calibration[i]) || (!is_first && c->calibration[i] < c->calibration[i - 1]))
      fail(m, "the calibration scores are not in ascending order");
  }
}

static void read_threshold(moon_model *model, classifier *c, const json *threshold) {
  memory *m = &model->memory;
  const json *per_class = json_get(threshold, "per_class"), *confidence = json_get(threshold, "confidence");
  const bool is_per_class = per_class && per_class->kind == JSON_TRUE;
  if (!json_is_absent(per_class) && !is_per_class && per_class->kind != JSON_FALSE)
    fail(m, "\"per_class\" of \"threshold\" must be true or false");
  check_share(m, json_get(threshold, "accept"), "\"accept\" of \"threshold\"");
  if (!json_is_absent(confidence)) check_share(m, confidence, "\"confidence\" of \"threshold\"");
  int64_t count;
  c->threshold = need_doubles(m, &model->file, "threshold", &count);
  if (count != (is_per_class ? c->classes : 1))
    fail(m, "there are %lld thresholds, not %d", (long long)count, is_per_class ? c->classes : 1);
  for (int64_t i = 0; i < count; i++)
    if (!isfinite(c->threshold[i])) fail(m, "a threshold is not a finite number");
  c->calibration = need_doubles(m, &model->file, "calibration", &c->calibration_size);
  if (is_per_class) read_groups(m, &model->file, c);
  check_calibration(m, c);
}

void read_classifier(moon_model *model, const json *description) {
  memory *m = &model->memory;
  classifier *c = model->classifier = take(m, 1, sizeof *c);
  const json *names = json_get(description, "classes"), *detector = json_get(description, "detector");
  const json *threshold = json_get(description, "threshold");
  if (!json_is_absent(names)) read_names(m, c, names);
  if (json_is_absent(detector) && json_is_absent(threshold)) return;
  detector = need(m, description, "detector", JSON_OBJECT, "its name, program and output");
  threshold = need(m, description, "threshold", JSON_OBJECT, "what it accepts");
  need(m, description, "classes", JSON_ARRAY, "their names");
  need(m, detector, "name", JSON_STRING, "that of the detector");
  read_preprocess(model, c, need(m, description, "preprocess", JSON_OBJECT, "mean and std of each channel"));
  c->temperature = need_positive(m, json_get(description, "temperature"), "\"temperature\"");
  c->logits = find_output(model, "logits");
  c->features = find_output(model, "features");
  const int64_t logits = output_size(model, c->logits);
  if (c->logits < 0) fail(m, "the network has no output \"logits\"");
  if (logits != c->classes && logits != c->classes + 1)
    fail(m, "the network has %lld logits, but the file names %d classes", (long long)logits, c->classes);
  c->program = read_program(model, detector, logits, output_size(model, c->features));
  if (!c->program->needs_features) c->features = -1;
  read_threshold(model, c, threshold);
  c->outputs = take(m, (size_t)model->output_count, sizeof *c->outputs);
  c->can_answer = true;
}

int moon_classes(const moon_model *model) { return model->classifier->classes; }

const char *moon_class_name(const moon_model *model, int label) {
  return label >= 0 && label < model->classifier->classes ? model->classifier->names[label] : NULL;
}
