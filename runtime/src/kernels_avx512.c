#if defined(__x86_64__)
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx2,fma")
#endif
#define NUMBER float
#define WORD int32_t
#define PRECISION "float32"
#define BYTES 64
#define SUMS 28
#define NAME "avx512"
#define KERNELS moon_kernels_avx512
#define SHUFFLE(x, order) (vector) _mm512_permutexvar_ps((__m512i)(order), (__m512)(x))
#include "kernels.inc"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int not_used; /* a file must not be empty */
#endif
