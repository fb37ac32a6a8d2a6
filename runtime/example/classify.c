/* Says what an image is: a class of the network, or "unknown".

    cc -O3 -std=c11 -D_POSIX_C_SOURCE=200809L -Isrc -o classify example/classify.c src/[a-z]*.c -pthread -lm
    ./classify digits.moon image.pgm

The image is a binary PPM (P6) or PGM (P5) file of the size that the network needs, with 8 bits per value. */

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "moon.h"

/* A number of the header: after white space and comments. -1 if there is none. */
static int read_number(FILE *file) {
  int c = fgetc(file), number = -1;
  while (isspace(c) || c == '#') {
    if (c == '#')
      while (c != '\n' && c != EOF) c = fgetc(file);
    c = fgetc(file);
  }
  for (; isdigit(c) && number < 100000; c = fgetc(file)) number = (number < 0 ? 0 : number) * 10 + (c - '0');
  return number; /* one white space after it is read, too */
}

/* The pixels of a PPM or PGM file of this shape, or NULL after saying what is wrong with it. */
static uint8_t *read_image(const char *path, const int shape[3]) {
  const char *kind = shape[0] == 1 ? "PGM" : "PPM";
  const size_t size = (size_t)shape[0] * (size_t)shape[1] * (size_t)shape[2];
  FILE *file = fopen(path, "rb");
  if (!file) return fprintf(stderr, "%s: cannot be read (%s)\n", path, strerror(errno)), NULL;
  uint8_t *pixels = malloc(size);
  const int is_kind = (shape[0] == 1 || shape[0] == 3) && fgetc(file) == 'P' && fgetc(file) == (shape[0] == 1 ? '5' : '6');
  const int width = is_kind ? read_number(file) : -1, height = is_kind ? read_number(file) : -1;
  const int is_good = pixels && width == shape[2] && height == shape[1] && read_number(file) == 255 &&
                      fread(pixels, 1, size, file) == size;
  fclose(file);
  if (is_good) return pixels;
  if (width > 0 && height > 0 && (width != shape[2] || height != shape[1]))
    fprintf(stderr, "%s: has %d x %d pixels, the network needs %d x %d\n", path, width, height, shape[2], shape[1]);
  else fprintf(stderr, "%s: not a binary %s file with 8 bits per value, or it is cut off\n", path, kind);
  free(pixels);
  return NULL;
}

int main(int count, char **arguments) {
  char error[256];
  int shape[3];
  moon_answer answer;
  if (count != 3) return fprintf(stderr, "usage: classify NETWORK.moon IMAGE\n"), 2;
  moon_model *model = moon_load(arguments[1], 1, error, sizeof error);
  if (!model) return fprintf(stderr, "%s: %s\n", arguments[1], error), 1;

  moon_input_shape(model, shape);
  uint8_t *pixels = read_image(arguments[2], shape);
  int status = 1;
  if (pixels && moon_predict(model, pixels, 1, &answer, error, sizeof error)) fprintf(stderr, "%s\n", error);
  else if (pixels) {
    status = 0;
    printf("%s (%s with probability %.3f, p-value %.4f)\n",
           answer.is_known ? moon_class_name(model, answer.label) : "unknown", moon_class_name(model, answer.label),
           answer.probability, answer.p_value);
  }
  free(pixels);
  moon_free(model);
  return status;
}
