// A cluster of SPLITS blocks along z shares a 16 x 16 tile of C: each takes a part of k and adds a strip
// of rows over all parts, read from the others' shared memory. 64 threads; M and N multiples of 16, K of
// SPLITS. FAULT plants one.
#include "cluster.cuh"
#ifndef SPLITS
#define SPLITS 4
#endif
#ifndef FAULT
#define FAULT 0
#endif

extern "C" __global__ void __launch_bounds__(64)
gemm(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int M, int N, int K) {
    __shared__ float4 part[16][4];
    const int row = threadIdx.x / 4, quad = threadIdx.x % 4;
    const int first_row = blockIdx.y * 16, first_column = blockIdx.x * 16 + quad * 4;
    const int rank = cluster_rank(), depth = K / SPLITS;

    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int k = rank * depth; k < (rank + 1) * depth; ++k) {
        const float a = A[(first_row + row) * K + k];
        const float4 b = *reinterpret_cast<const float4*>(&B[k * N + first_column]);
        sum.x += a * b.x;
        sum.y += a * b.y;
        sum.z += a * b.z;
        sum.w += a * b.w;
    }
    part[row][quad] = sum;  // writes its part
#if FAULT == 1
    __syncthreads();
#elif FAULT == 5
    if (threadIdx.x == 7) __syncthreads();
    else cluster_sync();  // fault 5: one thread waits elsewhere
#else
    cluster_sync();
#endif

    if (row < 16 / SPLITS) {
        const int strip_row = rank * (16 / SPLITS) + row;
        float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        for (unsigned peer = 0; peer < cluster_size(); ++peer) {
#if FAULT == 4
            const float4 value = cluster_load(&part[strip_row][quad], peer + 1);  // fault 4: no such block
#else
            const float4 value = cluster_load(&part[strip_row][quad], peer);  // reads all parts
#endif
            total.x += value.x;
            total.y += value.y;
            total.z += value.z;
            total.w += value.w;
        }
        *reinterpret_cast<float4*>(&C[(first_row + strip_row) * N + first_column]) = total;
    }
#if FAULT == 3
    part[row][quad] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);  // fault 3: others may still read
#endif
#if FAULT != 2
    cluster_sync();
#endif
}
