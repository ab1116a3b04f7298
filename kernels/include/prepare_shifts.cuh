// What a launch of the kind `tensor_maps` with `f16_shifts` finds out before `gemm`: for each tile of A and B a
// power of two that brings all of it to FP16's range, if one does. Two helpers look at every element once,
// where the blocks of `gemm` would look at it once for each tile of C that it enters.
//
// A tile fits if 2^shift scales its largest magnitude to [2^14, 2^15) and then none but zeros is below 2^-14,
// where FP16's normal numbers end; and if the largest is from 2^-40 to 2^60, so that products of two such
// tiles stay within the range of a float, even scaled by 2^11 more.
//
// A tile has as many rows as a box of the matrix's map. One of A has 32 columns, which are multiplied
// together; one of B has 128, or what is left of them. Their shifts lie row after row, as the tiles do in the
// matrix. workflow/ladder/tensor_maps.py launches the helpers and mirrors their geometry.
#pragma once
#include "quad.cuh"
#include "split_f16.cuh"

constexpr int NO_SHIFT = 1 << 20;  // the tile does not fit

constexpr int SHIFTS_THREADS = 256, SHIFTS_WARPS = SHIFTS_THREADS / 32;
constexpr int SHIFTS_COLUMNS = 128;  // of a block: a quad for each lane
constexpr int A_TILE_COLUMNS = 32, B_TILE_COLUMNS = 128;

struct Magnitudes {
    unsigned largest;   // bits of the largest
    unsigned smallest;  // bits of the smallest that is not zero, less one: zero itself counts as large

    __device__ void add(unsigned of_largest, unsigned of_smallest) {
        largest = max(largest, of_largest);
        smallest = min(smallest, of_smallest);
    }
    __device__ void add(float x) {
        const unsigned bits = magnitude_bits(x);
        add(bits, bits - 1);
    }
};

__device__ __forceinline__ int f16_shift_of(const Magnitudes& tile) {
    if (tile.largest == 0) return 0;
    const int top = static_cast<int>(tile.largest >> 23) - 127;  // 128 for infinities and NaN
    const int bottom = static_cast<int>((tile.smallest + 1) >> 23) - 127;
    return top >= -40 && top <= 60 && bottom >= top - 28 ? 14 - top : NO_SHIFT;
}

// A warp takes every eighth row of the tiles; along y a block walks on where the grid ends.
template <int TILE_COLUMNS>
__device__ __forceinline__ void tile_shifts(const float* __restrict__ matrix, int* __restrict__ shifts, int rows,
                                            int columns, int tile_rows) {
    constexpr int TILES = SHIFTS_COLUMNS / TILE_COLUMNS, LANES = TILE_COLUMNS / 4;
    __shared__ Magnitudes of_warp[SHIFTS_WARPS][TILES];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int column = blockIdx.x * SHIFTS_COLUMNS + 4 * lane;
    const int tiles_down = (rows + tile_rows - 1) / tile_rows;
    const int tiles_across = (columns + TILE_COLUMNS - 1) / TILE_COLUMNS;
    for (int tile = blockIdx.y; tile < tiles_down; tile += gridDim.y) {
        Magnitudes seen{0, 0xffffffffu};
        for (int row = warp; row < tile_rows; row += 4 * SHIFTS_WARPS) {
            float4 x[4];  // four loads under way
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int below = row + i * SHIFTS_WARPS;
                x[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (below < tile_rows) x[i] = load_quad(matrix, rows, columns, tile * tile_rows + below, column);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                seen.add(x[i].x);
                seen.add(x[i].y);
                seen.add(x[i].z);
                seen.add(x[i].w);
            }
        }
#pragma unroll
        for (int lanes = LANES / 2; lanes > 0; lanes /= 2) {
            seen.add(__shfl_xor_sync(0xffffffffu, seen.largest, lanes),
                     __shfl_xor_sync(0xffffffffu, seen.smallest, lanes));
        }
        if (lane % LANES == 0) of_warp[warp][lane / LANES] = seen;
        __syncthreads();

        const int across = blockIdx.x * TILES + threadIdx.x;
        if (threadIdx.x < TILES && across < tiles_across) {
            Magnitudes all{0, 0xffffffffu};
            for (int other = 0; other < SHIFTS_WARPS; ++other) {
                all.add(of_warp[other][threadIdx.x].largest, of_warp[other][threadIdx.x].smallest);
            }
            shifts[static_cast<size_t>(tile) * tiles_across + across] = f16_shift_of(all);
        }
        __syncthreads();  // nobody reads them any more
    }
}

extern "C" __global__ void __launch_bounds__(SHIFTS_THREADS)
shifts_of_a(const float* __restrict__ A, int* __restrict__ shifts, int rows, int columns, int tile_rows) {
    tile_shifts<A_TILE_COLUMNS>(A, shifts, rows, columns, tile_rows);
}

extern "C" __global__ void __launch_bounds__(SHIFTS_THREADS)
shifts_of_b(const float* __restrict__ B, int* __restrict__ shifts, int rows, int columns, int tile_rows) {
    tile_shifts<B_TILE_COLUMNS>(B, shifts, rows, columns, tile_rows);
}
