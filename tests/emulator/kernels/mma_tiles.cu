// C = A B by mma.sync: one warp for a tile of 16 x 8; M, N and K are multiples of 16, 8 and 16.
//
// HALF       0: TF32 operands, which the tensor core truncates; 1: FP16
// ldmatrix_  how fragments come: 0 by loads of their elements, 1 by ldmatrix (for FP16 B as well)
// fault      plants one
#include "mma.cuh"
#include "split_f16.cuh"
constexpr int BM = 16, BN = 8, BK = 16, PAD = HALF ? 8 : 4;
#if HALF
using Element = unsigned short;
#else
using Element = unsigned;
#endif

// Two neighbours of a tile's row. They are written together: halves of one word are not checked apart.
static __device__ __forceinline__ void store_two(Element* to, float low, float high) {
#if HALF
    *reinterpret_cast<unsigned*>(to) = pack_f16(low, high);
#else
    to[0] = static_cast<unsigned>(__float_as_int(low));
    to[1] = static_cast<unsigned>(__float_as_int(high));
#endif
}
static __device__ __forceinline__ unsigned pair(unsigned low, unsigned high) { return low | high << 16; }

extern "C" __global__ void gemm(const float* __restrict__ A, const float* __restrict__ B,
                                float* __restrict__ C, int M, int N, int K, int ldmatrix_, int fault) {
    __shared__ alignas(16) Element a_tile[BM][BK + PAD];
    __shared__ alignas(16) Element b_tile[BK][BN + (HALF ? 0 : PAD)];
    const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
    const int first_row = blockIdx.y * BM, first_column = blockIdx.x * BN;
    float sum[4] = {};
    for (int k0 = 0; k0 < K; k0 += BK) {
        for (int i = 2 * lane; i < BM * BK; i += 64) {
            const float* at = A + (size_t)(first_row + i / BK) * K + k0 + i % BK;
            store_two(&a_tile[i / BK][i % BK], at[0], at[1]);
        }
        for (int i = 2 * lane; i < BK * BN; i += 64) {
            const float* at = B + (size_t)(k0 + i / BN) * N + first_column + i % BN;
            store_two(&b_tile[i / BN][i % BN], at[0], at[1]);
        }
        if (fault != 4) __syncwarp();
        if (fault == 2 && lane == 7) return;
#if HALF
        unsigned a[4], b[2];
        if (ldmatrix_) {
            unsigned both[4];
            ldmatrix(a, &a_tile[lane % 16][lane / 16 * 8 + (fault == 3)]);  // loads A, FP16
            ldmatrix_transposed(both, b_tile[lane % 16]);  // loads B: two matrices, each twice
            b[0] = both[0];
            b[1] = both[1];
        } else {
            for (int i = 0; i < 4; ++i) {
                const Element* at = &a_tile[g + i % 2 * 8][2 * t + i / 2 * 8];
                a[i] = pair(at[0], at[1]);
            }
            for (int i = 0; i < 2; ++i)
                b[i] = pair(b_tile[2 * t + 8 * i][g], b_tile[2 * t + 8 * i + 1][g]);
        }
        mma_f16(sum, a, b);
#else
        for (int k = 0; k < BK; k += 8) {
            unsigned a[4];
            if (ldmatrix_) {
                ldmatrix(a, &a_tile[lane % 16][k + lane / 16 * 4]);  // loads A, TF32
            } else {
                for (int i = 0; i < 4; ++i) a[i] = a_tile[g + i % 2 * 8][k + t + i / 2 * 4];
            }
            const unsigned b[2] = {b_tile[k + t][g], b_tile[k + t + 4][g]};
            if (fault == 1 && lane < 16) {
                mma_tf32(sum, a, b);  // fault 1: half of the lanes
            } else {
                mma_tf32(sum, a, b);  // the product
            }
        }
#endif
        __syncwarp();
    }
    for (int i = 0; i < 4; ++i)
        C[(size_t)(first_row + g + i / 2 * 8) * N + first_column + 2 * t + i % 2] = sum[i];
}
