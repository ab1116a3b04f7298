// A warp computes one row by 32 columns; A is read once per 32 k and broadcast by shuffles.
extern "C" __global__ void gemm(const float* A, const float* B, float* C, int M, int N, int K) {
    const int lane = threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y, col = blockIdx.x * 32 + lane;
    if (row >= M) return;
    float acc = 0.0f;
    for (int k0 = 0; k0 < K; k0 += 32) {
        const float mine = k0 + lane < K ? A[row * K + k0 + lane] : 0.0f;
        #pragma unroll
        for (int k = 0; k < 32; ++k) {
            const float a = __shfl_sync(0xffffffffu, mine, k);
            if (col < N && k0 + k < K) acc += a * B[(k0 + k) * N + col];
        }
    }
    if (col < N) C[row * N + col] = acc;
}
