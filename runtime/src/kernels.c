#include "kernels.h"

#include <string.h>
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

extern const kernels moon_kernels_base, moon_kernels_avx2, moon_kernels_avx512, moon_kernels_avx512_half;
extern const kernels moon_kernels_neon, moon_kernels_neon_half;

#if defined(HAS_NEON_HALF)
static bool has_neon_half(void) {
#if defined(__linux__)
  return getauxval(AT_HWCAP) >> 10 & 1; /* HWCAP_ASIMDHP */
#else
  return true; /* macOS runs on CPUs that all have it */
#endif
}
#endif

/* All kernels that this CPU can run, the best ones first. */
static int list_kernels(const kernels *found[8]) {
  int count = 0;
#if defined(__x86_64__)
  __builtin_cpu_init();
#if defined(HAS_AVX512_HALF)
  if (__builtin_cpu_supports("avx512fp16")) found[count++] = &moon_kernels_avx512_half;
#endif
  if (__builtin_cpu_supports("avx512f")) found[count++] = &moon_kernels_avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found[count++] = &moon_kernels_avx2;
#endif
#if defined(HAS_NEON_HALF)
  if (has_neon_half()) found[count++] = &moon_kernels_neon_half;
#endif
#if defined(__aarch64__)
  found[count++] = &moon_kernels_neon;
#else
  found[count++] = &moon_kernels_base;
#endif
  return count;
}

const kernels *choose_kernels(const char *name, const char *precision) {
  const kernels *found[8];
  const int count = list_kernels(found);
  for (int i = 0; i < count; i++)
    if (!strcmp(found[i]->precision, precision) && (!name || !strcmp(found[i]->name, name))) return found[i];
  return NULL;
}
