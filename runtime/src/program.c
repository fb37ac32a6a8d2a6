/* Reads the program of a detector, checks it, and decides where its vectors are. */

#include "program.h"

#include <math.h>
#include <string.h>

static const char *const STEPS[] = {
    "neg",     "abs",        "exp",   "log",    "sqrt",    "square", "isnan",     "not",     "add",         "sub",
    "mul",     "div",        "pow",   "minimum", "maximum", "gt",    "ge",        "lt",      "le",          "eq",
    "ne",      "where",      "sum",   "mean",   "amax",    "amin",   "argmax",    "norm",    "logsumexp",   "softmax",
    "log_softmax", "topk",   "topk_index", "slice", "concat", "scatter", "matmul", "distances", "row",      "rank"};

typedef struct {
  int64_t length; /* 0: not computed yet */
  int last;       /* the step that reads it last */
  int64_t at;
} vector;

typedef struct {
  moon_model *model;
  memory *m;
  const json *entry;
  int index;
  program *program;
  vector *vectors;
  int vector_count;
  const double **vector_constants; /* of each tensor of the file, NULL: not read yet */
  table *tables;
} reading;

#define TIME_OF_ELEMENT 100 /* in multiply-adds with vectors: an exponential function, for example */
#define TIME_OF_PRODUCT 10  /* of doubles */

#define BAD(r, ...) fail((r)->m, "step %d of the detector: " __VA_ARGS__)

static double double_at(const file_tensor *t, int64_t i) {
  double value;
  return memcpy(&value, t->data + 8 * i, 8), value;
}

/* All elements of a tensor as doubles. Data in a file need not be aligned. */
static const double *read_doubles(memory *m, const file *f, const file_tensor *t) {
  double *result = take(m, (size_t)t->elements, sizeof *result);
  if (t->type == F64) {
    for (int64_t i = 0; i < t->elements; i++) result[i] = double_at(t, i);
    return result;
  }
  const float *single = read_floats(m, f, t->name, t->elements);
  for (int64_t i = 0; i < t->elements; i++) result[i] = single[i];
  return result;
}

static void check_type(memory *m, const file_tensor *t) {
  if (t->type != F64 && t->type != F32 && t->type != F16) fail(m, "tensor \"%.80s\" is not F64, F32 or F16", t->name);
}

static const file_tensor *need_vector(memory *m, const file *f, const char *name) {
  const file_tensor *t = need_tensor(m, f, name);
  check_type(m, t);
  if (t->dimensions > 1 || t->elements < 1 || t->elements > MAX_VECTOR)
    fail(m, "tensor \"%.80s\" must be a vector of 1 to %lld numbers", name, (long long)MAX_VECTOR);
  return t;
}

const double *read_vector(memory *m, const file *f, const char *name, int64_t *length) {
  const file_tensor *t = need_vector(m, f, name);
  *length = t->elements;
  return read_doubles(m, f, t);
}

/* A tensor that several steps use is converted once: a small file must not need much memory. */
static const double *vector_constant(const reading *r, const char *name, int64_t *length) {
  const file *f = &r->model->file;
  const file_tensor *t = need_vector(r->m, f, name);
  const double **known = &r->vector_constants[t - f->tensors];
  if (!*known) *known = read_doubles(r->m, f, t);
  *length = t->elements;
  return *known;
}

static table need_table(const reading *r, const char *name) {
  const file *f = &r->model->file;
  const file_tensor *t = need_tensor(r->m, f, name);
  table *known = &r->tables[t - f->tensors];
  if (known->rows) return *known;
  check_type(r->m, t);
  if (t->dimensions != 2 || t->elements < 1 || t->shape[0] > MAX_VECTOR || t->shape[1] > MAX_VECTOR)
    BAD(r, "tensor \"%.80s\" must be a table with two dimensions", r->index, name);
  known->rows = t->shape[0];
  known->columns = t->shape[1];
  if (t->type == F64) known->twice = read_doubles(r->m, f, t);
  else known->single = read_floats(r->m, f, name, t->elements);
  return *known;
}

/* {"value": x}, where x is a number or the name of one that JSON does not have. */
static const double *read_scalar(const reading *r, const json *value) {
  static const char *const NAMES[] = {"inf", "-inf", "nan"};
  static const double VALUES[] = {INFINITY, -INFINITY, NAN};
  double *result = take(r->m, 1, sizeof *result);
  const int found = json_find(json_word(value), NAMES, 3);
  if (found >= 0) *result = VALUES[found];
  else if (!json_number(value, result)) BAD(r, "a value must be a number, \"inf\", \"-inf\" or \"nan\"", r->index);
  return result;
}

static const char *tensor_name(const json *value) {
  const json *name = json_get(value, "tensor");
  return name && name->kind == JSON_STRING ? name->text : NULL;
}

static void read_operand(const reading *r, const json *value, operand *in) {
  const json *scalar = json_get(value, "value");
  const char *name = tensor_name(value);
  if (name) in->constant = vector_constant(r, name, &in->length);
  else if (scalar) {
    in->constant = read_scalar(r, scalar);
    in->length = 1;
  } else if (json_is_integer(value, 0, r->vector_count - 1)) {
    in->vector = (int)value->integer;
    in->length = r->vectors[in->vector].length;
    if (!in->length && in->vector == 1) BAD(r, "the network has no output \"features\"", r->index);
    if (!in->length) BAD(r, "vector %d is used before it is computed", r->index, in->vector);
    r->vectors[in->vector].last = r->index;
    if (in->vector == 1) r->program->needs_features = true;
  } else BAD(r, "an operand must be the number of a vector, {\"tensor\": name} or {\"value\": number}", r->index);
}

static bool has_table(step_kind kind) { return kind == DO_MATMUL || kind == DO_DISTANCES || kind == DO_ROW; }

static size_t operands_of(step_kind kind) {
  if (kind == DO_WHERE) return 3;
  if ((kind >= DO_ADD && kind <= DO_NE) || kind >= DO_SCATTER) return 2;
  return 1;
}

static void read_operands(const reading *r, step *s) {
  const json *in = json_get(r->entry, "in");
  if (!in || in->kind != JSON_ARRAY || !in->length || in->length > (size_t)MAX_VECTOR)
    BAD(r, "\"in\" must be a list of operands", r->index);
  if (s->kind != DO_CONCAT && in->length != operands_of(s->kind))
    BAD(r, "\"%s\" needs %zu operand(s)", r->index, STEPS[s->kind], operands_of(s->kind));
  s->in = take(r->m, in->length, sizeof *s->in);
  for (const json *value = in->first; value; value = value->next) {
    const bool is_last = !value->next;
    if (is_last && (has_table(s->kind) || s->kind == DO_RANK) && !tensor_name(value))
      BAD(r, "the second operand of \"%s\" must be a tensor of the file", r->index, STEPS[s->kind]);
    if (is_last && has_table(s->kind)) s->table = need_table(r, tensor_name(value));
    else read_operand(r, value, &s->in[s->inputs++]);
  }
}

/* The common length: vectors of length 1 fit any other. */
static int64_t broadcast(const reading *r, const step *s) {
  int64_t length = 1;
  for (int i = 0; i < s->inputs; i++) {
    const int64_t other = s->in[i].length;
    if (length != 1 && other != 1 && length != other)
      BAD(r, "operands of \"%s\" have the lengths %lld and %lld", r->index, STEPS[s->kind], (long long)length,
          (long long)other);
    if (other > length) length = other;
  }
  return length;
}

static int64_t need_size(const reading *r, const char *key, int64_t least, int64_t most) {
  const json *value = json_get(r->entry, key);
  if (!json_is_integer(value, least, most))
    BAD(r, "\"%s\" must be an integer from %lld to %lld", r->index, key, (long long)least, (long long)most);
  return value->integer;
}

static void need_length(const reading *r, const step *s, int64_t length) {
  if (s->in[0].length != length)
    BAD(r, "\"%s\" needs a vector of length %lld, not %lld", r->index, STEPS[s->kind], (long long)length,
        (long long)s->in[0].length);
}

static void check_ascending(const reading *r, const operand *in) {
  for (int64_t i = 0; i < in->length; i++)
    if (isnan(in->constant[i]) || (i && in->constant[i] < in->constant[i - 1]))
      BAD(r, "the tensor of \"rank\" must be in ascending order", r->index);
}

static int64_t concat_length(const reading *r, const step *s) {
  int64_t length = 0;
  for (int i = 0; i < s->inputs; i++) length += s->in[i].length; /* at most 2^20 * 2^20 */
  if (length > MAX_VECTOR) BAD(r, "the result is too long", r->index);
  return length;
}

static int64_t result_length(const reading *r, step *s) {
  const int64_t length = s->in[0].length;
  switch (s->kind) {
    case DO_SUM: case DO_MEAN: case DO_AMAX: case DO_AMIN: case DO_ARGMAX: case DO_NORM: case DO_LOGSUMEXP: return 1;
    case DO_TOPK: case DO_TOPK_INDEX: return need_size(r, "k", 1, length);
    case DO_SLICE:
      s->start = need_size(r, "start", 0, length - 1);
      return need_size(r, "end", s->start + 1, length) - s->start;
    case DO_CONCAT: return concat_length(r, s);
    case DO_SCATTER: broadcast(r, s); return need_size(r, "size", 1, MAX_VECTOR);
    case DO_MATMUL: case DO_DISTANCES: need_length(r, s, s->table.columns); return s->table.rows;
    case DO_ROW: need_length(r, s, 1); return s->table.columns;
    case DO_RANK: check_ascending(r, &s->in[1]); return length;
    default: return broadcast(r, s);
  }
}

static void read_step(reading *r, step *s) {
  const json *name = json_get(r->entry, "op");
  const int kind = json_find(json_word(name), STEPS, sizeof STEPS / sizeof *STEPS);
  if (kind < 0) BAD(r, "\"%s\" is not supported", r->index, json_word(name));
  s->kind = (step_kind)kind;
  read_operands(r, s);
  s->length = result_length(r, s);
  s->out = (int)need_size(r, "out", 2, r->vector_count - 1);
  vector *result = &r->vectors[s->out];
  if (result->length) BAD(r, "vector %d is computed twice", r->index, s->out);
  result->length = s->length;
  result->last = r->index;
}

/* Vectors use the memory of those that are not read any more: the smallest place that is free and large enough. */
static void place_vectors(reading *r) {
  program *p = r->program;
  struct {
    int64_t at, size;
    int last;
  } *places = take(&r->model->scratch, (size_t)p->count, sizeof *places);
  int count = 0;
  int64_t longest = 1;
  p->work_size = p->logits + p->features;
  r->vectors[1].at = p->logits;
  for (int i = 0; i < p->count; i++) {
    step *s = &p->steps[i];
    int best = -1;
    for (int j = 0; j < count; j++)
      if (places[j].last < i && places[j].size >= s->length && (best < 0 || places[j].size < places[best].size))
        best = j;
    if (best < 0) {
      best = count++;
      places[best].at = p->work_size;
      places[best].size = s->length;
      p->work_size += s->length;
      if (p->work_size > MAX_WORK) fail(r->m, "the detector needs too much memory");
    }
    places[best].last = r->vectors[s->out].last;
    s->at = r->vectors[s->out].at = places[best].at;
    for (int j = 0; j < s->inputs; j++)
      if (!s->in[j].constant) s->in[j].at = r->vectors[s->in[j].vector].at;
    if (s->kind == DO_MATMUL && s->in[0].length > longest) longest = s->in[0].length;
  }
  p->rounded = p->work_size;
  p->work_size += (longest + 1) / 2;
}

static double count_work(const program *p) {
  double elements = 0, products = 0;
  for (int i = 0; i < p->count; i++) {
    const step *s = &p->steps[i];
    double touched = (double)s->length;
    for (int j = 0; j < s->inputs; j++) touched += (double)s->in[j].length;
    /* At most 20 comparisons for each: a vector has at most 2^20 elements. */
    elements += touched * (s->kind == DO_TOPK || s->kind == DO_TOPK_INDEX || s->kind == DO_RANK ? 20 : 1);
    products += (double)s->table.rows * (double)s->table.columns;
  }
  return TIME_OF_ELEMENT * elements + TIME_OF_PRODUCT * products;
}

const program *read_program(moon_model *model, const json *detector, int64_t logits, int64_t features) {
  memory *m = &model->memory;
  const json *steps = json_get(detector, "program"), *output = json_get(detector, "output");
  if (!steps || steps->kind != JSON_ARRAY || steps->length > MAX_OPERATIONS)
    fail(m, "the detector needs a \"program\": a list of at most %d steps", MAX_OPERATIONS);
  if (logits > MAX_VECTOR || features > MAX_VECTOR)
    fail(m, "the detector reads more than %lld values", (long long)MAX_VECTOR);
  program *p = take(m, 1, sizeof *p);
  p->logits = logits;
  p->features = features;
  p->steps = take(m, steps->length, sizeof *p->steps);
  reading r = {.model = model, .m = m, .program = p, .vector_count = 4 * (int)steps->length + 64};
  r.vectors = take(&model->scratch, (size_t)r.vector_count, sizeof *r.vectors);
  r.vector_constants = take(&model->scratch, model->file.count, sizeof *r.vector_constants);
  r.tables = take(&model->scratch, model->file.count, sizeof *r.tables);
  r.vectors[0].length = logits;
  r.vectors[1].length = features;
  for (r.entry = steps->first; r.entry; r.entry = r.entry->next, r.index++) read_step(&r, &p->steps[p->count++]);
  if (!json_is_integer(output, 0, r.vector_count - 1) || r.vectors[output->integer].length != 1)
    fail(m, "the \"output\" of the detector must be a vector of length 1 that it computes");
  r.vectors[output->integer].last = p->count;
  place_vectors(&r);
  p->result = r.vectors[output->integer].at;
  model->program_work = count_work(p);
  if (output->integer == 1) p->needs_features = true;
  return p;
}
