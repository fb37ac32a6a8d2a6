/* Mutates .moon files, loads them, and runs and asks what loads. Compiled with -DMOON_FUZZ, which skips the digest, and
   with sanitizers: see fuzz.sh.

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
static long answered; /* files */

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

/* Replace one word in quotes of the header by another one of it: names of operations, tensors and keys. */
static size_t replace_word(uint8_t *bytes, size_t size, size_t header) {
  size_t begin[2], length[2];
  for (int i = 0; i < 2; i++) {
    size_t at = 8 + next((uint32_t)header), end;
    while (at < 8 + header && bytes[at] != '"') at++;
    for (end = ++at; end < 8 + header && bytes[end] != '"' && bytes[end] != '\\';) end++;
    if (end >= 8 + header || end - at > 30) return size;
    begin[i] = at;
    length[i] = end - at;
  }
  uint8_t word[32];
  memcpy(word, bytes + begin[1], length[1]);
  memmove(bytes + begin[0] + length[1], bytes + begin[0] + length[0], size - begin[0] - length[0]);
  memcpy(bytes + begin[0], word, length[1]);
  const uint64_t new_header = header - length[0] + length[1];
  for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)(new_header >> 8 * i);
  return size - length[0] + length[1];
}

/* A number of the tensors becomes a special one: NaN, infinity, the largest, zero. */
static void replace_value(uint8_t *bytes, size_t size, size_t header) {
  static const uint64_t DOUBLES[] = {0x7ff8000000000000, 0x7ff0000000000000, 0xfff0000000000000, 0x7fefffffffffffff, 0};
  static const uint32_t FLOATS[] = {0x7fc00000, 0x7f800000, 0xff800000, 0x7f7fffff, 0};
  const size_t room = size - 8 - header;
  if (room < 8) return;
  uint8_t *at = bytes + 8 + header + next((uint32_t)(room / 8)) * 8;
  if (next(2)) memcpy(at, &DOUBLES[next(5)], 8);
  else memcpy(at, &FLOATS[next(5)], 4);
}

static size_t mutate(uint8_t *bytes, size_t size) {
  for (uint32_t i = 0, changes = 1 + next(2); i < changes; i++) {
    uint64_t header = 0;
    for (int j = 7; j >= 0; j--) header = header << 8 | bytes[j];
    const bool is_usual = header > 0 && header < size - 8;
    switch (next(8)) {
      case 0: bytes[next((uint32_t)size)] ^= (uint8_t)(1u << next(8)); break;
      case 1: bytes[next((uint32_t)size)] = (uint8_t)next(256); break;
      case 2: if (!next(20)) size = 8 + next((uint32_t)(size - 8)) + 1; break;
      case 3: if (is_usual) size = replace_word(bytes, size, header); break;
      case 4: if (is_usual) replace_value(bytes, size, header); break;
      default: if (is_usual) size = replace_number(bytes, size, header);
    }
  }
  return size;
}

/* Answers must make sense whatever the file says. Returns whether there were any. */
static bool ask(moon_model *model, int64_t images, int64_t pixels) {
  char error[256];
  uint8_t *bytes = malloc((size_t)(images * pixels));
  moon_answer *answers = calloc((size_t)images, sizeof *answers);
  for (int64_t i = 0; i < images * pixels; i++) bytes[i] = (uint8_t)next(256);
  const bool is_good = !moon_predict(model, bytes, images, answers, error, sizeof error);
  for (int64_t i = 0; is_good && i < images; i++) {
    const moon_answer *a = &answers[i];
    if (!moon_class_name(model, a->label) || a->is_known & ~1 || !(a->p_value > 0 && a->p_value <= 1)) abort();
    if (a->probability < 0 || a->probability > 1) abort(); /* NaN is possible: the weights may be */
  }
  free(bytes);
  free(answers);
  return is_good;
}

/* Returns whether the file could be loaded. */
static bool try(const uint8_t *bytes, size_t size) {
  char error[256];
  moon_model *model = moon_load_memory(bytes, size, 1e-3, error, sizeof error);
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
    answered += ask(model, images, most);
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
  printf("%ld files, %ld of them loaded, %ld answered\n", tries, loaded, answered);
}
