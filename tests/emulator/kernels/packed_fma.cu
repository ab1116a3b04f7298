// register_tile.cu with pairs of sums: two multiply-adds at once where the hardware has that (sm_100a).
// 64 threads; M, N multiples of 64 and K of 8.
#include "fma_pair.cuh"

constexpr int BM = 64, BN = 64, BK = 8, TM = 8, TN = 8;
constexpr int THREADS = (BM / TM) * (BN / TN);

__device__ __forceinline__ float4& quad(float& first) { return *reinterpret_cast<float4*>(&first); }
__device__ __forceinline__ const float4& quad(const float& first) {
    return *reinterpret_cast<const float4*>(&first);
}

extern "C" __global__ void __launch_bounds__(THREADS)
gemm(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int M, int N, int K) {
    __shared__ float a_tile[BK][BM];
    __shared__ float b_tile[BK][BN];
    const int tx = threadIdx.x % (BN / TN), ty = threadIdx.x / (BN / TN);
    A += (size_t)blockIdx.y * BM * K;
    B += blockIdx.x * BN;
    C += (size_t)blockIdx.y * BM * N + blockIdx.x * BN;

    float2 acc[TM][TN / 2] = {};
    float a[TM];
    float2 b[TN / 2];
    for (int k0 = 0; k0 < K; k0 += BK) {
        #pragma unroll
        for (int i = threadIdx.x; i < BM * BK / 4; i += THREADS) {
            const int row = i / (BK / 4), k = i % (BK / 4) * 4;
            const float4 v = quad(A[row * K + k0 + k]);
            a_tile[k + 0][row] = v.x;
            a_tile[k + 1][row] = v.y;
            a_tile[k + 2][row] = v.z;
            a_tile[k + 3][row] = v.w;
        }
        #pragma unroll
        for (int i = threadIdx.x; i < BK * BN / 4; i += THREADS) {
            const int k = i / (BN / 4), col = i % (BN / 4) * 4;
            quad(b_tile[k][col]) = quad(B[(k0 + k) * N + col]);
        }
        __syncthreads();
        #pragma unroll
        for (int k = 0; k < BK; ++k) {
            #pragma unroll
            for (int i = 0; i < TM; i += 4) quad(a[i]) = quad(a_tile[k][ty * TM + i]);
            #pragma unroll
            for (int j = 0; j < TN; j += 4) quad(b[j / 2].x) = quad(b_tile[k][tx * TN + j]);
            #pragma unroll
            for (int i = 0; i < TM; ++i)
                #pragma unroll
                for (int j = 0; j < TN / 2; ++j) fma_pair(acc[i][j], a[i], b[j]);
        }
        __syncthreads();
    }
    #pragma unroll
    for (int i = 0; i < TM; ++i)
        #pragma unroll
        for (int j = 0; j < TN; j += 4)
            quad(C[(ty * TM + i) * N + tx * TN + j]) =
                make_float4(acc[i][j / 2].x, acc[i][j / 2].y, acc[i][j / 2 + 1].x, acc[i][j / 2 + 1].y);
}
