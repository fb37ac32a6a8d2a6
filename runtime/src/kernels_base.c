/* What every x86-64 CPU has. */
#if !defined(__aarch64__)
#define NUMBER float
#define WORD int32_t
#define PRECISION "float32"
#define BYTES 16
#define SUMS 12
#define NAME "base"
#define KERNELS moon_kernels_base
#define SHUFFLE(x, order) ((vector){(x)[(order)[0]], (x)[(order)[1]], (x)[(order)[2]], (x)[(order)[3]]})
#include "kernels.inc"
#else
typedef int not_used; /* a file must not be empty */
#endif
