// What a tensor core cuts off its sums, given back on average.
//
// A tensor core does not round a sum, it cuts it off towards zero. Partial sums that are added up in FP32
// keep that small, but all of it has one sign: a sum c has lost LOSS units of 2^-24 |c| on average, in
// proportion to c, for each of its parts has lost in proportion to itself.
#pragma once

// The loss of partial sums of `together` steps each, of `steps` in all: the last may have fewer. `loss_of` has
// that of a partial sum by its steps; on average each is as large as it has steps.
template <typename LossOf>
static __device__ __forceinline__ float mean_loss(LossOf loss_of, int steps, int together) {
    const int rest = steps % together;
    const float whole = (steps - rest) * loss_of(together);
    return (rest == 0 ? whole : whole + rest * loss_of(rest)) / steps;
}

// The loss is given back in whole units of c's last place; its lowest nine bits, which are as good as
// random, decide between the two numbers of units around the loss, so that it is made good on average over
// many sums. A sum that ends in six zeros stays as it is: those that are exact and short, as of small
// integers, do. So do subnormal sums and those of the largest floats. (Fewer zeros do not do: where a sum
// has few terms, many additions fall halfway between two floats and are rounded to the even one.)
static __device__ __forceinline__ float with_truncation_made_good(float c, float loss) {
    const int bits = __float_as_int(c), low = bits & 511, exponent = bits & 0x7f800000;
    const float mantissa = __int_as_float((bits & 0x007fffff) | 0x3f800000);  // 1 to 2
    // A unit of the last place is 2 / mantissa units of 2^-24 |c|; one sum of 64 gets nothing.
    const float due = loss * mantissa * (0.5f * 64.0f / 63.0f);
    const int units = static_cast<int>(due + low * (1.0f / 512.0f));  // 256 is the mean of low
    const bool open = low % 64 != 0 && exponent != 0 && exponent < 0x7f000000;
    return open ? __int_as_float(bits + units) : c;
}
