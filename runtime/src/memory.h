/* Memory that is freed together, and errors that end loading: both belong to one `memory`. */

#ifndef MOON_MEMORY_H
#define MOON_MEMORY_H

#include <setjmp.h>
#include <stddef.h>

typedef struct chunk chunk;

typedef struct {
  chunk *chunks;
  jmp_buf *on_error; /* where `fail` continues; set by the function that owns the memory */
  char *error;
  size_t error_size;
} memory;

/* `count` zeroed elements, aligned to 64 bytes. Fails if there is not enough memory. */
void *take(memory *m, size_t count, size_t size);
void release(memory *m);

/* Zeroed memory for feature maps, aligned to 64 bytes, in large pages where the system has them: a convolution reads
   many channels at once, each in another small page. Freed with `free`; NULL if there is not enough. */
void *allocate_pages(size_t size);

/* Write the message and jump to `on_error`. What was taken is freed by the owner. */
_Noreturn void fail(memory *m, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
