/* Reads the operations of a network and checks that shapes fit. */

#include <string.h>

#include "model.h"

static const char *const OPERATIONS[] = {"conv2d",          "linear",           "add",     "mul", "concat", "max_pool", "avg_pool",
                                         "global_avg_pool", "global_deviation", "flatten", "act", "affine", "softmax"};
static const char *const ACTIVATIONS[] = {"none", "relu",      "relu6",       "silu",
                                          "gelu", "hardswish", "hardsigmoid", "sigmoid"};

typedef struct {
  moon_model *model;
  memory *m;
  const json *entry;
  int index;
} reading;

#define BAD(r, ...) fail((r)->m, "operation %d: " __VA_ARGS__)

static int need_int(const reading *r, const json *value, const char *what, int least, int most) {
  if (!json_is_integer(value, least, most))
    fail(r->m, "operation %d: %s must be an integer from %d to %d", r->index, what, least, most);
  return (int)value->integer;
}

/* Two sizes, [rows, columns]; `otherwise` if absent. */
static void read_pair(const reading *r, const char *key, int least, int otherwise, int pair[2]) {
  const json *value = json_get(r->entry, key);
  pair[0] = pair[1] = otherwise;
  if (json_is_absent(value) && otherwise >= least) return;
  if (!value || value->kind != JSON_ARRAY || value->length != 2)
    BAD(r, "%s must be two integers", r->index, key);
  pair[0] = need_int(r, value->first, key, least, MAX_SIDE);
  pair[1] = need_int(r, value->first->next, key, least, MAX_SIDE);
}

static bool read_bool(const reading *r, const char *key, bool otherwise) {
  const json *value = json_get(r->entry, key);
  if (json_is_absent(value)) return otherwise;
  if (value->kind != JSON_TRUE && value->kind != JSON_FALSE) BAD(r, "%s must be true or false", r->index, key);
  return value->kind == JSON_TRUE;
}

static const char *need_name(const reading *r, const char *key) {
  const json *value = json_get(r->entry, key);
  if (!value || value->kind != JSON_STRING) BAD(r, "%s must be the name of a tensor", r->index, key);
  char *copy = take(r->m, value->length + 1, 1); /* the description is freed after loading */
  return memcpy(copy, value->text, value->length);
}

static activation read_activation(const reading *r) {
  const json *value = json_get(r->entry, "act");
  if (json_is_absent(value)) return NONE;
  const int found = json_find(json_word(value), ACTIVATIONS, sizeof ACTIVATIONS / sizeof *ACTIVATIONS);
  if (found < 0) BAD(r, "activation \"%s\" is not supported", r->index, json_word(value));
  return (activation)found;
}

static tensor *input(const reading *r, const operation *op, int i) { return &r->model->tensors[op->in[i]]; }

static void read_inputs(const reading *r, operation *op) {
  const json *in = json_get(r->entry, "in");
  if (!in || in->kind != JSON_ARRAY || !in->length || in->length > MAX_OPERATIONS)
    BAD(r, "\"in\" must be a list of tensors", r->index);
  op->in = take(r->m, in->length, sizeof *op->in);
  for (const json *value = in->first; value; value = value->next) {
    const int index = need_int(r, value, "a tensor", 0, r->model->tensor_count - 1);
    if (!r->model->tensors[index].defined) BAD(r, "tensor %d is used before it is computed", r->index, index);
    op->in[op->inputs++] = index;
    r->model->tensors[r->model->tensors[index].same_as].last = r->index;
  }
  const bool is_binary = op->kind == ADD || op->kind == MUL;
  if (op->kind != CONCAT && op->inputs != 1 + is_binary)
    BAD(r, "\"%s\" needs %d input(s)", r->index, OPERATIONS[op->kind], 1 + is_binary);
}

/* Rows or columns of the output of a filter. */
static int output_side(const reading *r, const operation *op, int in, int kernel, int axis) {
  const int64_t reach = (int64_t)op->dilation[axis] * (kernel - 1) + 1;
  const int64_t room = (int64_t)in + 2 * op->padding[axis] - reach;
  if (room < 0) BAD(r, "the filter is larger than the image", r->index);
  int64_t side = room / op->stride[axis] + 1;
  /* As PyTorch: the last window must begin inside of the image or its padding before it. */
  if (op->ceil_mode && room % op->stride[axis] && side * op->stride[axis] < in + op->padding[axis]) side++;
  if (side > MAX_SIDE) BAD(r, "the output is too large", r->index);
  return (int)side;
}

static void read_filter(const reading *r, operation *op) {
  read_pair(r, "stride", 1, 1, op->stride);
  read_pair(r, "padding", 0, 0, op->padding);
  read_pair(r, "dilation", 1, 1, op->dilation);
}

static void read_bias(const reading *r, operation *op) {
  if (!json_is_absent(json_get(r->entry, "bias")))
    op->bias = read_floats(r->m, &r->model->file, need_name(r, "bias"), op->shape[0]);
}

/* The shape of a weight: given with sparse weights, otherwise that of the tensor. */
static void read_shape(const reading *r, operation *op, int dimensions) {
  const json *shape = json_get(r->entry, "shape");
  const file_tensor *dense = find_tensor(&r->model->file, op->weight);
  for (int i = 0; i < 4; i++) op->shape[i] = 1;
  if (shape && shape->kind == JSON_ARRAY && shape->length == (size_t)dimensions) {
    int i = 0;
    for (const json *side = shape->first; side; side = side->next)
      op->shape[i++] = need_int(r, side, "shape", 1, MAX_SIDE);
  } else if (!shape && dense && dense->dimensions == dimensions) {
    for (int i = 0; i < dimensions; i++) {
      if (dense->shape[i] < 1 || dense->shape[i] > MAX_SIDE) BAD(r, "the weight is empty or too large", r->index);
      op->shape[i] = (int)dense->shape[i];
    }
  } else BAD(r, "the weight needs a \"shape\" of %d sizes", r->index, dimensions);
  if ((int64_t)op->shape[2] * op->shape[3] > MAX_SIDE ||
      (int64_t)op->shape[1] * op->shape[2] * op->shape[3] > INT32_MAX)
    BAD(r, "the weight is too large", r->index);
}

static void read_conv(const reading *r, operation *op, tensor *out) {
  const tensor *in = input(r, op, 0);
  const json *groups = json_get(r->entry, "groups");
  op->weight = need_name(r, "weight");
  read_shape(r, op, 4);
  read_filter(r, op);
  op->groups = json_is_absent(groups) ? 1 : need_int(r, groups, "groups", 1, MAX_SIDE);
  if (op->shape[0] % op->groups || (int64_t)op->shape[1] * op->groups != in->channels)
    BAD(r, "a weight for %lld channels in %d groups and %d outputs does not fit an input with %d channels", r->index,
        (long long)op->shape[1] * op->groups, op->groups, op->shape[0], in->channels);
  *out = (tensor){.channels = op->shape[0],
                  .rows = output_side(r, op, in->rows, op->shape[2], 0),
                  .columns = output_side(r, op, in->columns, op->shape[3], 1)};
  read_bias(r, op);
  const bool is_one_position = positions(in) * op->shape[2] * op->shape[3] == 1 && positions(out) == 1;
  if (is_one_position && op->groups == 1 && !op->padding[0] && !op->padding[1]) op->kind = LINEAR;
}

static void read_linear(const reading *r, operation *op, tensor *out) {
  const tensor *in = input(r, op, 0);
  op->weight = need_name(r, "weight");
  read_shape(r, op, 2);
  op->groups = 1;
  for (int i = 0; i < 2; i++) op->stride[i] = op->dilation[i] = 1;
  if (positions(in) != 1 || in->channels != op->shape[1])
    BAD(r, "a weight for %d values does not fit an input of %d x %d x %d", r->index, op->shape[1], in->channels,
        in->rows, in->columns);
  *out = (tensor){.channels = op->shape[0], .rows = 1, .columns = 1};
  read_bias(r, op);
}

static void read_pool(const reading *r, operation *op, tensor *out) {
  const tensor *in = input(r, op, 0);
  int kernel[2];
  read_pair(r, "kernel", 1, 0, kernel);
  op->shape[2] = kernel[0];
  op->shape[3] = kernel[1];
  read_filter(r, op);
  if (json_is_absent(json_get(r->entry, "stride"))) memcpy(op->stride, kernel, sizeof kernel);
  op->ceil_mode = read_bool(r, "ceil_mode", false);
  op->count_padding = read_bool(r, "count_include_pad", true);
  if (2 * op->padding[0] > kernel[0] || 2 * op->padding[1] > kernel[1])
    BAD(r, "padding must be at most half of the kernel", r->index);
  if (op->kind == AVG_POOL && op->dilation[0] * op->dilation[1] != 1)
    BAD(r, "\"avg_pool\" has no dilation", r->index);
  *out = (tensor){.channels = in->channels,
                  .rows = output_side(r, op, in->rows, kernel[0], 0),
                  .columns = output_side(r, op, in->columns, kernel[1], 1)};
}

static void read_concat(const reading *r, operation *op, tensor *out) {
  *out = *input(r, op, 0);
  for (int i = 1; i < op->inputs; i++) {
    const tensor *in = input(r, op, i);
    if (in->rows != out->rows || in->columns != out->columns)
      BAD(r, "inputs of \"concat\" must have the same rows and columns", r->index);
    out->channels += in->channels;
    if (out->channels > MAX_SIDE) BAD(r, "the output is too large", r->index);
  }
}

static void read_binary(const reading *r, operation *op, tensor *out) {
  const tensor *a = input(r, op, 0), *b = input(r, op, 1);
  if (op->kind == MUL && positions(a) < positions(b)) { /* the factor of each channel is second */
    const int first = op->in[0];
    op->in[0] = op->in[1];
    op->in[1] = first;
    a = input(r, op, 0);
    b = input(r, op, 1);
  }
  const bool is_same = a->rows == b->rows && a->columns == b->columns;
  if (a->channels != b->channels || (!is_same && (op->kind == ADD || positions(b) != 1)))
    BAD(r, "inputs of \"%s\" have different shapes", r->index, OPERATIONS[op->kind]);
  *out = *a;
}

static void read_operation(reading *r, operation *op) {
  const json *name = json_get(r->entry, "op");
  const int kind = json_find(json_word(name), OPERATIONS, sizeof OPERATIONS / sizeof *OPERATIONS);
  if (kind < 0) BAD(r, "\"%s\" is not supported", r->index, json_word(name));
  op->kind = (operation_kind)kind;
  op->residual = -1;
  read_inputs(r, op);
  const tensor *in = input(r, op, 0);
  tensor out = *in;
  op->act = read_activation(r);
  if (op->kind == ACT && op->act == NONE) BAD(r, "\"act\" needs an activation", r->index);
  if (op->kind == CONV) read_conv(r, op, &out);
  else if (op->kind == LINEAR) read_linear(r, op, &out);
  else if (op->kind == MAX_POOL || op->kind == AVG_POOL) read_pool(r, op, &out);
  else if (op->kind == CONCAT) read_concat(r, op, &out);
  else if (op->kind == ADD || op->kind == MUL) read_binary(r, op, &out);
  else if (op->kind == GLOBAL_AVG_POOL || op->kind == GLOBAL_DEVIATION) out.rows = out.columns = 1;
  else if (op->kind == AFFINE) {
    op->scale = read_floats(r->m, &r->model->file, need_name(r, "scale"), in->channels);
    op->bias = read_floats(r->m, &r->model->file, need_name(r, "shift"), in->channels);
  } else if (op->kind == FLATTEN) {
    if (elements(in) > MAX_SIDE) BAD(r, "the output is too large", r->index);
    out = (tensor){.channels = (int)elements(in), .rows = 1, .columns = 1};
    if (op->act != NONE) BAD(r, "\"flatten\" has no activation", r->index);
  }
  if (elements(&out) > MAX_ELEMENTS) BAD(r, "the output is too large", r->index);
  op->out = need_int(r, json_get(r->entry, "out"), "out", 1, r->model->tensor_count - 1);
  tensor *target = &r->model->tensors[op->out];
  if (target->defined) BAD(r, "tensor %d is computed twice", r->index, op->out);
  *target = out;
  target->defined = true;
  target->same_as = op->kind == FLATTEN ? in->same_as : op->out;
  target->first = target->last = r->index;
}

static void read_outputs(moon_model *model, const json *outputs) {
  memory *m = &model->memory;
  if (!outputs || outputs->kind != JSON_OBJECT || !outputs->length) fail(m, "the description has no outputs");
  model->outputs = take(m, outputs->length, sizeof *model->outputs);
  for (const json *entry = outputs->first; entry; entry = entry->next) {
    if (!json_is_integer(entry, 0, model->tensor_count - 1) || !model->tensors[entry->integer].defined)
      fail(m, "output \"%.80s\" is not a tensor of the network", entry->key);
    const size_t length = strlen(entry->key);
    char *name = take(m, length + 1, 1);
    memcpy(name, entry->key, length);
    model->outputs[model->output_count++] = (output){name, (int)entry->integer};
    model->tensors[model->tensors[entry->integer].same_as].last = model->count;
  }
}

static void read_input(moon_model *model, const json *shape) {
  reading r = {.model = model, .m = &model->memory, .index = -1};
  if (!shape || shape->kind != JSON_ARRAY || shape->length != 3)
    fail(r.m, "the description needs the \"input\" shape, [channels, rows, columns]");
  const json *side = shape->first;
  for (int i = 0; i < 3; i++, side = side->next)
    model->input[i] = need_int(&r, side, "a side of the input", 1, MAX_SIDE);
  tensor *t = &model->tensors[0];
  *t = (tensor){.channels = model->input[0], .rows = model->input[1], .columns = model->input[2], .defined = true,
                .first = -1};
  if (elements(t) > MAX_ELEMENTS) fail(r.m, "the input is too large");
}

void read_graph(moon_model *model, const json *description) {
  memory *m = &model->memory;
  const json *format = json_get(description, "format"), *graph = json_get(description, "graph");
  if (!json_is_integer(format, 1, INT32_MAX)) fail(m, "the description has no format number");
  if (format->integer > 1)
    fail(m, "the file has format %lld; this version reads format 1", (long long)format->integer);
  if (!graph || graph->kind != JSON_ARRAY || graph->length > MAX_OPERATIONS)
    fail(m, "the description has no list of operations (\"graph\")");
  /* Tensor numbers may have gaps: whoever wrote the file may have dropped operations. */
  model->tensor_count = 4 * (int)graph->length + 64;
  model->tensors = take(m, (size_t)model->tensor_count, sizeof *model->tensors);
  model->operations = take(m, graph->length, sizeof *model->operations);
  read_input(model, json_get(description, "input"));
  for (const json *entry = graph->first; entry; entry = entry->next, model->count++) {
    reading r = {model, m, entry, model->count};
    read_operation(&r, &model->operations[model->count]);
  }
  read_outputs(model, json_get(description, "outputs"));
}
