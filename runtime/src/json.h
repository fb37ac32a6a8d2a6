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
  const char *text; /* of a string; of a number, in the text that was parsed */
  size_t length;    /* of `text` in bytes, or the number of elements or members */
  int64_t integer;  /* of a number that is_integer */
  struct json *first, *next;
} json;

/* Parse all of `text`. Fails with a message that begins with `what`. */
json *json_parse(memory *m, const char *what, const char *text, size_t size);

/* The member of an object, or NULL. Names are unique: a repeated name is an error of the text. */
const json *json_get(const json *object, const char *key);

/* All of these may be asked about a value that is not there (NULL). */
bool json_is_absent(const json *value); /* or null */
bool json_is_integer(const json *value, int64_t least, int64_t most);

/* A short text, such as a name of ours; "?" if it is something else. And which of `names` it is, or -1. */
const char *json_word(const json *value);
int json_find(const char *word, const char *const *names, int count);

/* Whether the value is a number that a double can hold; if so, `number` receives it. The text must still be there. */
bool json_number(const json *value, double *number);

#endif
