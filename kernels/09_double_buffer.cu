// 09 Double buffer: the next tile is on its way while this one is computed.
//
// Idea         Two buffers at both levels. Each tile of A and B has a second place in shared memory:
//              while one is read, the next comes from global memory into registers and then into
//              the other. And each thread reads its operands for k + 1 while it multiplies those for
//              k. One barrier per tile is enough.
// Before       Every warp loads, waits, computes, waits; only other blocks on the multiprocessor
//              fill the gaps, and large register tiles leave room for few.
// Expectation  The latency of global memory (some 600 cycles) hides behind the BK * TM * TN FMAs of a
//              tile, that of shared memory (some 30) behind the TM * TN FMAs of a k. The price is
//              registers: a second set of operands and a tile in transit.
// Measured     NVIDIA H200, N = 4096: 43.4 TFLOPS, 1.35 times rung 8 (results/published/nvidia-h200).
//              Warps waited for global memory 3.6 G cycles there, and 0.03 G here.
//
// BM       rows of C per block
// BN       columns of C per block
// BK       depth of a tile
// TM       rows of C per thread
// TN       columns of C per thread
// LANES_M  lanes of a warp along the rows of C

#include "quad.cuh"

constexpr int LANES_N = 32 / LANES_M;
constexpr int WARP_M = LANES_M * TM, WARP_N = LANES_N * TN;  // outputs of a warp
constexpr int WARPS_N = BN / WARP_N;
constexpr int THREADS = 32 * (BM / WARP_M) * WARPS_N;
constexpr int A_PITCH = BM + 4;  // for stores of A without bank conflicts
constexpr int A_QUADS = BM * BK / 4 / THREADS, B_QUADS = BK * BN / 4 / THREADS;  // per thread
static_assert(BM * BK % (4 * THREADS) == 0 && BK * BN % (4 * THREADS) == 0, "whole quads per thread");

extern "C" __global__ void __launch_bounds__(THREADS)
gemm(const float* A, const float* B, float* C, int M, int N, int K) {
    __shared__ __align__(16) float a_tile[2][BK][A_PITCH];  // transposed
    __shared__ __align__(16) float b_tile[2][BK][BN];

    const int block_row = blockIdx.y * BM;
    const int block_col = blockIdx.x * BN;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int lane_m = lane / 2 % LANES_M;
    const int lane_n = lane % 2 + lane / (2 * LANES_M) * 2;
    const int quad_row = warp / WARPS_N * WARP_M + lane_m * 4;
    const int quad_col = warp % WARPS_N * WARP_N + lane_n * 4;

    float4 a_transit[A_QUADS], b_transit[B_QUADS];
    auto fetch = [&](int k0) {  // from global memory into registers
#pragma unroll
        for (int p = 0; p < A_QUADS; ++p) {
            const int i = threadIdx.x + p * THREADS;
            a_transit[p] = load_quad(A, M, K, block_row + i / (BK / 4), k0 + i % (BK / 4) * 4);
        }
#pragma unroll
        for (int p = 0; p < B_QUADS; ++p) {
            const int i = threadIdx.x + p * THREADS;
            b_transit[p] = load_quad(B, K, N, k0 + i / (BN / 4), block_col + i % (BN / 4) * 4);
        }
    };
    auto deposit = [&](int buffer) {  // from registers into shared memory
#pragma unroll
        for (int p = 0; p < A_QUADS; ++p) {
            const int i = threadIdx.x + p * THREADS;
            const int row = i / (BK / 4), k = i % (BK / 4) * 4;
            a_tile[buffer][k + 0][row] = a_transit[p].x;
            a_tile[buffer][k + 1][row] = a_transit[p].y;
            a_tile[buffer][k + 2][row] = a_transit[p].z;
            a_tile[buffer][k + 3][row] = a_transit[p].w;
        }
#pragma unroll
        for (int p = 0; p < B_QUADS; ++p) {
            const int i = threadIdx.x + p * THREADS;
            *reinterpret_cast<float4*>(&b_tile[buffer][i / (BN / 4)][i % (BN / 4) * 4]) =
                b_transit[p];
        }
    };
    float a[2][TM], b[2][TN];
    auto read = [&](int set, int buffer, int k) {  // from shared memory into operands
#pragma unroll
        for (int i = 0; i < TM; i += 4) {
            const int row = quad_row + i * LANES_M;
            unpack(&a[set][i], *reinterpret_cast<const float4*>(&a_tile[buffer][k][row]));
        }
#pragma unroll
        for (int j = 0; j < TN; j += 4) {
            const int col = quad_col + j * LANES_N;
            unpack(&b[set][j], *reinterpret_cast<const float4*>(&b_tile[buffer][k][col]));
        }
    };

    fetch(0);
    deposit(0);
    __syncthreads();
    read(0, 0, 0);

    float acc[TM][TN] = {};
    int buffer = 0;
    for (int k0 = 0; k0 < K; k0 += BK) {
        const bool more = k0 + BK < K;
        if (more) fetch(k0 + BK);
#pragma unroll
        for (int k = 0; k < BK; ++k) {
            if (k + 1 < BK) {
                read((k + 1) % 2, buffer, k + 1);
            } else if (more) {
                // The other buffer was last read before the barrier of the tile before.
                deposit(buffer ^ 1);
                __syncthreads();
                read(0, buffer ^ 1, 0);
            }
#pragma unroll
            for (int i = 0; i < TM; ++i) {
#pragma unroll
                for (int j = 0; j < TN; ++j) acc[i][j] += a[k % 2][i] * b[k % 2][j];
            }
        }
        buffer ^= 1;
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
