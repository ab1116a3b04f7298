// Two FP32 multiply-adds at once (fma.rn.f32x2, PTX for sm_100 and later), rounded as two of them.
//
// sm_100a has an instruction for it, FFMA2: one issue slot for two multiply-adds. For sm_120 ptxas splits it
// into two FFMA, and older targets do not have it, where this is two multiply-adds as well. See
// docs/packed_fma.md.
#pragma once

// c.x += a * b.x and c.y += a * b.y. The pairs b and c lie in neighbouring registers, as a 64-bit load
// brings them and a 64-bit store takes them.
static __device__ __forceinline__ void fma_pair(float2& c, float a, float2 b) {
#if !defined(LADDER_EMULATOR) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
    asm("{\n\t"
        ".reg .b64 factor, pair, sum;\n\t"
        "mov.b64 factor, {%2, %2};\n\t"
        "mov.b64 pair, {%3, %4};\n\t"
        "mov.b64 sum, {%0, %1};\n\t"
        "fma.rn.f32x2 sum, factor, pair, sum;\n\t"
        "mov.b64 {%0, %1}, sum;\n\t"
        "}"
        : "+f"(c.x), "+f"(c.y) : "f"(a), "f"(b.x), "f"(b.y));
#else
    c.x += a * b.x;
    c.y += a * b.y;
#endif
}
