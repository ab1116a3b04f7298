// The order in which a thread goes through its TM x TN FMAs: ORDER 0 by rows, 1 by columns, 2 by squares
// of 2 x 2.
//
// It decides which operands can be reused from one FMA to the next instead of being read from a register
// bank again; it runs back and forth, so that one stays at each turn. ptxas may still reorder.
#pragma once

__device__ constexpr int fold(int index, int line, int length) {
    return line % 2 ? length - 1 - index : index;
}
__device__ constexpr int row_of(int step) {
    return ORDER == 0   ? step / TN
           : ORDER == 1 ? fold(step % TM, step / TM, TM)
                        : step / (2 * TN) * 2 + step % 4 / 2;
}
__device__ constexpr int column_of(int step) {
    return ORDER == 0   ? fold(step % TN, step / TN, TN)
           : ORDER == 1 ? step / TM
                        : fold(step / 4 % (TN / 2), step / (2 * TN), TN / 2) * 2 + (step % 2 ^ step % 4 / 2);
}
