// Two kernels of one file, which are launched one after the other: T = A transposed, then C = A B.
constexpr int SIDE = 16;

extern "C" __global__ void transpose_a(const float* A, float* T, int M, int K) {
    __shared__ float turned[SIDE][SIDE + 1];
    const int row = blockIdx.y * SIDE + threadIdx.y, column = blockIdx.x * SIDE + threadIdx.x;
    if (row < M && column < K) turned[threadIdx.x][threadIdx.y] = A[row * K + column];
    __syncthreads();
    const int k = blockIdx.x * SIDE + threadIdx.y, m = blockIdx.y * SIDE + threadIdx.x;
    if (k < K && m < M) T[k * M + m] = turned[threadIdx.y][threadIdx.x];
}

extern "C" __global__ void gemm(const float* T, const float* B, float* C, int M, int N, int K) {
    __shared__ float b_row[SIDE];
    const int row = blockIdx.y * SIDE + threadIdx.y, column = blockIdx.x * SIDE + threadIdx.x;
    float sum = 0.0f;
    for (int k = 0; k < K; ++k) {
        __syncthreads();
        if (threadIdx.y == 0 && column < N) b_row[threadIdx.x] = B[k * N + column];
        __syncthreads();
        if (row < M && column < N) sum += T[k * M + row] * b_row[threadIdx.x];
    }
    if (row < M && column < N) C[row * N + column] = sum;
}
