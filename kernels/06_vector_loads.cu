// 06 Vector loads: 128-bit accesses everywhere, and the tile of A stored transposed.
//
// Idea         Every access moves four floats. Global memory is read in quads along its rows; the
//              quad of A is then scattered into a transposed tile, where a thread's TM rows lie
//              side by side and can be read as quads too.
// Before       The register tile reads A from shared memory float by float, because its rows lie BK
//              floats apart, and each scalar load takes an issue slot that an FMA could have had.
// Expectation  A quarter of the load instructions: per k (TM + TN) / 4 shared loads for TM * TN
//              FMAs, 1 to 16 at 8 x 8. Traffic in bytes stays. The scattered stores of A conflict
//              (threads that hold different k of one row meet in a bank), and so do the loads of B
//              (quads of neighbouring threads lie TN floats apart): rung 7.
// Measured     NVIDIA H200, N = 4096: 29.3 TFLOPS, 1.15 times rung 5 (results/published/nvidia-h200).
//              14 % fewer instructions; the loads' conflicts are still there, and the stores have more.
//
// BM  rows of C per block
// BN  columns of C per block
// BK  depth of a tile
// TM  rows of C per thread
// TN  columns of C per thread

#include "quad.cuh"

constexpr int THREADS = (BM / TM) * (BN / TN);

extern "C" __global__ void __launch_bounds__(THREADS)
gemm(const float* A, const float* B, float* C, int M, int N, int K) {
    __shared__ __align__(16) float a_tile[BK][BM];  // transposed
    __shared__ __align__(16) float b_tile[BK][BN];

    const int block_row = blockIdx.y * BM;
    const int block_col = blockIdx.x * BN;
    const int tile_row = threadIdx.x / (BN / TN) * TM;  // the thread's first row in the tile
    const int tile_col = threadIdx.x % (BN / TN) * TN;

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
                unpack(&a[i], *reinterpret_cast<const float4*>(&a_tile[k][tile_row + i]));
            }
#pragma unroll
            for (int j = 0; j < TN; j += 4) {
                unpack(&b[j], *reinterpret_cast<const float4*>(&b_tile[k][tile_col + j]));
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
#pragma unroll
        for (int j = 0; j < TN; j += 4) {
            store_quad(C, M, N, block_row + tile_row + i, block_col + tile_col + j,
                       make_float4(acc[i][j], acc[i][j + 1], acc[i][j + 2], acc[i][j + 3]));
        }
    }
}
