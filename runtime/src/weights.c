/* Weights of the file as float32 lists of non-zeros: from dense tensors, or from gaps and values. */

#include <stdio.h>
#include <string.h>

#include "model.h"

static float half_to_float(uint16_t half) {
  const uint32_t sign = (uint32_t)(half >> 15) << 31, exponent = half >> 10 & 31, fraction = half & 1023;
  union {
    uint32_t bits;
    float value;
  } result;
  if (exponent) result.bits = (exponent == 31 ? 255u << 23 : (exponent + 112) << 23) | fraction << 13;
  else result.value = (float)fraction * 0x1p-24f;
  result.bits |= sign;
  return result.value;
}

/* The element of a tensor of numbers. Data in a file need not be aligned. */
static float element(const file_tensor *t, int64_t i) {
  float single;
  uint16_t half;
  if (t->type == F32) return memcpy(&single, t->data + 4 * i, 4), single;
  if (t->type == F16) return memcpy(&half, t->data + 2 * i, 2), half_to_float(half);
  return (float)(int8_t)t->data[i];
}

const float *read_floats(memory *m, const file *f, const char *name, int64_t count) {
  const file_tensor *t = need_tensor(m, f, name);
  if (t->type != F32 && t->type != F16) fail(m, "tensor \"%.80s\" is not F32 or F16", name);
  if (t->elements != count)
    fail(m, "tensor \"%.80s\" has %lld elements, not %lld", name, (long long)t->elements, (long long)count);
  float *result = take(m, (size_t)count, sizeof *result);
  for (int64_t i = 0; i < count; i++) result[i] = element(t, i);
  return result;
}

static sparse *allocate(memory *m, const operation *op, int64_t nonzeros) {
  if (nonzeros >= INT32_MAX) fail(m, "weight \"%.80s\" is too large", op->weight);
  sparse *s = take(m, 1, sizeof *s);
  s->rows = op->shape[0];
  s->columns = op->shape[1] * op->shape[2] * op->shape[3];
  s->start = take(m, (size_t)s->rows + 1, sizeof *s->start);
  s->index = take(m, (size_t)nonzeros, sizeof *s->index);
  s->value = take(m, (size_t)nonzeros, sizeof *s->value);
  return s;
}

static sparse *from_dense(memory *m, const file_tensor *t, const operation *op) {
  const int64_t columns = (int64_t)op->shape[1] * op->shape[2] * op->shape[3], size = op->shape[0] * columns;
  if ((t->type != F32 && t->type != F16) || t->elements != size)
    fail(m, "weight \"%.80s\" must be F32 or F16 with %lld elements", op->weight, (long long)size);
  int64_t nonzeros = 0;
  for (int64_t i = 0; i < size; i++) nonzeros += element(t, i) != 0;
  sparse *s = allocate(m, op, nonzeros);
  uint32_t n = 0;
  for (int row = 0; row < s->rows; row++) {
    for (int64_t column = 0; column < columns; column++) {
      const float value = element(t, row * columns + column);
      if (value != 0) s->index[n] = (uint32_t)column, s->value[n++] = value;
    }
    s->start[row + 1] = n;
  }
  return s;
}

static const file_tensor *part(memory *m, const file *f, const char *weight, const char *suffix) {
  char name[512];
  if (snprintf(name, sizeof name, "%s.%s", weight, suffix) >= (int)sizeof name) fail(m, "a weight's name is too long");
  return need_tensor(m, f, name);
}

static sparse *from_gaps(memory *m, const file *f, const operation *op) {
  const file_tensor *counts = part(m, f, op->weight, "counts"), *gaps = part(m, f, op->weight, "gaps");
  const file_tensor *values = part(m, f, op->weight, "values"), *scale = NULL;
  if (counts->type != U32 || gaps->type != U8 || (values->type != F32 && values->type != F16 && values->type != I8))
    fail(m, "weight \"%.80s\" needs counts in U32, gaps in U8 and values in F32, F16 or I8", op->weight);
  if (values->type == I8) scale = part(m, f, op->weight, "scale");
  if (counts->elements != op->shape[0] || (scale && (scale->type != F32 || scale->elements != op->shape[0])))
    fail(m, "weight \"%.80s\" needs one count and one scale for each of its %d outputs", op->weight, op->shape[0]);
  sparse *s = allocate(m, op, values->elements);
  int64_t gap = 0;
  uint32_t n = 0;
  for (int row = 0; row < s->rows; row++) {
    uint32_t count;
    memcpy(&count, counts->data + 4 * (int64_t)row, 4);
    const float factor = scale ? element(scale, row) : 1;
    int64_t column = -1;
    if (count > values->elements - n) fail(m, "weight \"%.80s\" has fewer values than its counts say", op->weight);
    for (const uint32_t end = n + count; n < end; n++) {
      for (; gap < gaps->elements && gaps->data[gap] == 255; gap++) column += 255;
      if (gap == gaps->elements) fail(m, "weight \"%.80s\" has fewer gaps than values", op->weight);
      column += gaps->data[gap++] + 1;
      if (column >= s->columns) fail(m, "weight \"%.80s\" has a value outside of its shape", op->weight);
      s->index[n] = (uint32_t)column;
      s->value[n] = element(values, n) * factor;
    }
    s->start[row + 1] = n;
  }
  if (n != values->elements || gap != gaps->elements)
    fail(m, "weight \"%.80s\" has more values or gaps than its counts say", op->weight);
  return s;
}

int64_t count_weights(const file *f, const operation *op) {
  char name[512];
  snprintf(name, sizeof name, "%s.values", op->weight);
  const file_tensor *dense = find_tensor(f, op->weight), *t = dense ? dense : find_tensor(f, name);
  return t ? t->elements : 0; /* reading it is an error */
}

sparse *read_weights(memory *m, const file *f, const operation *op) {
  const file_tensor *dense = find_tensor(f, op->weight);
  return dense ? from_dense(m, dense, op) : from_gaps(m, f, op);
}
