/* Prints the class of an image: classify NETWORK.moon IMAGE, where IMAGE has normalised float32 values,
   channels x rows x columns.

    cc -O3 -std=c11 -ffp-contract=fast -D_POSIX_C_SOURCE=200809L -Isrc example/classify.c src/[a-z]*.c -pthread -lm
*/

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "moon.h"

static int largest(const float *values, int count) {
  int best = 0;
  for (int i = 1; i < count; i++)
    if (values[i] > values[best]) best = i;
  return best;
}

int main(int count, char **arguments) {
  char error[256];
  if (count != 3) return fprintf(stderr, "usage: classify NETWORK.moon IMAGE\n"), 2;
  moon_model *model = moon_load(arguments[1], error, sizeof error);
  if (!model) return fprintf(stderr, "%s\n", error), 1;

  int shape[3], logits = -1;
  for (int i = 0; i < moon_outputs(model); i++)
    if (!strcmp(moon_output_name(model, i), "logits")) logits = i;
  if (logits < 0) return fprintf(stderr, "the network has no logits\n"), 1;

  moon_input_shape(model, shape);
  const size_t pixels = (size_t)shape[0] * (size_t)shape[1] * (size_t)shape[2];
  moon_output_shape(model, logits, shape);
  float *image = calloc(pixels, sizeof *image), *answer = calloc((size_t)shape[0], sizeof *answer);
  float **outputs = calloc((size_t)moon_outputs(model), sizeof *outputs); /* NULL: not wanted */
  FILE *file = fopen(arguments[2], "rb");
  if (!image || !answer || !outputs || !file || fread(image, sizeof *image, pixels, file) != pixels)
    return fprintf(stderr, "cannot read %zu values from %s\n", pixels, arguments[2]), 1;
  fclose(file);
  outputs[logits] = answer;
  if (moon_run(model, image, 1, outputs, error, sizeof error)) return fprintf(stderr, "%s\n", error), 1;

  const int class = largest(answer, shape[0]);
  printf("class %d, logit %g (%s)\n", class, answer[class], moon_instructions(model));
  free(image);
  free(answer);
  free(outputs);
  moon_free(model);
}
