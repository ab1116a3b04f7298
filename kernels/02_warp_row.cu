// 02 Warp row: the lanes of a warp stand side by side in one row of C.
//
// Idea         Lane l of a warp takes column 32 * x + l, whatever the block looks like; a block of
//              WARPS warps covers WARPS rows.
// Before       Rung 1 leaves the shape of a warp to the block: 16 x 16 threads put two rows of 16
//              columns into one warp, 8 x 32 put four rows of 8.
// Expectation  Per k a warp asks for one float of A (a broadcast, 1 sector) and 32 neighbouring
//              floats of B (4 sectors): 2.5 sectors per request, of which 26.4 of 32 bytes are
//              useful, against 18.0 at 16 x 16. Requested bytes do not change.
// Measured     NVIDIA H200, N = 2048, TFLOPS: 6.69, as rung 1's blocks of 32x8 (6.69), and 1.23 times
//              its 16x16 (5.43). At 4096 it has 5.81 and rung 1's best shape, 32x32, 6.11: a taller
//              block finds more of B in L1 (results/published/nvidia-h200).
//
// WARPS  warps of a block, each on a row of its own

extern "C" __global__ void __launch_bounds__(32 * WARPS)
gemm(const float* A, const float* B, float* C, int M, int N, int K) {
    const int row = blockIdx.y * WARPS + threadIdx.x / 32;
    const int col = blockIdx.x * 32 + threadIdx.x % 32;
    if (row >= M || col >= N) return;

    float acc = 0.0f;
    for (int k = 0; k < K; ++k) {
        acc += A[row * K + k] * B[k * N + col];
    }
    C[row * N + col] = acc;
}
