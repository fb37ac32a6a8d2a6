/* A small, strict JSON reader (RFC 8259) with limits on depth. Strings are decoded and end in a zero byte. */

#ifndef MOON_JSON_H
#define MOON_JSON_H

#include <stdbool.h>
#include <stdint.h>

#include "memory.h"

typedef enum { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT } json_kind;

typedef struct json {
  json_kind kind;
  bool is_integer;
  const char *key;  /* of a member of an object */
  const char *text; /* of a string */
  size_t length;    /* of a string in bytes, or the number of elements or members */
  int64_t integer;  /* of a number that is_integer */
  struct json *first, *next;
} json;

/* Parse all of `text`. Fails with a message that begins with `what`. */
json *json_parse(memory *m, const char *what, const char *text, size_t size);

/* The member of an object, or NULL. Names are unique: a repeated name is an error of the text. */
const json *json_get(const json *object, const char *key);

#endif
