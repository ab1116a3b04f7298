// C = A with what a tensor core cuts off made good, B's first element of it in units of 2^-24 |c|.
#include "truncation.cuh"

extern "C" __global__ void gemm(const float* __restrict__ A, const float* __restrict__ B,
                                float* __restrict__ C, int M, int N, int K) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < M * N) C[i] = with_truncation_made_good(A[i], B[0]);
}
