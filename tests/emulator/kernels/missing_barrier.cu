// A tiled product whose closing barrier is missing: run warp by warp, the result is still right where
// one warp does all the work of a tile before the next one starts.
constexpr int TILE = 8;
extern "C" __global__ void gemm(const float* A, const float* B, float* C, int M, int N, int K) {
    __shared__ float a_tile[TILE][TILE];
    __shared__ float b_tile[TILE][TILE];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int row = blockIdx.y * TILE + ty, col = blockIdx.x * TILE + tx;
    float acc = 0.0f;
    for (int k0 = 0; k0 < K; k0 += TILE) {
        a_tile[ty][tx] = (row < M && k0 + tx < K) ? A[row * K + k0 + tx] : 0.0f;  // planted: overwrites
        b_tile[ty][tx] = (k0 + ty < K && col < N) ? B[(k0 + ty) * N + col] : 0.0f;
        __syncthreads();
        for (int k = 0; k < TILE; ++k) acc += a_tile[ty][k] * b_tile[k][tx];  // planted: still reads
    }
    if (row < M && col < N) C[row * N + col] = acc;
}
