// 01 Naive: one thread computes one element of C.
//
// Idea         Thread (row, col) walks row `row` of A and column `col` of B and keeps its sum in a register.
// Before       Nothing: this is the first rung.
// Expectation  Each FMA asks memory for two floats, 8 bytes for 2 flop: 0.25 flop/byte as requested.
//              The shape of a warp decides what that costs. Along k, the 32 lanes of a warp read
//              one float of A per row they cover (a broadcast: one sector each) and consecutive
//              floats of B. A block 16 wide puts 2 rows x 16 columns in a warp: A costs 2 sectors
//              and B 2, so 2.0 sectors per request. A block 32 wide covers 1 row x 32 columns: A
//              costs 1 sector and B 4, 2.5 per request. It moves more sectors and is faster all the
//              same: its useful bytes per sector rise from 18.0 to 26.4 of 32.
// Measured     NVIDIA H200, N = 2048, TFLOPS: 8x32 3.30, 16x16 5.43, 32x8 6.69, 64x4 6.72, 128x1 5.07
//              (results/published/nvidia-h200; cuBLAS FP32 beside it: 49.4).
//
// BLOCK_X  threads of a block along a row of C
// BLOCK_Y  threads of a block along a column of C

extern "C" __global__ void gemm(const float* A, const float* B, float* C, int M, int N, int K) {
    const int row = blockIdx.y * BLOCK_Y + threadIdx.y;
    const int col = blockIdx.x * BLOCK_X + threadIdx.x;
    if (row >= M || col >= N) return;

    float acc = 0.0f;
    for (int k = 0; k < K; ++k) {
        acc += A[row * K + k] * B[k * N + col];
    }
    C[row * N + col] = acc;
}
