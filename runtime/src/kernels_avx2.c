#if defined(__x86_64__)
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif
#define NUMBER float
#define WORD int32_t
#define PRECISION "float32"
#define BYTES 32
#define SUMS 12
#define NAME "avx2"
#define KERNELS moon_kernels_avx2
#define SHUFFLE(x, order) (vector) _mm256_permutevar8x32_ps((__m256)(x), (__m256i)(order))
#include "kernels.inc"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int not_used; /* a file must not be empty */
#endif
