/* Compares networks with expected outputs: compare PRECISION TOLERANCE FOLDER/0 FOLDER/1 ... (files of cases.py), for all
   images at once and one by one, with one and with three threads. In float32 all of these have the same bits. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../src/moon.h"

static float *read_floats(const char *base, const char *suffix, size_t *count) {
  char path[1024];
  snprintf(path, sizeof path, "%s%s", base, suffix);
  FILE *f = fopen(path, "rb");
  if (!f) exit((fprintf(stderr, "cannot read %s\n", path), 1));
  fseek(f, 0, SEEK_END);
  *count = (size_t)ftell(f) / sizeof(float);
  rewind(f);
  float *data = malloc(*count * sizeof *data + 1);
  if (!data || fread(data, sizeof *data, *count, f) != *count) exit(1);
  fclose(f);
  return data;
}

/* The largest difference, divided by the largest value. */
static double difference(const float *a, const float *b, size_t count) {
  double most = 0, largest = 1e-9;
  for (size_t i = 0; i < count; i++) {
    if (!isfinite(a[i])) return INFINITY;
    if (fabs((double)a[i] - b[i]) > most) most = fabs((double)a[i] - b[i]);
    if (fabs((double)b[i]) > largest) largest = fabs((double)b[i]);
  }
  return most / largest;
}

int main(int count, char **arguments) {
  char error[512] = "";
  int failures = count < 4;
  for (int i = 3; i < count; i++) {
    char path[1024];
    snprintf(path, sizeof path, "%s.moon", arguments[i]);
    moon_model *model = moon_load(path, 1, error, sizeof error);
    if (!model || moon_set_precision(model, arguments[1], error, sizeof error))
      return fprintf(stderr, "%s: %s\n", path, error), 1;
    int shape[3];
    size_t inputs, outputs;
    moon_input_shape(model, shape);
    const size_t size = (size_t)shape[0] * (size_t)shape[1] * (size_t)shape[2];
    float *images = read_floats(arguments[i], ".input", &inputs);
    float *expected = read_floats(arguments[i], ".expected", &outputs), *actual = malloc(outputs * sizeof *actual);
    float *first = malloc(outputs * sizeof *first);
    const size_t all = inputs / size;
    for (int threads = 1; threads <= 3; threads += 2)
      for (size_t batch = 1; batch <= all; batch += all - 1) {
        memset(actual, 0xff, outputs * sizeof *actual);
        moon_set_threads(model, threads, error, sizeof error);
        for (size_t image = 0; image < all; image += batch) {
          float *out = actual + image * (outputs / all);
          if (moon_run(model, images + image * size, (int64_t)batch, &out, error, sizeof error)) failures++;
        }
        const double found = difference(actual, expected, outputs);
        printf("%s %s %s, batches of %d, %d threads: %.1e\n", arguments[i], moon_instructions(model), arguments[1],
               (int)batch, threads, found);
        failures += !(found < atof(arguments[2]));
        if (threads == 1 && batch == 1) memcpy(first, actual, outputs * sizeof *first);
        if (strcmp(arguments[1], "float16") && memcmp(first, actual, outputs * sizeof *first))
          failures += puts("its bits differ from those of single images") >= 0;
      }
    moon_free(model);
    free(images);
    free(expected);
    free(actual);
    free(first);
  }
  return failures > 0;
}
