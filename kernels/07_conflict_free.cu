// 07 Conflict free: a layout of the tiles in which no two lanes wait for one bank.
//
// Idea         Two changes of address, none of work. A thread's TN columns become quads BN / (TN / 4)
//              apart, so that neighbouring threads read neighbouring quads of B; its rows likewise.
//              And the transposed tile of A is laid out so that the lanes of a warp, which hold
//              BK / 4 depths of 128 / BK rows, store into 32 different banks.
// Before       With vector loads, lanes that store different depths of one row meet in a bank: rows
//              of the tile are BM floats long, a multiple of the 32 banks. Quads of B read at
//              a distance of TN floats use every second bank quad.
// Expectation  No bank conflict at all. Two ways to lay out A are swept. Padding (SWIZZLE 0) makes
//              the rows of the tile four floats longer, so that depth 4 starts 16 banks further on:
//              enough for BK = 8 and not for more, since a smaller pad would break the alignment of
//              quads. Swizzling (SWIZZLE 1) exchanges the rows within a depth by an exclusive or,
//              fits every BK and takes no memory, but costs an instruction per address.
// Measured     NVIDIA H200, N = 4096, TFLOPS: padded, BK 8 32.1, BK 16 33.0; swizzled, BK 16 33.2,
//              1.13 times rung 6 (results/published/nvidia-h200). The conflicts are gone.
//
// BM       rows of C per block
// BN       columns of C per block
// BK       depth of a tile
// TM       rows of C per thread
// TN       columns of C per thread
// SWIZZLE  0: padded rows of the tile of A; 1: rows exchanged by an exclusive or

#include "quad.cuh"

constexpr int THREADS = (BM / TM) * (BN / TN);
constexpr int THREADS_N = BN / TN;
constexpr int THREADS_M = BM / TM;
constexpr int A_PITCH = SWIZZLE ? BM : BM + 4;

// Where row `row` of A lies in the tile's line of depth k. Quads stay whole: the exclusive or changes
// multiples of four.
__device__ __forceinline__ int place(int k, int row) {
    return SWIZZLE ? row ^ (k / 4 * (128 / BK) & 31) : row;
}

extern "C" __global__ void __launch_bounds__(THREADS)
gemm(const float* A, const float* B, float* C, int M, int N, int K) {
    __shared__ __align__(16) float a_tile[BK][A_PITCH];  // transposed
    __shared__ __align__(16) float b_tile[BK][BN];

    const int block_row = blockIdx.y * BM;
    const int block_col = blockIdx.x * BN;
    const int quad_row = threadIdx.x / THREADS_N * 4;  // of the thread's first quad of rows
    const int quad_col = threadIdx.x % THREADS_N * 4;

    float acc[TM][TN] = {};
    for (int k0 = 0; k0 < K; k0 += BK) {
        for (int i = threadIdx.x; i < BM * BK / 4; i += THREADS) {
            const int row = i / (BK / 4), k = i % (BK / 4) * 4;
            const float4 quad = load_quad(A, M, K, block_row + row, k0 + k);
            const int column = place(k, row);  // the same for the four depths of a quad
            a_tile[k + 0][column] = quad.x;
            a_tile[k + 1][column] = quad.y;
            a_tile[k + 2][column] = quad.z;
            a_tile[k + 3][column] = quad.w;
        }
        for (int i = threadIdx.x; i < BK * BN / 4; i += THREADS) {
            const int k = i / (BN / 4), col = i % (BN / 4) * 4;
            *reinterpret_cast<float4*>(&b_tile[k][col]) =
                load_quad(B, K, N, k0 + k, block_col + col);
        }
        __syncthreads();  // the tiles are complete

#pragma unroll
        for (int k = 0; k < BK; ++k) {
            float a[TM], b[TN];
#pragma unroll
            for (int i = 0; i < TM; i += 4) {
                const int row = quad_row + i * THREADS_M;
                unpack(&a[i], *reinterpret_cast<const float4*>(&a_tile[k][place(k, row)]));
            }
#pragma unroll
            for (int j = 0; j < TN; j += 4) {
                const int col = quad_col + j * THREADS_N;
                unpack(&b[j], *reinterpret_cast<const float4*>(&b_tile[k][col]));
            }
#pragma unroll
            for (int i = 0; i < TM; ++i) {
#pragma unroll
                for (int j = 0; j < TN; ++j) acc[i][j] += a[i] * b[j];
            }
        }
        __syncthreads();  // nobody reads the tiles any more
    }

#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const int row = block_row + quad_row + i / 4 * 4 * THREADS_M + i % 4;
#pragma unroll
        for (int j = 0; j < TN; j += 4) {
            store_quad(C, M, N, row, block_col + quad_col + j * THREADS_N,
                       make_float4(acc[i][j], acc[i][j + 1], acc[i][j + 2], acc[i][j + 3]));
        }
    }
}
