#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif
#define LANES 8
#define VECTORS 12
#define NAME "avx2"
#define KERNELS moon_kernels_avx2
#include "kernels.inc"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int not_used; /* a file must not be empty */
#endif
