#if defined(__linux__)
#define _DEFAULT_SOURCE /* for madvise */
#include <sys/mman.h>
#endif

#include "memory.h"

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK ((size_t)1 << 16)
#define LARGE_PAGE ((size_t)1 << 21)

/* 64 bytes, so that what follows it is aligned. Small requests share a chunk. */
struct chunk {
  _Alignas(64) chunk *next;
  size_t used, size;
};

void need_memory(memory *m, double bytes) {
  const budget *b = m->budget;
  if (!b || b->used + bytes <= b->most) return;
  const double needed = b->used + bytes;
  fail(m, "the network needs at least %.1f GB of memory, more than the limit of %.1f GB; if you trust the file, load it "
       "with limit=%.0f", needed / 1e9, b->most / 1e9, ceil(needed / b->most * b->limit));
}

void *take(memory *m, size_t count, size_t size) {
  if (size && count > (SIZE_MAX / 2) / size) fail(m, "not enough memory");
  const size_t bytes = (count * size + 63) / 64 * 64;
  if (!m->chunks || m->chunks->size - m->chunks->used < bytes) {
    const size_t room = bytes > BLOCK / 4 ? bytes : BLOCK;
    need_memory(m, (double)(sizeof(chunk) + room));
    chunk *new = aligned_alloc(64, sizeof(chunk) + room);
    if (!new) fail(m, "not enough memory");
    if (m->budget) m->budget->used += (double)(sizeof(chunk) + room);
    memset(new, 0, sizeof(chunk) + room);
    new->size = room;
    if (m->chunks && room != BLOCK) { /* a large request must not hide the chunk that has room for small ones */
      new->next = m->chunks->next;
      m->chunks->next = new;
      new->used = bytes;
      return new + 1;
    }
    new->next = m->chunks;
    m->chunks = new;
  }
  void *result = (char *)(m->chunks + 1) + m->chunks->used;
  m->chunks->used += bytes;
  return result;
}

void *allocate_pages(size_t size) {
#if defined(__linux__)
  const size_t page = size < LARGE_PAGE / 4 ? 64 : LARGE_PAGE;
#else
  const size_t page = 64;
#endif
  const size_t bytes = (size + page - 1) / page * page;
  void *result = aligned_alloc(page, bytes);
  if (!result) return NULL;
#if defined(__linux__)
  if (page > 64) madvise(result, bytes, MADV_HUGEPAGE); /* if it is refused, it is slower */
#endif
  return result;
}

void release(memory *m) {
  while (m->chunks) {
    chunk *next = m->chunks->next;
    if (m->budget) m->budget->used -= (double)(sizeof(chunk) + m->chunks->size);
    free(m->chunks);
    m->chunks = next;
  }
}

void fail(memory *m, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  if (m->error_size) vsnprintf(m->error, m->error_size, format, arguments);
  va_end(arguments);
  for (size_t i = 0; i < m->error_size && m->error[i]; i++) /* names in the file may contain line ends */
    if ((unsigned char)m->error[i] < ' ') m->error[i] = '?';
  longjmp(*m->on_error, 1);
}
