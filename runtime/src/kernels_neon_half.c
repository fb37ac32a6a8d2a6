#include "kernels.h"
#if defined(HAS_NEON_HALF)
#include <arm_neon.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("fullfp16"))), apply_to = function)
#else
#pragma GCC target("arch=armv8.2-a+fp16")
#endif
#define NUMBER _Float16
#define WORD int16_t
#define PRECISION "float16"
#define HALF
#define WIDEN_LOW(x) (wide) vcvt_f32_f16(vget_low_f16((float16x8_t)(x)))
#define WIDEN_HIGH(x) (wide) vcvt_high_f32_f16((float16x8_t)(x))
#define JOIN(low, high) (vector) vcvt_high_f16_f32(vcvt_f16_f32((float32x4_t)(low)), (float32x4_t)(high))
#define BYTES 16
#define SUMS 16
#define NAME "neon"
#define KERNELS moon_kernels_neon_half
/* The bytes of each lane. */
#define SHUFFLE(x, order) (vector) vqtbl1q_u8((uint8x16_t)(x), (uint8x16_t)((order) * 0x0202 + 0x0100))
#include "kernels.inc"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int not_used; /* a file must not be empty */
#endif
