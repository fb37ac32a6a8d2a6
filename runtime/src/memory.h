/* Memory that is freed together, and errors that end loading: both belong to one `memory`. */

#ifndef MOON_MEMORY_H
#define MOON_MEMORY_H

#include <setjmp.h>
#include <stddef.h>

typedef struct chunk chunk;

/* What several `memory` may take together, in bytes. `limit` is the number by which a user raises `most`. */
typedef struct {
  double used, most, limit;
} budget;

typedef struct {
  chunk *chunks;
  budget *budget;    /* NULL: there is none */
  jmp_buf *on_error; /* where `fail` continues; set by the function that owns the memory */
  char *error;
  size_t error_size;
} memory;

/* Fails if that many bytes more are over the budget. */
void need_memory(memory *m, double bytes);

/* `count` zeroed elements, aligned to 64 bytes. Fails if there is not enough memory, or they are over the budget. */
void *take(memory *m, size_t count, size_t size);
void release(memory *m);

/* Memory for feature maps, aligned to 64 bytes, in large pages where the system has them: a convolution reads
   many channels at once, each in another small page. Freed with `free`; NULL if there is not enough. */
void *allocate_pages(size_t size);

/* Write the message and jump to `on_error`. What was taken is freed by the owner. */
_Noreturn void fail(memory *m, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
