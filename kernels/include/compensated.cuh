// Sums in FP32, plain or compensated: with what rounding takes from them kept beside.
//
// Each addition rounds: a plain sum of n terms of one sign is off by some 0.4 sqrt(n / 3) units of 2^-24 of it.
// Compensated, what an addition has lost is computed, exactly, and collected in a float of its own, to be added
// at the end: as good as a sum of 48 bits that is rounded once, for six additions and a second register. No
// order of magnitudes is assumed (TwoSum: Knuth, The Art of Computer Programming 2, 4.2.2; Ogita, Rump &
// Oishi, SIAM J. Sci. Comput. 26(6), 2005).
#pragma once
#include "truncation.cuh"

template <bool COMPENSATED>
struct Sum;

template <>
struct Sum<false> {
    float sum;

    __device__ __forceinline__ void add(float x) { sum += x; }
    __device__ __forceinline__ float total() const { return sum; }
    // What a tensor core has cut off partial sums is given back, `loss` units of 2^-24 (truncation.cuh).
    __device__ __forceinline__ float total(float loss) const { return with_truncation_made_good(sum, loss); }
};

template <>
struct Sum<true> {
    float sum, lost;  // `lost` is of no use once the sum is infinite or a NaN

    __device__ __forceinline__ void add(float x) {
        const float next = sum + x;
        const float arrived = next - sum;  // of x
        lost += (sum - (next - arrived)) + (x - arrived);
        sum = next;
    }
    __device__ __forceinline__ float total() const { return fabsf(sum) < 0x1p127f ? sum + lost : sum; }
    // Where something was lost, the loss is a part of it, and no chance is needed to give it back in whole
    // units. Where nothing was, as in sums of small integers, the sum is as good as a plain one.
    __device__ __forceinline__ float total(float loss) const {
        if (lost == 0.0f) return with_truncation_made_good(sum, loss);
        return Sum{sum, lost + loss * 0x1p-24f * sum}.total();
    }
};
