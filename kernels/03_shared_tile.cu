// 03 Shared tile: the block fetches each operand once and shares it.
//
// Idea         A block of TILE x TILE threads copies a TILE x TILE tile of A and one of B into
//              shared memory, and every thread then reads its operands from there.
// Before       The naive rung asks global memory for 8 bytes per FMA; each element of A is fetched
//              by all the threads of a row, each element of B by all those of a column.
// Expectation  Global loads fall by the factor TILE: 8*M*N*K / TILE bytes requested. Shared memory
//              takes over: two 4-byte loads per FMA, so the kernel stays far below the FMA peak.
// Measured     NVIDIA H200, N = 4096, TFLOPS: TILE 8 5.15, 16 7.69, 32 8.45; the best naive shape
//              6.11, cuBLAS FP32 51.4 (results/published/nvidia-h200).
//
// TILE  side of the square tile, and of the thread block

extern "C" __global__ void __launch_bounds__(TILE * TILE)
gemm(const float* A, const float* B, float* C, int M, int N, int K) {
    __shared__ float a_tile[TILE][TILE];
    __shared__ float b_tile[TILE][TILE];

    const int tx = threadIdx.x;
    const int ty = threadIdx.y;
    const int row = blockIdx.y * TILE + ty;
    const int col = blockIdx.x * TILE + tx;

    float acc = 0.0f;
    for (int k0 = 0; k0 < K; k0 += TILE) {
        // Outside the matrices the tiles hold zeros, which add nothing: any M, N, K is right.
        a_tile[ty][tx] = (row < M && k0 + tx < K) ? A[row * K + k0 + tx] : 0.0f;
        b_tile[ty][tx] = (k0 + ty < K && col < N) ? B[(k0 + ty) * N + col] : 0.0f;
        __syncthreads();  // the tiles are complete

        for (int k = 0; k < TILE; ++k) {
            acc += a_tile[ty][k] * b_tile[k][tx];
        }
        __syncthreads();  // nobody reads the tiles any more
    }
    if (row < M && col < N) C[row * N + col] = acc;
}
