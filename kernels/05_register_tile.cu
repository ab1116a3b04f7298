// 05 Register tile: each thread computes a TM x TN tile of C, an outer product per k.
//
// Idea         Per k a thread reads TM floats of A and TN of B into registers and makes TM * TN
//              multiply-adds of them: every float read from shared memory is used TN or TM times.
// Before       With a column per thread each float of A is used once: a bit more than one shared
//              load per FMA.
// Expectation  Shared loads per FMA fall to (TM + TN) / (TM * TN), a quarter at 8 x 8. The rows of
//              A lie BK floats apart in shared memory and a thread's columns side by side, so every
//              load is a scalar, and neighbouring threads meet in the same banks: rungs 6 and 7
//              mend both.
// Measured     NVIDIA H200, N = 4096: 25.5 TFLOPS, 1.29 times rung 4 (results/published/nvidia-h200).
//              40 % of the wavefronts of its shared loads are bank conflicts.
//
// BM  rows of C per block
// BN  columns of C per block
// BK  depth of a tile
// TM  rows of C per thread
// TN  columns of C per thread

constexpr int THREADS = (BM / TM) * (BN / TN);

extern "C" __global__ void __launch_bounds__(THREADS)
gemm(const float* A, const float* B, float* C, int M, int N, int K) {
    __shared__ float a_tile[BM][BK];
    __shared__ float b_tile[BK][BN];

    const int block_row = blockIdx.y * BM;
    const int block_col = blockIdx.x * BN;
    const int tile_row = threadIdx.x / (BN / TN) * TM;  // the thread's first row in the tile
    const int tile_col = threadIdx.x % (BN / TN) * TN;

    float acc[TM][TN] = {};
    for (int k0 = 0; k0 < K; k0 += BK) {
        for (int i = threadIdx.x; i < BM * BK; i += THREADS) {
            const int row = block_row + i / BK, k = k0 + i % BK;
            a_tile[i / BK][i % BK] = (row < M && k < K) ? A[row * K + k] : 0.0f;
        }
        for (int i = threadIdx.x; i < BK * BN; i += THREADS) {
            const int k = k0 + i / BN, col = block_col + i % BN;
            b_tile[i / BN][i % BN] = (k < K && col < N) ? B[k * N + col] : 0.0f;
        }
        __syncthreads();  // the tiles are complete

#pragma unroll
        for (int k = 0; k < BK; ++k) {
            float a[TM], b[TN];
#pragma unroll
            for (int i = 0; i < TM; ++i) a[i] = a_tile[tile_row + i][k];
#pragma unroll
            for (int j = 0; j < TN; ++j) b[j] = b_tile[k][tile_col + j];
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
        for (int j = 0; j < TN; ++j) {
            const int row = block_row + tile_row + i, col = block_col + tile_col + j;
            if (row < M && col < N) C[row * N + col] = acc[i][j];
        }
    }
}
