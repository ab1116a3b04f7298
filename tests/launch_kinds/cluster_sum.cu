// A kernel for the tests of the launch kind `cluster`: the blocks of a cluster share the K of one tile.
//
// SPLIT  blocks of a cluster, along z

#include "cluster.cuh"

extern "C" __global__ void gemm(const float* A, const float* B, float* C, int M, int N, int K) {
    __shared__ float4 partial[16][4];  // this block's part of a 16 x 16 tile of C
    const int row = blockIdx.y * 16 + threadIdx.y;
    const int col = blockIdx.x * 16 + threadIdx.x;

    const int depth = (K + SPLIT - 1) / SPLIT;
    const int first = blockIdx.z * depth, end = min(K, first + depth);
    float acc = 0.0f;
    if (row < M && col < N) {
        for (int k = first; k < end; ++k) acc += A[row * K + k] * B[k * N + col];
    }
    reinterpret_cast<float*>(partial[threadIdx.y])[threadIdx.x] = acc;
    cluster_sync();  // all parts are there

    if (cluster_rank() == 0 && threadIdx.x < 4 && row < M) {
        float sum[4] = {};
        for (int rank = 0; rank < SPLIT; ++rank) {
            const float4 part = cluster_load(&partial[threadIdx.y][threadIdx.x], rank);
            sum[0] += part.x;
            sum[1] += part.y;
            sum[2] += part.z;
            sum[3] += part.w;
        }
        for (int i = 0; i < 4; ++i) {
            const int column = blockIdx.x * 16 + 4 * threadIdx.x + i;
            if (column < N) C[row * N + column] = sum[i];
        }
    }
    cluster_sync();  // nobody reads this block's part any more
}
