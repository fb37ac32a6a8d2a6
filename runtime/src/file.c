/* Reads safetensors: 8 bytes of header length, a JSON header, tensor data. Nothing of it is trusted. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"
#include "sha256.h"

#define MAX_HEADER (1 << 23) /* parsed, a header takes up to 32 times its size */

static const struct {
  const char *name;
  data_type type;
  int64_t size;
} TYPES[] = {{"F32", F32, 4},   {"F16", F16, 2},   {"I8", I8, 1},     {"U8", U8, 1},     {"U32", U32, 4},
             {"F64", F64, 8},   {"BF16", OTHER, 2}, {"I64", OTHER, 8}, {"U64", OTHER, 8}, {"I32", OTHER, 4},
             {"I16", OTHER, 2}, {"U16", OTHER, 2}, {"BOOL", OTHER, 1}};

static int64_t need_size(memory *m, const json *value, const char *tensor, int64_t largest) {
  if (!json_is_integer(value, 0, largest))
    fail(m, "tensor \"%.80s\" has a size or offset that is not possible in this file", tensor);
  return value->integer;
}

static void read_tensor(memory *m, const json *entry, file_tensor *t, const uint8_t *data, int64_t size) {
  const json *type = json_get(entry, "dtype"), *shape = json_get(entry, "shape"), *at = json_get(entry, "data_offsets");
  t->name = entry->key;
  if (!type || type->kind != JSON_STRING || !shape || shape->kind != JSON_ARRAY || !at || at->kind != JSON_ARRAY ||
      at->length != 2)
    fail(m, "tensor \"%.80s\" needs dtype, shape and two data_offsets", t->name);
  if (shape->length > 8) fail(m, "tensor \"%.80s\" has more than 8 dimensions", t->name);
  int64_t item = 0;
  for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
    if (!strcmp(type->text, TYPES[i].name)) {
      item = TYPES[i].size;
      t->type = TYPES[i].type;
      t->type_name = TYPES[i].name;
    }
  if (!item) fail(m, "tensor \"%.80s\" has the unknown type \"%.20s\"", t->name, type->text);
  t->elements = 1;
  for (const json *side = shape->first; side; side = side->next) {
    t->shape[t->dimensions++] = need_size(m, side, t->name, size);
    /* Both factors are at most the size of the file, which is less than 2^40. */
    t->elements *= side->integer;
    if (t->elements > size) fail(m, "tensor \"%.80s\" is larger than the file", t->name);
  }
  const int64_t begin = need_size(m, at->first, t->name, size), end = need_size(m, at->first->next, t->name, size);
  if (begin > end || end - begin != t->elements * item)
    fail(m, "tensor \"%.80s\" has a shape that does not fit its data", t->name);
  t->data = data + begin;
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const file_tensor *)a)->name, ((const file_tensor *)b)->name);
}

/* The digest is that of the whole file with zeros in place of its own digits. */
static void check_digest(memory *m, const file *f, const json *digest, size_t header) {
  if (!digest || digest->kind != JSON_STRING || digest->length != 64) fail(m, "the file has no sha256 of its content");
  uint8_t *digits = f->bytes + 8, *end = f->bytes + 8 + header;
  while (end - digits >= 64 && memcmp(digits, digest->text, 64)) digits++;
  if (end - digits < 64) fail(m, "the file has no sha256 of its content");
#ifndef MOON_FUZZ /* a fuzzer cannot guess digests, and would test nothing behind this line */
  char hex[65];
  memset(digits, '0', 64);
  sha256(f->bytes, f->size, hex);
  memcpy(digits, digest->text, 64);
  if (memcmp(hex, digest->text, 64)) fail(m, "the file is damaged: it does not match its sha256");
#endif
}

size_t header_length(memory *m, const uint8_t *start, size_t got, uint64_t size) {
  if (got < 8) fail(m, "not a .moon file: it has only %zu bytes", got);
  uint64_t length = 0;
  for (int i = 7; i >= 0; i--) length = length << 8 | start[i];
  if (size >> 40) fail(m, "the file is too large");
  if (length > MAX_HEADER || length > size - 8) fail(m, "not a .moon file, or it is cut off");
  return (size_t)length;
}

const json *parse_header(memory *m, const char *text, size_t length) {
  const json *header = json_parse(m, "the header of the file", text, length);
  if (header->kind != JSON_OBJECT) fail(m, "the header of the file is not a JSON object");
  return header;
}

int64_t declared_bytes(memory *m, const json *header) {
  int64_t most = 0;
  for (const json *entry = header->first; entry; entry = entry->next) {
    if (!strcmp(entry->key, "__metadata__")) continue;
    const json *at = json_get(entry, "data_offsets"), *end = at && at->kind == JSON_ARRAY && at->length == 2
                                                                ? at->first->next : NULL;
    if (!json_is_integer(end, 0, INT64_MAX / 2)) fail(m, "tensor \"%.80s\" has no valid data_offsets", entry->key);
    if (end->integer > most) most = end->integer;
  }
  return most;
}

const json *read_file(memory *keep, memory *scratch, file *f) {
  const size_t length = header_length(keep, f->bytes, f->size, f->size);
  const uint8_t *data = f->bytes + 8 + length;
  const size_t size = f->size - 8 - length;
  const json *header = parse_header(keep, (const char *)f->bytes + 8, length);
  const json *metadata = json_get(json_get(header, "__metadata__"), "moon");
  if (!metadata || metadata->kind != JSON_STRING)
    fail(keep, "not a .moon file: a safetensors file without the description of a network (\"moon\")");
  check_digest(keep, f, json_get(json_get(header, "__metadata__"), "sha256"), length);
  f->metadata = metadata->text;
  f->tensors = take(keep, header->length, sizeof *f->tensors);
  for (const json *entry = header->first; entry; entry = entry->next)
    if (strcmp(entry->key, "__metadata__")) read_tensor(keep, entry, &f->tensors[f->count++], data, (int64_t)size);
  if (declared_bytes(keep, header) != (int64_t)size) fail(keep, "the file is longer than its header declares");
  qsort(f->tensors, f->count, sizeof *f->tensors, by_name);
  for (size_t i = 1; i < f->count; i++)
    if (!by_name(&f->tensors[i - 1], &f->tensors[i]))
      fail(keep, "tensor \"%.80s\" occurs twice", f->tensors[i].name);
  return json_parse(scratch, "the description of the network", f->metadata, metadata->length);
}

const file_tensor *find_tensor(const file *f, const char *name) {
  const file_tensor key = {.name = name};
  return f->count ? bsearch(&key, f->tensors, f->count, sizeof key, by_name) : NULL;
}

const file_tensor *need_tensor(memory *m, const file *f, const char *name) {
  const file_tensor *t = find_tensor(f, name);
  if (!t) fail(m, "tensor \"%.80s\" is missing", name);
  return t;
}
