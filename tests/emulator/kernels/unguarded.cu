// A naive product without edge guards: reads and writes outside where the tile does not fit.
extern "C" __global__ void gemm(const float* A, const float* B, float* C, int M, int N, int K) {
    const int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    float acc = 0.0f;
    for (int k = 0; k < K; ++k)
        acc += A[row * K + k] * B[k * N + col];  // planted: reads outside
    C[row * N + col] = acc;  // planted: writes outside
}
