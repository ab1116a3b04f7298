// The copies of A and B that a launch of the kind `tensor_maps` with `split_f16` makes before `gemm`: each
// matrix as two of FP16, big and small (split_f16.cuh), scaled so that they fit.
//
// FP16's exponent has 5 bits only. So every row of A and every column of B, a "line" of K elements that are
// multiplied and summed together, is first scaled by a power of two that brings its largest element to
// [2^14, 2^15). An element then keeps 22 to 23 bits if it is at least 2^-13, that is 2^-28 of the largest. A
// smaller one does not. One such misfit in a line is left out and remembered, and its products are added in
// FP32; of data without a pattern few lines have one, and hardly any two. A line with more of them, with an
// infinity or a NaN, or of elements all below 2^-112 is UNFIT: all its products are FP32's.
//
// Pairs of neighbouring halves fill an `unsigned`, so that a tensor map of 4-byte elements describes them.
// Big comes first, small `rows` rows below it, then a Line for each line. workflow/ladder/tensor_maps.py
// launches these and mirrors their geometry.
#pragma once
#include "quad.cuh"
#include "split_f16.cuh"

constexpr int UNFIT = 1 << 20;
constexpr float SMALLEST_F16_FIT = 1.0f / 8192.0f;  // 2^-13, after scaling

struct alignas(16) Line {
    int shift;     // its elements were multiplied by 2^shift; UNFIT: must not be used
    int at;        // k of the misfit; -1: none
    float misfit;  // as it is in the matrix
    int unused;
};

// The shift for a line whose largest magnitude has these bits.
__device__ __forceinline__ int shift_of(unsigned largest) {
    if (largest == 0) return 0;
    const int exponent = static_cast<int>(largest >> 23) - 127;
    return exponent == 128 || exponent < -112 ? UNFIT : 14 - exponent;
}

// The part of a line that one thread splits.
struct Splitting {
    int shift;
    float scale;
    int misfits, at;

    __device__ explicit Splitting(unsigned largest)
        : shift(shift_of(largest)), scale(shift == UNFIT ? 0.0f : power_of_two(shift)), misfits(0), at(-1) {}

    // Element number k of the line, scaled; 0 for a misfit.
    __device__ float scaled(float x, int k) {
        const float y = x * scale;
        if (y == 0.0f || fabsf(y) >= SMALLEST_F16_FIT) return y;
        ++misfits;
        at = k;
        return 0.0f;
    }
};

__device__ __forceinline__ unsigned larger(unsigned a, unsigned b) { return a > b ? a : b; }

constexpr int SPLIT_ROWS_THREADS = 256;

// A (rows x columns), a block per row. The second pass finds the row in L1.
extern "C" __global__ void __launch_bounds__(SPLIT_ROWS_THREADS)
split_rows(const float* __restrict__ A, unsigned* __restrict__ halves, int rows, int columns, int pitch) {
    __shared__ unsigned of_warp[SPLIT_ROWS_THREADS / 32];
    const int row = blockIdx.x;
    unsigned largest = 0;
    for (int k = 4 * threadIdx.x; k < columns; k += 4 * SPLIT_ROWS_THREADS) {
        const float4 x = load_quad(A, rows, columns, row, k);
        largest = larger(larger(largest, larger(magnitude_bits(x.x), magnitude_bits(x.y))),
                         larger(magnitude_bits(x.z), magnitude_bits(x.w)));
    }
    for (int distance = 16; distance > 0; distance /= 2) {
        largest = larger(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
    }
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = largest;
    __syncthreads();
    for (int warp = 0; warp < SPLIT_ROWS_THREADS / 32; ++warp) largest = larger(largest, of_warp[warp]);

    Splitting line(largest);
    const size_t matrix = static_cast<size_t>(rows) * pitch;  // from big to small
    for (int k = 4 * threadIdx.x; k < columns; k += 4 * SPLIT_ROWS_THREADS) {
        const float4 x = load_quad(A, rows, columns, row, k);
        uint2 big, small;
        split_f16(line.scaled(x.x, k), line.scaled(x.y, k + 1), big.x, small.x);
        split_f16(line.scaled(x.z, k + 2), line.scaled(x.w, k + 3), big.y, small.y);
        unsigned* const to = halves + static_cast<size_t>(row) * pitch + k / 2;
        *reinterpret_cast<uint2*>(to) = big;
        *reinterpret_cast<uint2*>(to + matrix) = small;
    }
    const int holders = __syncthreads_count(line.misfits > 0);
    const bool too_many = __syncthreads_or(line.misfits > 1) || holders > 1;
    // The thread that has the misfit writes it; without one, the first.
    if (holders == 1 && !too_many ? line.misfits == 1 : threadIdx.x == 0) {
        Line* const lines = reinterpret_cast<Line*>(halves + 2 * matrix);
        const int at = too_many ? -1 : line.at;
        const float misfit = at < 0 ? 0.0f : A[static_cast<size_t>(row) * columns + at];
        lines[row] = Line{too_many ? UNFIT : line.shift, at, misfit, 0};
    }
}

constexpr int SPLIT_COLUMNS = 32;  // of a block: 8 quads, 128 bytes of each row
constexpr int SPLIT_COLUMNS_THREADS = 512;

// B (rows x columns), a block per 32 columns. The second pass finds most of them in L2.
extern "C" __global__ void __launch_bounds__(SPLIT_COLUMNS_THREADS)
split_columns(const float* __restrict__ B, unsigned* __restrict__ halves, int rows, int columns, int pitch) {
    __shared__ unsigned of_warp[SPLIT_COLUMNS_THREADS / 32][SPLIT_COLUMNS];
    __shared__ unsigned of_block[SPLIT_COLUMNS];
    __shared__ int misfits[SPLIT_COLUMNS_THREADS / 32][SPLIT_COLUMNS], all_misfits[SPLIT_COLUMNS];
    const int quad = threadIdx.x % 8, first_row = threadIdx.x / 8, warp = threadIdx.x / 32;
    const int column = blockIdx.x * SPLIT_COLUMNS + 4 * quad;
    unsigned largest[4] = {};
#pragma unroll 4
    for (int k = first_row; k < rows; k += SPLIT_COLUMNS_THREADS / 8) {
        const float4 x = load_quad(B, rows, columns, k, column);
        largest[0] = larger(largest[0], magnitude_bits(x.x));
        largest[1] = larger(largest[1], magnitude_bits(x.y));
        largest[2] = larger(largest[2], magnitude_bits(x.z));
        largest[3] = larger(largest[3], magnitude_bits(x.w));
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // over the four rows of a warp
        largest[i] = larger(largest[i], __shfl_xor_sync(0xffffffffu, largest[i], 8));
        largest[i] = larger(largest[i], __shfl_xor_sync(0xffffffffu, largest[i], 16));
        if (threadIdx.x % 32 < 8) of_warp[warp][4 * quad + i] = largest[i];
    }
    __syncthreads();
    if (warp == 0) {  // a lane per column
        unsigned of_all = 0;
        for (int other = 0; other < SPLIT_COLUMNS_THREADS / 32; ++other) {
            of_all = larger(of_all, of_warp[other][threadIdx.x]);
        }
        of_block[threadIdx.x] = of_all;
    }
    __syncthreads();

    Splitting line[4] = {Splitting(of_block[4 * quad]), Splitting(of_block[4 * quad + 1]),
                         Splitting(of_block[4 * quad + 2]), Splitting(of_block[4 * quad + 3])};
    const size_t matrix = static_cast<size_t>(rows) * pitch;  // from big to small
    if (column < columns) {
#pragma unroll 2
        for (int k = first_row; k < rows; k += SPLIT_COLUMNS_THREADS / 8) {
            const float4 x = load_quad(B, rows, columns, k, column);
            uint2 big, small;
            split_f16(line[0].scaled(x.x, k), line[1].scaled(x.y, k), big.x, small.x);
            split_f16(line[2].scaled(x.z, k), line[3].scaled(x.w, k), big.y, small.y);
            unsigned* const to = halves + static_cast<size_t>(k) * pitch + column / 2;
            *reinterpret_cast<uint2*>(to) = big;
            *reinterpret_cast<uint2*>(to + matrix) = small;
        }
    }
    Line* const lines = reinterpret_cast<Line*>(halves + 2 * matrix);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        int in_warp = line[i].misfits;
        in_warp += __shfl_xor_sync(0xffffffffu, in_warp, 8);
        in_warp += __shfl_xor_sync(0xffffffffu, in_warp, 16);
        if (threadIdx.x % 32 < 8) misfits[warp][4 * quad + i] = in_warp;
    }
    __syncthreads();
    if (warp == 0) {
        int total = 0;
        for (int other = 0; other < SPLIT_COLUMNS_THREADS / 32; ++other) {
            total += misfits[other][threadIdx.x];
        }
        all_misfits[threadIdx.x] = total;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int total = all_misfits[4 * quad + i];
        const bool writes = total == 1 ? line[i].misfits == 1 : first_row == 0;
        if (writes && column + i < columns) {
            const int at = total > 1 ? -1 : line[i].at;
            const float misfit = at < 0 ? 0.0f : B[static_cast<size_t>(at) * columns + column + i];
            lines[column + i] = Line{total > 1 ? UNFIT : line[i].shift, at, misfit, 0};
        }
    }
}
