/* What every x86-64 or ARM64 CPU has: vectors of 16 bytes. */
#define NUMBER float
#define WORD int32_t
#define PRECISION "float32"
#define BYTES 16
#define KERNELS moon_kernels_base
#if defined(__aarch64__)
#define NAME "neon"
#define SUMS 28
#else
#define NAME "base"
#define SUMS 12
#endif
#define SHUFFLE(x, order) ((vector){(x)[(order)[0]], (x)[(order)[1]], (x)[(order)[2]], (x)[(order)[3]]})
#include "kernels.inc"
