// 08 Warp tile: each warp takes a compact tile of C, and its lanes share what they read.
//
// Idea         A third level between block and thread: a warp computes (LANES_M * TM) x (LANES_N * TN)
//              outputs, 32 x 64 at 8 x 8 with 4 x 8 lanes. Within it, lanes l and l ^ 1 stand in one
//              row of threads and lanes l and l ^ 2 in one column.
// Before       Threads are numbered along the rows of the block tile, so a warp covers a strip: at
//              128 x 128 two rows of sixteen threads. Per k it reads 16 floats of A and all 128 of B.
// Expectation  A compact warp tile reads fewer different floats per k: 32 + 64 against 16 + 128.
//              That alone saves little, for a 128-bit load takes four passes of eight lanes whatever
//              their addresses. But the hardware joins two passes when every lane shares its address
//              with its neighbour at distance one, or every lane with that at distance two; hence
//              the order of the lanes. A load of A and one of B then take two passes each.
// Measured     NVIDIA H200, N = 4096: 32.1 TFLOPS, as rung 7 at the same depth (32.1), 0.97 times its
//              best (results/published/nvidia-h200). A third of the wavefronts is saved, but warps do
//              not wait for them: they wait for global memory, and the next rung hides that.
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

extern "C" __global__ void __launch_bounds__(THREADS)
gemm(const float* A, const float* B, float* C, int M, int N, int K) {
    __shared__ __align__(16) float a_tile[BK][A_PITCH];  // transposed
    __shared__ __align__(16) float b_tile[BK][BN];

    const int block_row = blockIdx.y * BM;
    const int block_col = blockIdx.x * BN;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // Bit 0 of the lane counts along N and bit 1 along M; the rest of M comes next, then that of N.
    const int lane_m = lane / 2 % LANES_M;
    const int lane_n = lane % 2 + lane / (2 * LANES_M) * 2;
    const int quad_row = warp / WARPS_N * WARP_M + lane_m * 4;  // of the thread's first quad of rows
    const int quad_col = warp % WARPS_N * WARP_N + lane_n * 4;

    float acc[TM][TN] = {};
    for (int k0 = 0; k0 < K; k0 += BK) {
        for (int i = threadIdx.x; i < BM * BK / 4; i += THREADS) {
            const int row = i / (BK / 4), k = i % (BK / 4) * 4;
            const float4 quad = load_quad(A, M, K, block_row + row, k0 + k);
            a_tile[k + 0][row] = quad.x;
            a_tile[k + 1][row] = quad.y;
            a_tile[k + 2][row] = quad.z;
            a_tile[k + 3][row] = quad.w;
        }
        for (int i = threadIdx.x; i < BK * BN / 4; i += THREADS) {
            const int k = i / (BN / 4), col = i % (BN / 4) * 4;
            *reinterpret_cast<float4*>(&b_tile[k][col]) =
                load_quad(B, K, N, k0 + k, block_col + col);
        }
        __syncthreads();  // the tiles are complete

#pragma unroll
        for (int k = 0; k < BK; ++k) {
            float a[TM], b[TN];
#pragma unroll
            for (int i = 0; i < TM; i += 4) {
                const int row = quad_row + i * LANES_M;
                unpack(&a[i], *reinterpret_cast<const float4*>(&a_tile[k][row]));
            }
#pragma unroll
            for (int j = 0; j < TN; j += 4) {
                const int col = quad_col + j * LANES_N;
                unpack(&b[j], *reinterpret_cast<const float4*>(&b_tile[k][col]));
            }
#pragma unroll
            for (int i = 0; i < TM; ++i) {
#pragma unroll
                for (int j = 0; j < TN; ++j) acc[i][j] += a[i] * b[j];
            }
        }
        __syncthreads();  // nobody reads the tiles any more
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
