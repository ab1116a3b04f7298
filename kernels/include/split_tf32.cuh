// A float as a sum of numbers that the tensor cores can multiply exactly.
//
// TF32 has the exponent of a float and 10 of its 23 bits of mantissa; a tensor core ignores the low 13
// bits of an operand, which is truncation. FP16 has 10 bits too, but an exponent of 5 bits only.
#pragma once

// x rounded to TF32, to the nearest and halves away from zero, as cvt.rna.tf32 does. That conversion is
// four instructions on sm_90, these are two. Infinities stay, and magnitudes from 0x1.ffep127 up become
// infinite. A NaN stays one, but for those whose first 11 bits of mantissa are all ones, which turn into a
// zero: among them is the NaN that the GPU's own arithmetic gives. split_tf32 keeps it, in the small part.
static __device__ __forceinline__ unsigned round_to_tf32(float x) {
    return (static_cast<unsigned>(__float_as_int(x)) + 0x1000u) & 0xffffe000u;
}

// x = big + small. The difference is exact, at most half a unit of TF32's last place of `big`, and has up
// to 12 significant bits, of which the tensor core reads 11: with truncation it keeps 22 to 23 bits of x.
// Where x is infinite or rounds to infinity, small is a NaN or infinite, and so is any sum of products.
static __device__ __forceinline__ void split_tf32(float x, unsigned& big, unsigned& small) {
    big = round_to_tf32(x);
    small = static_cast<unsigned>(__float_as_int(x - __int_as_float(static_cast<int>(big))));
}

// x without the bits that a tensor core ignores.
static __device__ __forceinline__ float truncate_to_tf32(float x) {
    return __int_as_float(__float_as_int(x) & static_cast<int>(0xffffe000u));
}
