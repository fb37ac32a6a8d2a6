#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx2,fma")
#endif
#define LANES 16
#define VECTORS 16
#define NAME "avx512"
#define KERNELS moon_kernels_avx512
#include "kernels.inc"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int not_used; /* a file must not be empty */
#endif
