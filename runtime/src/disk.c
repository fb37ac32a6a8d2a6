/* Reads a file into memory, after a look at its header: a file of somebody else may be a pipe that never ends, or have a
   hole of a terabyte. */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model.h"

#define MAX_HOLLOW ((int64_t)1 << 30) /* bytes of a file that occupies less than a quarter of its length on disk */

/* What is used after an error is here, not in local variables, which longjmp may not preserve. */
typedef struct {
  memory memory;
  const char *path;
  bool only_check;
  FILE *file;
  struct stat status;
  uint8_t *bytes;
} source;

/* MAX_HOLLOW, or $MOON_MAX_BYTES. */
static int64_t allowed_bytes(void) {
  const char *text = getenv("MOON_MAX_BYTES");
  if (!text || !*text || strlen(text) > 18 || strspn(text, "0123456789") != strlen(text)) return MAX_HOLLOW;
  return strtoll(text, NULL, 10);
}

/* The path is looked at first, because opening a device can have effects. */
static void open_regular(source *s) {
  if (stat(s->path, &s->status)) fail(&s->memory, "cannot be read (%s)", strerror(errno));
  if (!S_ISREG(s->status.st_mode)) fail(&s->memory, "is not a regular file");
  const int descriptor = open(s->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) fail(&s->memory, "cannot be read (%s)", strerror(errno));
  if (!fstat(descriptor, &s->status) && S_ISREG(s->status.st_mode)) s->file = fdopen(descriptor, "rb");
  if (s->file) return;
  close(descriptor);
  fail(&s->memory, "cannot be read");
}

/* Compares the length of the file with what its header declares. */
static void check_length(source *s) {
  memory *m = &s->memory;
  const int64_t size = s->status.st_size, on_disk = (int64_t)s->status.st_blocks * 512;
  uint8_t start[8];
  const size_t length = header_length(m, start, fread(start, 1, 8, s->file), (uint64_t)size);
  char *header = take(m, length + 1, 1);
  if (fread(header, 1, length, s->file) != length) fail(m, "not a .moon file, or it is cut off");
  const int64_t declared = 8 + (int64_t)length + declared_bytes(m, parse_header(m, header, length));
  if (size != declared)
    fail(m, "the file is damaged: it has %lld bytes, and its header declares %lld", (long long)size,
         (long long)declared);
  if (size > allowed_bytes() && size / 4 > on_disk)
    fail(m, "the file needs %lld bytes of memory, but occupies only %lld on disk; if you trust it, set "
         "MOON_MAX_BYTES=%lld", (long long)size, (long long)on_disk, (long long)size);
}

/* Returns whether the file could be read, or only checked. */
static bool read_source(source *s) {
  jmp_buf on_error;
  s->memory.on_error = &on_error;
  if (setjmp(on_error)) return false;
  open_regular(s);
  check_length(s);
  if (s->only_check) return true;
  const size_t size = (size_t)s->status.st_size;
  s->bytes = (int64_t)size == (int64_t)s->status.st_size ? malloc(size) : NULL;
  if (!s->bytes) fail(&s->memory, "not enough memory");
  rewind(s->file);
  if (fread(s->bytes, 1, size, s->file) != size) fail(&s->memory, "cannot be read completely");
  return true;
}

bool read_disk(const char *path, uint8_t **bytes, size_t *size, char *error, size_t error_size) {
  source s = {.memory = {.error = error, .error_size = error_size}, .path = path, .only_check = !bytes};
  const bool is_good = read_source(&s);
  if (s.file) fclose(s.file);
  release(&s.memory);
  if (!is_good) free(s.bytes);
  else if (bytes) {
    *bytes = s.bytes;
    *size = (size_t)s.status.st_size;
  }
  return is_good;
}
