#include "json.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH 32

typedef struct {
  memory *m;
  const char *what, *start, *at, *end;
} reader;

static _Noreturn void bad(reader *r, const char *problem) {
  fail(r->m, "%s is not valid JSON: %s at byte %zu", r->what, problem, (size_t)(r->at - r->start));
}

static void skip_space(reader *r) {
  while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r')) r->at++;
}

static bool accept(reader *r, char c) {
  skip_space(r);
  if (r->at == r->end || *r->at != c) return false;
  r->at++;
  return true;
}

static bool accept_word(reader *r, const char *word) {
  const size_t length = strlen(word);
  if ((size_t)(r->end - r->at) < length || memcmp(r->at, word, length)) return false;
  r->at += length;
  return true;
}

static unsigned hex4(reader *r) {
  unsigned value = 0;
  for (int i = 0; i < 4; i++, r->at++) {
    const char c = r->at < r->end ? *r->at : 0;
    if (c >= '0' && c <= '9') value = value * 16 + (unsigned)(c - '0');
    else if (c >= 'a' && c <= 'f') value = value * 16 + (unsigned)(c - 'a' + 10);
    else if (c >= 'A' && c <= 'F') value = value * 16 + (unsigned)(c - 'A' + 10);
    else bad(r, "a character code needs four hexadecimal digits");
  }
  return value;
}

static char *put_utf8(char *out, unsigned code) {
  if (code < 0x80) *out++ = (char)code;
  else if (code < 0x800) {
    *out++ = (char)(0xc0 | code >> 6);
    *out++ = (char)(0x80 | (code & 63));
  } else if (code < 0x10000) {
    *out++ = (char)(0xe0 | code >> 12);
    *out++ = (char)(0x80 | (code >> 6 & 63));
    *out++ = (char)(0x80 | (code & 63));
  } else {
    *out++ = (char)(0xf0 | code >> 18);
    *out++ = (char)(0x80 | (code >> 12 & 63));
    *out++ = (char)(0x80 | (code >> 6 & 63));
    *out++ = (char)(0x80 | (code & 63));
  }
  return out;
}

static unsigned escaped_code(reader *r) {
  const unsigned high = hex4(r);
  if (high >= 0xdc00 && high < 0xe000) bad(r, "half of a surrogate pair");
  if (high < 0xd800 || high >= 0xdc00) return high;
  if (!accept_word(r, "\\u")) bad(r, "half of a surrogate pair");
  const unsigned low = hex4(r);
  if (low < 0xdc00 || low >= 0xe000) bad(r, "half of a surrogate pair");
  return 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
}

/* The string after its opening quote. Decoding never makes it longer. */
static const char *read_string(reader *r, size_t *length) {
  const char *close = r->at;
  while (close < r->end && *close != '"') close += *close == '\\' ? 2 : 1;
  if (close >= r->end) bad(r, "a string without an end");
  char *result = take(r->m, (size_t)(close - r->at) + 1, 1), *out = result;
  while (*r->at != '"') {
    const char c = *r->at++;
    if ((unsigned char)c < 0x20) bad(r, "a control character in a string");
    if (c != '\\') {
      *out++ = c;
      continue;
    }
    const char kind = *r->at++;
    const char *found = strchr("\"\\/bfnrt", kind);
    if (kind == 'u') out = put_utf8(out, escaped_code(r));
    else if (kind && found) *out++ = "\"\\/\b\f\n\r\t"[found - "\"\\/bfnrt"];
    else bad(r, "an unknown escape in a string");
  }
  r->at++;
  *length = (size_t)(out - result);
  if (memchr(result, 0, *length)) bad(r, "a zero byte in a string");
  return result;
}

static bool digits(reader *r) {
  const char *start = r->at;
  while (r->at < r->end && *r->at >= '0' && *r->at <= '9') r->at++;
  return r->at > start;
}

/* Integers get their value; other numbers stay text until somebody asks (json_number). */
static void read_number(reader *r, json *value) {
  value->text = r->at;
  const bool negative = *r->at == '-';
  if (negative) r->at++;
  const char *start = r->at;
  if (!digits(r)) bad(r, "expected a value");
  if (*start == '0' && r->at - start > 1) bad(r, "a number with a leading zero");
  value->kind = JSON_NUMBER;
  if (r->at - start <= 18) {
    value->is_integer = true;
    for (const char *c = start; c < r->at; c++) value->integer = value->integer * 10 + (*c - '0');
    if (negative) value->integer = -value->integer;
  }
  if (r->at < r->end && *r->at == '.') {
    r->at++;
    value->is_integer = false;
    if (!digits(r)) bad(r, "a number that ends in a point");
  }
  if (r->at < r->end && (*r->at == 'e' || *r->at == 'E')) {
    r->at++;
    value->is_integer = false;
    if (r->at < r->end && (*r->at == '+' || *r->at == '-')) r->at++;
    if (!digits(r)) bad(r, "a number without its exponent");
  }
  value->length = (size_t)(r->at - value->text);
}

static json *read_value(reader *r, int depth);

static const char *read_key(reader *r, const json *object) {
  size_t length;
  if (!accept(r, '"')) bad(r, "expected a name in quotes");
  const char *key = read_string(r, &length);
  if (!accept(r, ':')) bad(r, "expected a colon");
  /* Looking through all members would take quadratic time in files with many tensors; file.c sorts those. */
  if (object->length < 64 && json_get(object, key)) bad(r, "a name that occurs twice");
  return key;
}

static void read_children(reader *r, json *parent, char close, int depth) {
  json **next = &parent->first;
  if (accept(r, close)) return;
  do {
    const char *key = parent->kind == JSON_OBJECT ? read_key(r, parent) : NULL;
    *next = read_value(r, depth);
    (*next)->key = key;
    next = &(*next)->next;
    parent->length++;
  } while (accept(r, ','));
  if (!accept(r, close)) bad(r, "expected a comma or the end of a list or object");
}

static json *read_value(reader *r, int depth) {
  if (depth > DEPTH) bad(r, "too many levels");
  json *value = take(r->m, 1, sizeof *value);
  if (accept(r, '{')) {
    value->kind = JSON_OBJECT;
    read_children(r, value, '}', depth + 1);
  } else if (accept(r, '[')) {
    value->kind = JSON_ARRAY;
    read_children(r, value, ']', depth + 1);
  } else if (accept(r, '"')) {
    value->kind = JSON_STRING;
    value->text = read_string(r, &value->length);
  } else if (r->at == r->end) bad(r, "expected a value");
  else if (accept_word(r, "null")) value->kind = JSON_NULL;
  else if (accept_word(r, "true")) value->kind = JSON_TRUE;
  else if (accept_word(r, "false")) value->kind = JSON_FALSE;
  else read_number(r, value);
  return value;
}

json *json_parse(memory *m, const char *what, const char *text, size_t size) {
  reader r = {m, what, text, text, text + size};
  json *value = read_value(&r, 0);
  skip_space(&r);
  if (r.at != r.end) bad(&r, "something follows the value");
  return value;
}

const json *json_get(const json *object, const char *key) {
  if (object && object->kind == JSON_OBJECT)
    for (const json *member = object->first; member; member = member->next)
      if (!strcmp(member->key, key)) return member;
  return NULL;
}

bool json_is_absent(const json *value) { return !value || value->kind == JSON_NULL; }

bool json_is_integer(const json *value, int64_t least, int64_t most) {
  return value && value->kind == JSON_NUMBER && value->is_integer && value->integer >= least && value->integer <= most;
}

const char *json_word(const json *value) {
  return value && value->kind == JSON_STRING && value->length < 80 ? value->text : "?";
}

int json_find(const char *word, const char *const *names, int count) {
  for (int i = 0; i < count; i++)
    if (!strcmp(word, names[i])) return i;
  return -1;
}

bool json_number(const json *value, double *number) {
  char text[64];
  if (!value || value->kind != JSON_NUMBER || value->length > 40) return false;
  /* strtod wants the decimal point of the locale that the program around us has chosen. */
  const char *mark = localeconv()->decimal_point, *point = memchr(value->text, '.', value->length);
  const size_t before = point ? (size_t)(point - value->text) : value->length, width = strlen(mark);
  if (width > 16) return false;
  memcpy(text, value->text, before);
  text[before] = 0;
  if (point) {
    memcpy(text + before, mark, width);
    memcpy(text + before + width, point + 1, value->length - before - 1);
    text[value->length - 1 + width] = 0;
  }
  *number = strtod(text, NULL);
  return isfinite(*number);
}
