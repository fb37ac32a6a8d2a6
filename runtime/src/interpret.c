/* Runs the program of a detector. NaN is treated as torch does. */

#include <math.h>
#include <string.h>

#include "program.h"

/* An operand while a step runs; a scalar has the stride 0. */
typedef struct {
  const double *x;
  int64_t length, stride;
} values;

static values get(const step *s, int i, const double *work) {
  const operand *in = &s->in[i];
  return (values){in->constant ? in->constant : work + in->at, in->length, in->length > 1};
}

#define EACH(expression)                                               \
  for (int64_t i = 0; i < n; i++) {                                    \
    const double x = a.x[i * a.stride];                                \
    out[i] = (expression);                                             \
  }                                                                    \
  break
#define EACH_PAIR(expression)                                          \
  for (int64_t i = 0; i < n; i++) {                                    \
    const double x = a.x[i * a.stride], y = b.x[i * b.stride];         \
    out[i] = (expression);                                             \
  }                                                                    \
  break

static void apply_unary(step_kind kind, values a, double *out, int64_t n) {
  switch (kind) {
    case DO_NEG: EACH(-x);
    case DO_ABS: EACH(fabs(x));
    case DO_EXP: EACH(exp(x));
    case DO_LOG: EACH(log(x));
    case DO_SQRT: EACH(sqrt(x));
    case DO_SQUARE: EACH(x * x);
    case DO_ISNAN: EACH(isnan(x) ? 1 : 0);
    default: EACH(x == 0 ? 1 : 0); /* DO_NOT */
  }
}

static void apply_binary(step_kind kind, values a, values b, double *out, int64_t n) {
  switch (kind) {
    case DO_ADD: EACH_PAIR(x + y);
    case DO_SUB: EACH_PAIR(x - y);
    case DO_MUL: EACH_PAIR(x * y);
    case DO_DIV: EACH_PAIR(x / y);
    case DO_POW: EACH_PAIR(pow(x, y));
    case DO_MINIMUM: EACH_PAIR(isnan(x) || x < y ? x : y);
    case DO_MAXIMUM: EACH_PAIR(isnan(x) || x > y ? x : y);
    case DO_GT: EACH_PAIR(x > y);
    case DO_GE: EACH_PAIR(x >= y);
    case DO_LT: EACH_PAIR(x < y);
    case DO_LE: EACH_PAIR(x <= y);
    case DO_EQ: EACH_PAIR(x == y);
    default: EACH_PAIR(x != y); /* DO_NE */
  }
}

static void choose(values condition, values a, values b, double *out, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    out[i] = condition.x[i * condition.stride] != 0 ? a.x[i * a.stride] : b.x[i * b.stride];
}

/* Whether element i comes before element j in descending order. */
static bool is_before(const double *x, int64_t i, int64_t j) {
  const bool a = isnan(x[i]), b = isnan(x[j]);
  if (a || b) return a && (!b || i < j);
  return x[i] > x[j] || (x[i] == x[j] && i < j);
}

int64_t find_largest(const double *x, int64_t length) {
  int64_t best = 0;
  for (int64_t i = 1; i < length; i++)
    if (is_before(x, i, best)) best = i;
  return best;
}

int64_t count_not_above(const double *ascending, int64_t length, double x) {
  int64_t from = 0, to = length;
  while (from < to) {
    const int64_t middle = from + (to - from) / 2;
    if (ascending[middle] <= x) from = middle + 1;
    else to = middle;
  }
  return from;
}

static double smallest(values a) {
  double result = a.x[0];
  for (int64_t i = 1; i < a.length; i++) result = isnan(result) || result < a.x[i] ? result : a.x[i];
  return result;
}

/* Independent sums, so that the compiler can use vectors; eight doubles at a time. */
#define SUM_OF(expression)                                             \
  double sum[8] = {0};                                                 \
  int64_t i = 0;                                                       \
  for (; i + 8 <= n; i += 8)                                           \
    for (int64_t j = 0; j < 8; j++) {                                  \
      const int64_t at = i + j;                                        \
      sum[j] += (expression);                                          \
    }                                                                  \
  for (; i < n; i++) {                                                 \
    const int64_t at = i;                                              \
    sum[0] += (expression);                                            \
  }                                                                    \
  return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]))

static double sum_of(const double *x, int64_t n) { SUM_OF(x[at]); }
static double sum_of_products(const double *x, const double *y, int64_t n) { SUM_OF(x[at] * y[at]); }
static double squared_distance(const double *x, const double *y, int64_t n) {
  SUM_OF((x[at] - y[at]) * (x[at] - y[at]));
}
static double squared_distance_to_floats(const double *x, const float *y, int64_t n) {
  SUM_OF((x[at] - (double)y[at]) * (x[at] - (double)y[at]));
}

/* The largest value, or 0 where it could not be subtracted. */
static double finite_largest(values a) {
  const double largest = a.x[find_largest(a.x, a.length)];
  return isinf(largest) ? 0 : largest;
}

static double log_sum_exp(values a) {
  const double largest = finite_largest(a);
  double sum = 0;
  for (int64_t i = 0; i < a.length; i++) sum += exp(a.x[i] - largest);
  return log(sum) + largest;
}

static double reduce(step_kind kind, values a) {
  switch (kind) {
    case DO_SUM: return sum_of(a.x, a.length);
    case DO_MEAN: return sum_of(a.x, a.length) / (double)a.length;
    case DO_AMAX: return a.x[find_largest(a.x, a.length)];
    case DO_AMIN: return smallest(a);
    case DO_ARGMAX: return (double)find_largest(a.x, a.length);
    case DO_NORM: return sqrt(sum_of_products(a.x, a.x, a.length));
    default: return log_sum_exp(a);
  }
}

static void softmax(bool is_log, values a, double *out) {
  const double largest = a.x[find_largest(a.x, a.length)];
  double sum = 0;
  for (int64_t i = 0; i < a.length; i++) sum += out[i] = exp(a.x[i] - largest);
  const double log_sum = log(sum);
  for (int64_t i = 0; i < a.length; i++) out[i] = is_log ? a.x[i] - largest - log_sum : out[i] / sum;
}

/* `heap` has positions in x; the one that comes last in descending order is on top. */
static void sink(const double *x, double *heap, int64_t size, int64_t i) {
  for (;;) {
    int64_t last = i;
    for (int64_t child = 2 * i + 1; child < size && child <= 2 * i + 2; child++)
      if (is_before(x, (int64_t)heap[last], (int64_t)heap[child])) last = child;
    if (last == i) return;
    const double moved = heap[i];
    heap[i] = heap[last];
    heap[last] = moved;
    i = last;
  }
}

/* Positions of the k largest, in descending order. The result is the heap. */
static void find_top(values a, double *out, int64_t k) {
  for (int64_t i = 0; i < k; i++) out[i] = (double)i;
  for (int64_t i = k / 2 - 1; i >= 0; i--) sink(a.x, out, k, i);
  for (int64_t i = k; i < a.length; i++)
    if (is_before(a.x, i, (int64_t)out[0])) {
      out[0] = (double)i;
      sink(a.x, out, k, 0);
    }
  for (int64_t size = k - 1; size > 0; size--) {
    const double last = out[0];
    out[0] = out[size];
    out[size] = last;
    sink(a.x, out, size, 0);
  }
}

/* The position that a number stands for, -1 if it is none. */
static int64_t position(double x, int64_t length) {
  return x >= 0 && x < (double)length && x == floor(x) ? (int64_t)x : -1;
}

static void scatter(values positions, values a, double *out, int64_t size) {
  const int64_t n = positions.length > a.length ? positions.length : a.length;
  memset(out, 0, (size_t)size * sizeof *out);
  for (int64_t i = 0; i < n; i++) {
    const int64_t at = position(positions.x[i * positions.stride], size);
    if (at >= 0) out[at] = a.x[i * a.stride];
  }
}

static void multiply(const table *t, const kernels *k, values a, double *out, float *rounded) {
  if (t->twice) {
    for (int64_t row = 0; row < t->rows; row++)
      out[row] = sum_of_products(t->twice + row * t->columns, a.x, t->columns);
    return;
  }
  for (int64_t i = 0; i < a.length; i++) rounded[i] = (float)a.x[i];
  for (int64_t row = 0; row < t->rows; row++)
    out[row] = (double)k->dot(t->single + row * t->columns, rounded, t->columns);
}

static void measure(const table *t, values a, double *out) {
  for (int64_t row = 0, at = 0; row < t->rows; row++, at += t->columns)
    out[row] = sqrt(t->twice ? squared_distance(a.x, t->twice + at, t->columns)
                             : squared_distance_to_floats(a.x, t->single + at, t->columns));
}

static void copy_row(const table *t, double index, double *out) {
  const int64_t row = position(index, t->rows), at = row * t->columns;
  for (int64_t i = 0; i < t->columns; i++)
    out[i] = row < 0 ? NAN : t->twice ? t->twice[at + i] : (double)t->single[at + i];
}

static void concatenate(const step *s, const double *work, double *out) {
  for (int i = 0; i < s->inputs; i++) {
    const values a = get(s, i, work);
    memcpy(out, a.x, (size_t)a.length * sizeof *out);
    out += a.length;
  }
}

static void run_step(const program *p, const step *s, const kernels *k, double *work) {
  const values a = get(s, 0, work), b = s->inputs > 1 ? get(s, 1, work) : a;
  double *out = work + s->at;
  switch (s->kind) {
    case DO_WHERE: choose(a, b, get(s, 2, work), out, s->length); break;
    case DO_SUM: case DO_MEAN: case DO_AMAX: case DO_AMIN: case DO_ARGMAX: case DO_NORM: case DO_LOGSUMEXP:
      out[0] = reduce(s->kind, a);
      break;
    case DO_SOFTMAX: case DO_LOG_SOFTMAX: softmax(s->kind == DO_LOG_SOFTMAX, a, out); break;
    case DO_TOPK: case DO_TOPK_INDEX:
      find_top(a, out, s->length);
      for (int64_t i = 0; s->kind == DO_TOPK && i < s->length; i++) out[i] = a.x[(int64_t)out[i]];
      break;
    case DO_SLICE: memcpy(out, a.x + s->start, (size_t)s->length * sizeof *out); break;
    case DO_CONCAT: concatenate(s, work, out); break;
    case DO_SCATTER: scatter(a, b, out, s->length); break;
    case DO_MATMUL: multiply(&s->table, k, a, out, (float *)(work + p->rounded)); break;
    case DO_DISTANCES: measure(&s->table, a, out); break;
    case DO_ROW: copy_row(&s->table, a.x[0], out); break;
    case DO_RANK:
      for (int64_t i = 0; i < s->length; i++)
        out[i] = isnan(a.x[i]) ? a.x[i] : (double)count_not_above(b.x, b.length, a.x[i]);
      break;
    default:
      if (s->inputs == 1) apply_unary(s->kind, a, out, s->length);
      else apply_binary(s->kind, a, b, out, s->length);
  }
}

double run_program(const program *p, const moon_model *model, const float *logits, const float *features, double *work) {
  for (int64_t i = 0; i < p->logits; i++) work[i] = logits[i];
  for (int64_t i = 0; features && i < p->features; i++) work[p->logits + i] = features[i];
  for (int i = 0; i < p->count && !is_stopped(model); i++) run_step(p, &p->steps[i], model->kernels, work);
  return work[p->result];
}
