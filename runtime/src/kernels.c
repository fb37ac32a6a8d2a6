#include "kernels.h"

#include <string.h>

extern const kernels moon_kernels_base;
#if defined(__x86_64__)
extern const kernels moon_kernels_avx2, moon_kernels_avx512;
#endif

const kernels *choose_kernels(const char *name, const char *precision) {
  (void)precision;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && (!name || !strcmp(name, "avx512"))) return &moon_kernels_avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && (!name || !strcmp(name, "avx2")))
    return &moon_kernels_avx2;
#endif
  return !name || !strcmp(name, moon_kernels_base.name) ? &moon_kernels_base : 0;
}
