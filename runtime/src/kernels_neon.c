#if defined(__aarch64__)
#include <arm_neon.h>
#define NUMBER float
#define WORD int32_t
#define PRECISION "float32"
#define BYTES 16
#define SUMS 28
#define NAME "neon"
#define KERNELS moon_kernels_neon
/* The bytes of each lane. */
#define SHUFFLE(x, order) (vector) vqtbl1q_u8((uint8x16_t)(x), (uint8x16_t)((order) * 0x04040404 + 0x03020100))
#include "kernels.inc"
#else
typedef int not_used; /* a file must not be empty */
#endif
