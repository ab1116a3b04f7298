// Two neighbouring floats of a matrix row as one 64-bit store, at any size of the matrix: the fragments of
// sums on the tensor cores come in such pairs. `column` is even; rows are aligned to 8 bytes only where
// their length is even, and elsewhere the two floats move one by one. size_t as in quad.cuh.
#pragma once

__device__ __forceinline__ void store_pair(float* matrix, int rows, int columns, int row, int column,
                                           float first, float second) {
    if (row < rows && column < columns) {
        float* const to = matrix + static_cast<size_t>(row) * columns + column;
        if (columns % 2 == 0) {
            *reinterpret_cast<float2*>(to) = make_float2(first, second);
        } else {
            to[0] = first;
            if (column + 1 < columns) to[1] = second;
        }
    }
}
