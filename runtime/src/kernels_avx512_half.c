#include "kernels.h"
#if defined(HAS_AVX512_HALF)
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512fp16,avx512bw,avx512vl,avx512dq,avx512f,avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx512fp16,avx512bw,avx512vl,avx512dq,avx512f,avx2,fma")
#endif
#define NUMBER _Float16
#define WORD int16_t
#define PRECISION "float16"
#define HALF
#define WIDEN_LOW(x) (wide) _mm512_cvtxph_ps(_mm512_castph512_ph256((__m512h)(x)))
#define WIDEN_HIGH(x) \
  (wide) _mm512_cvtxph_ps((__m256h)_mm512_extracti64x4_epi64((__m512i)(x), 1))
#define JOIN(low, high)                                                                                        \
  (vector) _mm512_inserti64x4(_mm512_castsi256_si512((__m256i)_mm512_cvtxps_ph((__m512)(low))),                 \
                              (__m256i)_mm512_cvtxps_ph((__m512)(high)), 1)
#define BYTES 64
#define SUMS 16
#define NAME "avx512"
#define KERNELS moon_kernels_avx512_half
#define SHUFFLE(x, order) (vector) _mm512_permutexvar_epi16((__m512i)(order), (__m512i)(x))
#include "kernels.inc"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int not_used; /* a file must not be empty */
#endif
