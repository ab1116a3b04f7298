// 11 Raster: neighbouring blocks work on neighbouring tiles, so the L2 cache is used twice.
//
// Idea         Blocks start in the order of their index. Instead of row after row of tiles, the order
//              runs down GROUP rows of tiles before it goes to the next column, so that the blocks
//              which run at one time cover a compact piece of C.
// Before       The blocks that run together, some 264 at two per multiprocessor, cover a few whole
//              rows of tiles: they share A well and read nearly all of B.
// Expectation  The same work, and the same traffic between L2 and the multiprocessors; what changes
//              is how much of it L2 has to fetch. w blocks in a square need A and B of sqrt(w) tile
//              rows and columns each, instead of B of w columns. It pays where A and B exceed L2
//              (60 MB on an H200, from N = 2800 on), and in power, for bytes not moved are clock.
// Measured     NVIDIA H200, TFLOPS: 46.9 at N = 4096, as fast as rung 10 (0.993), and 48.4 at 8192,
//              1.03 times rung 10 (results/published/nvidia-h200). At 4096 L2 reads a fifth less from
//              DRAM, 0.62 instead of 0.78 GB; but nobody waited for DRAM there, and the index costs a
//              few instructions.
//
// BM       rows of C per block
// BN       columns of C per block
// BK       depth of a tile
// TM       rows of C per thread
// TN       columns of C per thread
// LANES_M  lanes of a warp along the rows of C
// STAGES   tiles in shared memory
// BLOCKS   blocks per multiprocessor that the registers must allow
// GROUP    rows of tiles that the order of blocks runs down

#include "cp_async.cuh"
#include "quad.cuh"

constexpr int LANES_N = 32 / LANES_M;
constexpr int WARP_M = LANES_M * TM, WARP_N = LANES_N * TN;  // outputs of a warp
constexpr int WARPS_N = BN / WARP_N;
constexpr int THREADS = 32 * (BM / WARP_M) * WARPS_N;
constexpr int A_PITCH = BM + 4;  // lanes store 8 depths of 4 rows: 32 banks
constexpr int COPY_ROWS = THREADS / 8;  // of A in one pass of the block's copies
constexpr int A_FLOATS = BK * A_PITCH, B_FLOATS = BK * BN;
static_assert(BM % COPY_ROWS == 0 && BK * BN % (4 * THREADS) == 0, "whole passes of copies");

extern __shared__ __align__(16) float tiles[];  // STAGES tiles of A, transposed, then as many of B

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
gemm(const float* A, const float* B, float* C, int M, int N, int K) {
    float* const a_tiles = tiles;
    float* const b_tiles = tiles + STAGES * A_FLOATS;

    // The grid has one dimension: GROUP x tiles_n tiles form a band, and the last band may be lower.
    const int tiles_m = (M + BM - 1) / BM, tiles_n = (N + BN - 1) / BN;
    const int band = blockIdx.x / (GROUP * tiles_n), in_band = blockIdx.x % (GROUP * tiles_n);
    const int band_height = min(GROUP, tiles_m - band * GROUP);
    const int block_row = (band * GROUP + in_band % band_height) * BM;
    const int block_col = in_band / band_height * BN;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int lane_m = lane / 2 % LANES_M;
    const int lane_n = lane % 2 + lane / (2 * LANES_M) * 2;
    const int quad_row = warp / WARPS_N * WARP_M + lane_m * 4;
    const int quad_col = warp % WARPS_N * WARP_N + lane_n * 4;

    // The thread's copies of A start at this depth and row; 8 neighbouring depths are one sector.
    const int copy_k = threadIdx.x % 8, copy_row = threadIdx.x / 8;
    const bool whole_block = block_row + BM <= M && block_col + BN <= N && N % 4 == 0;
    auto copy = [&](int stage, int k0) {
        float* const a_tile = a_tiles + stage * A_FLOATS;
        float* const b_tile = b_tiles + stage * B_FLOATS;
        if (whole_block && k0 + BK <= K) {
            float* const to = a_tile + copy_k * A_PITCH + copy_row;
            const float* const from = A + static_cast<size_t>(block_row + copy_row) * K + k0 + copy_k;
#pragma unroll
            for (int row = 0; row < BM; row += COPY_ROWS) {
#pragma unroll
                for (int k = 0; k < BK; k += 8) {
                    cp_async<4>(to + k * A_PITCH + row, from + static_cast<size_t>(row) * K + k);
                }
            }
#pragma unroll
            for (int p = 0; p < BK * BN / 4; p += THREADS) {
                const int i = p + threadIdx.x;
                const int k = i / (BN / 4), col = i % (BN / 4) * 4;
                cp_async<16>(b_tile + 4 * i, B + static_cast<size_t>(k0 + k) * N + block_col + col);
            }
        } else {  // at an edge, or rows of B that are not aligned: float by float
            for (int i = threadIdx.x; i < BM * BK; i += THREADS) {
                const int row = block_row + i / BK, k = k0 + i % BK;
                float* const to = a_tile + i % BK * A_PITCH + i / BK;
                if (row < M && k < K) {
                    cp_async<4>(to, A + static_cast<size_t>(row) * K + k);
                } else {
                    *to = 0.0f;
                }
            }
            for (int i = threadIdx.x; i < BK * BN; i += THREADS) {
                const int k = k0 + i / BN, col = block_col + i % BN;
                if (k < K && col < N) {
                    cp_async<4>(b_tile + i, B + static_cast<size_t>(k) * N + col);
                } else {
                    b_tile[i] = 0.0f;
                }
            }
        }
    };

    const int depth = (K + BK - 1) / BK;  // tiles along k
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (stage < depth) copy(stage, stage * BK);
        cp_async_commit();  // an empty group where there is no tile: the count below stays right
    }

    float acc[TM][TN] = {};
    int reading = 0, writing = STAGES - 1;
    for (int tile = 0; tile < depth; ++tile) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // the tile is complete for all, and nobody reads the stage to be written
        if (tile + STAGES - 1 < depth) copy(writing, (tile + STAGES - 1) * BK);
        cp_async_commit();

        const float* const a_tile = a_tiles + reading * A_FLOATS;
        const float* const b_tile = b_tiles + reading * B_FLOATS;
#pragma unroll
        for (int k = 0; k < BK; ++k) {
            float a[TM], b[TN];
#pragma unroll
            for (int i = 0; i < TM; i += 4) {
                const float* const from = a_tile + k * A_PITCH + quad_row + i * LANES_M;
                unpack(&a[i], *reinterpret_cast<const float4*>(from));
            }
#pragma unroll
            for (int j = 0; j < TN; j += 4) {
                const float* const from = b_tile + k * BN + quad_col + j * LANES_N;
                unpack(&b[j], *reinterpret_cast<const float4*>(from));
            }
#pragma unroll
            for (int i = 0; i < TM; ++i) {
#pragma unroll
                for (int step = 0; step < TN; ++step) {
                    const int j = i % 2 ? TN - 1 - step : step;  // back and forth
                    acc[i][j] += a[i] * b[j];
                }
            }
        }
        reading = reading + 1 == STAGES ? 0 : reading + 1;
        writing = writing + 1 == STAGES ? 0 : writing + 1;
    }

#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const int row = block_row + quad_row + i / 4 * 4 * LANES_M + i % 4;
#pragma unroll
        for (int j = 0; j < TN; j += 4) {
            store_quad(C, M, N, row, block_col + quad_col + j * LANES_N,
                       repacked(acc[i][j], acc[i][j + 1], acc[i][j + 2], acc[i][j + 3], M));
        }
    }
}
