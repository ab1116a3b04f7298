// 04 Register column: each thread computes TM elements of one column of C.
//
// Idea         A thread keeps TM sums in registers. Per k it reads one float of B and TM of A from
//              shared memory and makes TM multiply-adds of them.
// Before       The shared tile reads two floats from shared memory for each multiply-add, and
//              shared memory delivers 32 floats a clock to 128 FP32 units.
// Expectation  Shared loads per FMA fall from 2 to (TM + 1) / TM, and the loads of A are broadcasts
//              that the compiler can merge along k. The tile is BM x BN instead of 32 x 32, so
//              global traffic falls by BM / 32.
// Measured     NVIDIA H200, N = 4096: 19.7 TFLOPS, 2.33 times rung 3 (results/published/nvidia-h200).
//              Instructions fell by a third, wavefronts of shared memory by three fifths.
//
// BM  rows of C per block
// BN  columns of C per block
// BK  depth of a tile
// TM  rows of C per thread

constexpr int THREADS = BM * BN / TM;

extern "C" __global__ void __launch_bounds__(THREADS)
gemm(const float* A, const float* B, float* C, int M, int N, int K) {
    __shared__ float a_tile[BM][BK];
    __shared__ float b_tile[BK][BN];

    const int block_row = blockIdx.y * BM;
    const int block_col = blockIdx.x * BN;
    const int tile_row = threadIdx.x / BN * TM;  // the thread's first row in the tile
    const int tile_col = threadIdx.x % BN;

    float acc[TM] = {};
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
            const float b = b_tile[k][tile_col];
#pragma unroll
            for (int i = 0; i < TM; ++i) acc[i] += a_tile[tile_row + i][k] * b;
        }
        __syncthreads();  // nobody reads the tiles any more
    }

    const int col = block_col + tile_col;
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const int row = block_row + tile_row + i;
        if (row < M && col < N) C[row * N + col] = acc[i];
    }
}
