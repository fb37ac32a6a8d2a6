/* moon-runtime: run sparse networks on a CPU. No dependencies besides the C library and threads.

    char error[256];
    moon_answer answer;
    moon_model *model = moon_load("digits.moon", 1, error, sizeof error);
    if (!model) { puts(error); return 1; }
    if (moon_predict(model, pixels, 1, &answer, error, sizeof error)) { puts(error); return 1; }
    puts(answer.is_known ? moon_class_name(model, answer.label) : "unknown");
    moon_free(model);

Files are checked completely before use: a damaged or malicious file is an error message, never a crash. */

#ifndef MOON_H
#define MOON_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MOON_API __attribute__((visibility("default")))
#else
#define MOON_API
#endif

typedef struct moon_model moon_model;

/* Read a file, or bytes (which are copied). Returns NULL and writes one line to `error` if it cannot be used.
   A file must be a regular one, and have the length that its header declares: a huge one is not read for nothing. One of
   more than 1 GiB ($MOON_MAX_BYTES) must occupy at least a quarter of that on disk.

   `limit` is 1, or more for a network that you trust. A network may need 2 GB of memory, and 32 bytes for each byte of
   its file: for prepared weights, tables of the detector, and the feature maps and outputs of one image in one thread.
   An image may take 10^12 multiply-adds, or what takes as long (a dense ResNet-50 takes 5 * 10^9). Both are multiplied by
   `limit`. A file that needs more is refused before that memory is allocated. Weights for batches are prepared when they
   are first needed, so it may be moon_run that returns the error about memory. */
MOON_API moon_model *moon_load(const char *path, double limit, char *error, size_t error_size);
MOON_API moon_model *moon_load_memory(const void *data, size_t size, double limit, char *error, size_t error_size);
MOON_API void moon_free(moon_model *model);

/* Whether `moon_load` would read this file: reads its header only. Returns 0, or -1 and an error. */
MOON_API int moon_check_length(const char *path, char *error, size_t error_size);

/* The number of threads of a model, 1 at first. Results do not depend on it. Returns 0, or -1 and an error. */
MOON_API int moon_set_threads(moon_model *model, int threads, char *error, size_t error_size);

/* The numbers that a model computes with: "float32" at first, or "float16", which is faster and less precise, and which
   not every CPU can compute with. Returns 0, or -1 and an error. */
MOON_API int moon_set_precision(moon_model *model, const char *precision, char *error, size_t error_size);

/* Channels, rows and columns of an input image and of the outputs. */
MOON_API void moon_input_shape(const moon_model *model, int shape[3]);
MOON_API int moon_outputs(const moon_model *model);
MOON_API const char *moon_output_name(const moon_model *model, int output);
MOON_API void moon_output_shape(const moon_model *model, int output, int shape[3]);

/* What an image takes, in multiply-adds, for the network and its detector. */
MOON_API double moon_work(const moon_model *model);

/* The JSON text that came with the network: class names, preprocessing, thresholds, provenance. */
MOON_API const char *moon_metadata(const moon_model *model);

/* A tensor of the file: its bytes, or NULL. `type` is as in safetensors ("F32"), `shape` has up to 8 sizes. */
MOON_API const void *moon_tensor(const moon_model *model, const char *name, const char **type, int *dimensions,
                                 int64_t shape[8]);

/* The instructions in use: "base", "neon", "avx2" or "avx512". */
MOON_API const char *moon_instructions(const moon_model *model);

/* Compute the outputs of `count` images (float32, channels x rows x columns, already normalised). outputs[i] receives
   count x output_shape values, and may be NULL. One model computes one call at a time. Returns 0; -1 and an error if
   there is not enough memory; -2 and an error if an image has NaN or infinity; -3 if it was interrupted. */
MOON_API int moon_run(moon_model *model, const float *images, int64_t count, float *const *outputs, char *error,
                      size_t error_size);

/* What the network and its detector say about an image. */
typedef struct {
  int32_t label;     /* the class */
  float probability; /* of this class */
  double score;      /* of the detector; higher means more known */
  double p_value;    /* of "the image is known": the share of known images with this score or a lower one */
  int32_t is_known;  /* 1, or 0 for "unknown" */
} moon_answer;

/* Answer for `count` images of the size of the input (bytes, rows x columns x channels). One model computes one call
   at a time. Returns 0; -1 and an error if the file has no detector, or there is not enough memory; -3 if it was
   interrupted. */
MOON_API int moon_predict(moon_model *model, const uint8_t *pixels, int64_t count, moon_answer *answers, char *error,
                          size_t error_size);

/* Stop the moon_run or moon_predict that computes now, within milliseconds; its results are undefined. It does nothing
   if there is none. May be called by other threads and by signal handlers. */
MOON_API void moon_interrupt(moon_model *model);

/* The classes, 0 if the file does not name them. The name is NULL if there is no such class. */
MOON_API int moon_classes(const moon_model *model);
MOON_API const char *moon_class_name(const moon_model *model, int label);

#ifdef __cplusplus
}
#endif
#endif
