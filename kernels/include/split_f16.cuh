// Floats as sums of two FP16 numbers, the second scaled (Ootomo & Yokota 2022, "Recovering single
// precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak performance").
//
// x = big + small / F16_SMALL_SCALE with big = fp16(x) and small = fp16((x - big) * F16_SMALL_SCALE). The
// scale, 2^11, moves the residual up by the 11 bits of mantissa that `big` has taken, so that it underflows
// no sooner than `big` itself. For a product the sums of big * small and small * big are kept apart from
// those of big * big and added at the end, divided by the scale; small * small is left out.
//
// 22 bits of x survive for 2^-14 <= |x| < 65520. Below, big has fewer bits and then none, and the error
// stops shrinking with x (2^-36 at most); above, big is infinite and the sums with it: a kernel must check
// its inputs, or scale them.
#pragma once

constexpr float F16_SMALL_SCALE = 2048.0f;

// 2^exponent for -126 to 127.
static __device__ __forceinline__ float power_of_two(int exponent) {
    return __int_as_float((exponent + 127) << 23);
}

// |x| as an integer, whose order is that of the magnitudes.
static __device__ __forceinline__ unsigned magnitude_bits(float x) {
    return static_cast<unsigned>(__float_as_int(x)) & 0x7fffffffu;
}

// Two floats rounded to FP16, to nearest even, in one register: `low` in its low half, as the fragments of
// mma.cuh and wgmma.cuh want the element with the lower index.
static __device__ __forceinline__ unsigned pack_f16(float low, float high) {
#if defined(LADDER_EMULATOR)
    return emulated_pack_f16(low, high);
#else
    unsigned pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#endif
}

// The two halves of a register as floats.
static __device__ __forceinline__ void unpack_f16(unsigned pair, float& low, float& high) {
#if defined(LADDER_EMULATOR)
    low = emulated_unpack_f16(pair & 0xffffu);
    high = emulated_unpack_f16(pair >> 16);
#else
    asm("{\n\t"
        ".reg .b16 low, high;\n\t"
        "mov.b32 {low, high}, %2;\n\t"
        "cvt.f32.f16 %0, low;\n\t"
        "cvt.f32.f16 %1, high;\n\t"
        "}"
        : "=f"(low), "=f"(high) : "r"(pair));
#endif
}

// The parts of two floats, each pair in one register.
static __device__ __forceinline__ void split_f16(float low, float high, unsigned& big, unsigned& small) {
    float big_low, big_high;
    big = pack_f16(low, high);
    unpack_f16(big, big_low, big_high);
    small = pack_f16((low - big_low) * F16_SMALL_SCALE, (high - big_high) * F16_SMALL_SCALE);
}
