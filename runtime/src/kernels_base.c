/* What every x86-64 or ARM64 CPU has: vectors of 16 bytes. */
#define LANES 4
#define KERNELS moon_kernels_base
#if defined(__aarch64__)
#define NAME "neon"
#define VECTORS 16
#else
#define NAME "base"
#define VECTORS 8
#endif
#include "kernels.inc"
