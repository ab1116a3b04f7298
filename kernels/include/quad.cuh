// Four neighbouring floats of a matrix row as one 128-bit access, at any size of the matrix.
//
// A 128-bit access must be aligned to 16 bytes, and all rows are so only where their length is a
// multiple of four; elsewhere the four floats move one by one. Outside the matrix there are zeros.
// size_t indices: matrices may have more than 2^31 elements, and with an int index the compilers
// for sm_80 to sm_90 split the 128-bit store into four.
#pragma once

__device__ __forceinline__ float4 load_quad(const float* matrix, int rows, int columns, int row,
                                            int column) {
    float4 quad = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (row < rows && column < columns) {
        const float* first = matrix + static_cast<size_t>(row) * columns + column;
        if (columns % 4 == 0) {
            quad = *reinterpret_cast<const float4*>(first);
        } else {
            quad.x = first[0];
            if (column + 1 < columns) quad.y = first[1];
            if (column + 2 < columns) quad.z = first[2];
            if (column + 3 < columns) quad.w = first[3];
        }
    }
    return quad;
}

__device__ __forceinline__ void store_quad(float* matrix, int rows, int columns, int row, int column,
                                           float4 quad) {
    if (row < rows && column < columns) {
        float* first = matrix + static_cast<size_t>(row) * columns + column;
        if (columns % 4 == 0) {
            *reinterpret_cast<float4*>(first) = quad;
        } else {
            first[0] = quad.x;
            if (column + 1 < columns) first[1] = quad.y;
            if (column + 2 < columns) first[2] = quad.z;
            if (column + 3 < columns) first[3] = quad.w;
        }
    }
}

// Into four registers of a thread's own array.
__device__ __forceinline__ void unpack(float* to, float4 quad) {
    to[0] = quad.x;
    to[1] = quad.y;
    to[2] = quad.z;
    to[3] = quad.w;
}

// The quad itself, in registers that ptxas may choose anew: a product with a one that the compiler
// cannot see. A 128-bit store wants its four values in neighbouring registers; sums that are stored
// as they are get such registers for the whole loop, where they then meet the operands of their FMAs
// in one register bank.
__device__ __forceinline__ float4 repacked(float a, float b, float c, float d, int positive) {
    const float one = positive > 0 ? 1.0f : 2.0f;
    return make_float4(one * a, one * b, one * c, one * d);
}
