// Calibration: a 64 x 64 x 16 tile fed by 16-byte asynchronous copies into two buffers of dynamic
// shared memory. 256 threads, 4 x 4 outputs each; M, N multiples of 64 and K of 16.
// A_PAD widens the rows of the A tile (floats); FAULT plants one: 1 no wait, 2 no closing barrier.
#include <cuda_pipeline_primitives.h>
#ifndef A_PAD
#define A_PAD 4
#endif
#ifndef FAULT
#define FAULT 0
#endif
constexpr int BM = 64, BN = 64, BK = 16, TM = 4, TN = 4;

extern "C" __global__ void __launch_bounds__(256)
gemm(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int M, int N, int K) {
    extern __shared__ float shared[];
    float* a_tiles = shared;                              // [2][BM][BK + A_PAD]
    float* b_tiles = shared + 2 * BM * (BK + A_PAD);      // [2][BK][BN]
    const int tid = threadIdx.x, tx = tid % 16, ty = tid / 16;
    A += (size_t)blockIdx.y * BM * K;
    B += blockIdx.x * BN;
    C += (size_t)blockIdx.y * BM * N + blockIdx.x * BN;
    const int a_row = tid / 4, a_k = tid % 4 * 4, b_k = tid / 16, b_col = tid % 16 * 4;

    auto fetch = [&](int stage, int k0) {
        __pipeline_memcpy_async(&a_tiles[(stage * BM + a_row) * (BK + A_PAD) + a_k],
                                &A[a_row * K + k0 + a_k], 16);
        __pipeline_memcpy_async(&b_tiles[(stage * BK + b_k) * BN + b_col], &B[(k0 + b_k) * N + b_col], 16);
        __pipeline_commit();
    };

    float acc[TM][TN] = {};
    fetch(0, 0);
    int stage = 0;
    for (int k0 = 0; k0 < K; k0 += BK, stage ^= 1) {
        if (k0 + BK < K) {
            fetch(stage ^ 1, k0 + BK);
#if FAULT != 1
            __pipeline_wait_prior(1);
#endif
        } else {
            __pipeline_wait_prior(0);
        }
        __syncthreads();
        #pragma unroll
        for (int k = 0; k < BK; ++k) {
            float a[TM];
            #pragma unroll
            for (int i = 0; i < TM; ++i)
                a[i] = a_tiles[(stage * BM + ty * TM + i) * (BK + A_PAD) + k];  // planted: in flight
            const float4 b = *reinterpret_cast<const float4*>(&b_tiles[(stage * BK + k) * BN + tx * TN]);
            #pragma unroll
            for (int i = 0; i < TM; ++i) {
                acc[i][0] += a[i] * b.x;
                acc[i][1] += a[i] * b.y;
                acc[i][2] += a[i] * b.z;
                acc[i][3] += a[i] * b.w;
            }
        }
#if FAULT != 2
        __syncthreads();
#endif
    }
    #pragma unroll
    for (int i = 0; i < TM; ++i)
        *reinterpret_cast<float4*>(&C[(ty * TM + i) * N + tx * TN]) =
            make_float4(acc[i][0], acc[i][1], acc[i][2], acc[i][3]);
}
