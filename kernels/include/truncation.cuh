// What a tensor core cuts off its sums, given back on average.
//
// A tensor core does not round a sum, it cuts it off towards zero. Partial sums that are added up in FP32
// keep that small, but all of it has one sign: a sum c has lost LOSS units of 2^-24 |c| on average, in
// proportion to c, for each of its parts has lost in proportion to itself.
#pragma once

// The loss is given back in whole units of c's last place; its lowest three bits, which are as good as
// random, decide between the two numbers of units around the loss, so that it is made good on average over
// many sums. A sum that ends in three zeros stays as it is: those that are exact and short, as of small
// integers, do. So do subnormal sums and those of the largest floats.
static __device__ __forceinline__ float with_truncation_made_good(float c, float loss) {
    const int bits = __float_as_int(c), low = bits & 7, exponent = bits & 0x7f800000;
    const float mantissa = __int_as_float((bits & 0x007fffff) | 0x3f800000);  // 1 to 2
    // A unit of the last place is 2 / mantissa units of 2^-24 |c|; one sum of eight gets nothing.
    const float due = loss * mantissa * (0.5f * 8.0f / 7.0f);
    const int units = static_cast<int>(due + (low - 0.5f) * (1.0f / 7.0f));
    const bool open = low != 0 && exponent != 0 && exponent < 0x7f000000;
    return open ? __int_as_float(bits + units) : c;
}
