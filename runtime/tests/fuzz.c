/* Mutates .moon files, loads them and runs what loads. Compile with -DMOON_FUZZ and sanitizers, see README.md.

    fuzz SECONDS SEED FILE...
*/

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../src/moon.h"

#define MOST (1 << 16) /* inputs and outputs larger than this, in floats, are not run: they only take time */

static uint64_t state;

static uint32_t next(uint32_t bound) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)((state >> 32) % bound);
}

static uint8_t *read_all(const char *path, size_t *size) {
  FILE *f = fopen(path, "rb");
  if (!f) exit(2);
  uint8_t *bytes = malloc(1 << 20);
  *size = fread(bytes, 1, 1 << 20, f);
  fclose(f);
  return bytes;
}

/* Numbers that are likely to break something. */
static const char *const NUMBERS[] = {"0", "1", "2", "7", "-1", "255", "65535", "65536", "2147483647", "4294967296",
                                      "9007199254740993", "1e9", "null", "[]", "\"w\"", "true"};

/* Replace a number of the header by another, so that the JSON stays valid. */
static size_t replace_number(uint8_t *bytes, size_t size, size_t header) {
  size_t at = 8 + next((uint32_t)header), end;
  while (at < 8 + header && (bytes[at] < '0' || bytes[at] > '9')) at++;
  for (end = at; end < 8 + header && bytes[end] >= '0' && bytes[end] <= '9';) end++;
  if (end == at) return size;
  char small[8];
  snprintf(small, sizeof small, "%u", next(70));
  const char *text = next(3) ? small : NUMBERS[next(sizeof NUMBERS / sizeof *NUMBERS)];
  const size_t length = strlen(text);
  memmove(bytes + at + length, bytes + end, size - end);
  memcpy(bytes + at, text, length);
  size = size - (end - at) + length;
  const uint64_t new_header = header - (end - at) + length;
  for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)(new_header >> 8 * i);
  return size;
}

static size_t mutate(uint8_t *bytes, size_t size) {
  for (uint32_t i = 0, changes = 1 + next(4); i < changes; i++) {
    uint64_t header = 0;
    for (int j = 7; j >= 0; j--) header = header << 8 | bytes[j];
    const bool is_usual = header > 0 && header < size - 8;
    switch (next(5)) {
      case 0: bytes[next((uint32_t)size)] ^= (uint8_t)(1u << next(8)); break;
      case 1: bytes[next((uint32_t)size)] = (uint8_t)next(256); break;
      case 2: if (!next(20)) size = 8 + next((uint32_t)(size - 8)) + 1; break;
      default: if (is_usual) size = replace_number(bytes, size, header);
    }
  }
  return size;
}

/* Returns whether the file could be loaded. */
static bool try(const uint8_t *bytes, size_t size) {
  char error[256];
  moon_model *model = moon_load_memory(bytes, size, error, sizeof error);
  if (!model) {
    if (!*error || strchr(error, '\n')) abort();
    return false;
  }
  int shape[3];
  moon_input_shape(model, shape);
  int64_t images = 1 + next(2) * 16, most = (int64_t)shape[0] * shape[1] * shape[2], largest = most;
  float **outputs = calloc((size_t)moon_outputs(model), sizeof *outputs);
  for (int i = 0; i < moon_outputs(model); i++) {
    moon_output_shape(model, i, shape);
    const int64_t size_of_output = (int64_t)shape[0] * shape[1] * shape[2];
    if (size_of_output > largest) largest = size_of_output;
    if (largest <= MOST) outputs[i] = calloc((size_t)(size_of_output * images), sizeof **outputs);
  }
  if (largest <= MOST) {
    float *input = calloc((size_t)(most * images), sizeof *input);
    for (int64_t i = 0; i < most * images; i++) input[i] = (float)(i % 13) - 6;
    if (moon_set_threads(model, 1 + (int)next(2), error, sizeof error)) abort();
    moon_run(model, input, images, outputs, error, sizeof error);
    free(input);
  }
  for (int i = 0; i < moon_outputs(model); i++) free(outputs[i]);
  free(outputs);
  moon_free(model);
  return true;
}

int main(int count, char **arguments) {
  if (count < 4) return 2;
  const time_t end = time(NULL) + atoi(arguments[1]);
  state = strtoull(arguments[2], NULL, 10);
  long tries = 0, loaded = 0;
  uint8_t *bytes = malloc(1 << 21);
  while (time(NULL) < end) {
    size_t size;
    uint8_t *original = read_all(arguments[3 + next((uint32_t)count - 3)], &size);
    memcpy(bytes, original, size);
    size = mutate(bytes, size);
    uint8_t *exact = malloc(size); /* so that reading behind the end is noticed */
    memcpy(exact, bytes, size);
    FILE *last = getenv("FUZZ_LAST") ? fopen(getenv("FUZZ_LAST"), "wb") : NULL;
    if (last) fwrite(exact, 1, size, last), fclose(last);
    loaded += try(exact, size);
    tries++;
    free(exact);
    free(original);
  }
  free(bytes);
  printf("%ld files, %ld of them loaded\n", tries, loaded);
}
