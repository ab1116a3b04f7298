// 23 Promoted: sums leave the tensor core before it can spoil them.
//
// Idea         The tensor core does not round its sums, it cuts them off. PROMOTE steps along k are
//              summed from zero there; then the partial sums are added to the thread's own, which are
//              FP32 and rounded as always.
// Before       Rung 22 keeps the inputs' 22 to 23 bits but sums in the tensor core from the first k to
//              the last. Each addition there loses up to one unit of the last place, always towards
//              zero: the error grows with K, and all of it has the same sign.
// Expectation  A partial sum of few steps is small, so what is cut off is small too: the error falls
//              below that of FP32 additions one by one, at every K. What is still cut off has one
//              sign; it is known on average and given back at the end (truncation.cuh). The price is
//              one FP32 addition for every 3 * PROMOTE products of a warp's instruction, and with
//              PROMOTE above 1 a second set of sums in registers.
// Compensate   Plain FP32 sums round at every addition, and where C is small cuBLAS divides k among
//              blocks: its sums are shorter and better. With COMPENSATE what each addition loses is
//              computed and kept (compensated.cuh), six additions for one. What is left is one
//              rounding and what the tensor core cuts off.
// Limits       An infinity or NaN makes the elements of C that it enters infinite or NaN, but not
//              always the one that FP32 gives; magnitudes from 0x1.ffep127 on may count as
//              infinite, those below 2^-112 keep an error of up to 2^-136; where sums come near the
//              largest float, their order decides which of them overflow.
// Measured     NVIDIA H200, N = 4096: 57.8 TFLOPS, 1.12 times cuBLAS FP32. The root mean square of the
//              error falls from 10 to 0.11 units of 2^-24 |A||B|; cuBLAS FP32 has 0.40. On U[0, 1) and
//              K = 4096 the bias is 0.00, where rung 22 has -717 and cuBLAS -0.07. Compensated it has
//              30.5 TFLOPS and 0.018 (results/published/nvidia-h200). In another run PROMOTE 1 had
//              50.0 TFLOPS and PROMOTE 4 63.0, but then a larger error than cuBLAS where magnitudes
//              differ by 2^40 and K is 256 (1.82 against 1.59). So the way to more speed is another
//              instruction.
//
// BM          rows of C per block
// BN          columns of C per block
// BK          depth of a tile
// WM          rows of C per warp
// WN          columns of C per warp
// STAGES      tiles in shared memory
// PROMOTE     steps of 8 along k that are summed in the tensor core
// COMPENSATE  1: what FP32 rounds off the sums is kept and added at the end; 0: it is lost

#include "compensated.cuh"
#include "cp_async.cuh"
#include "mma.cuh"
#include "pair.cuh"
#include "split_tf32.cuh"

constexpr int WARPS_N = BN / WN;
constexpr int THREADS = 32 * (BM / WM) * WARPS_N;
constexpr int TILES_M = WM / 16, TILES_N = WN / 8;  // of a warp, as the instruction sees them
constexpr int STEPS = BK / 8;  // along k in a tile
// What is cut off a partial sum of so many steps, as measured on an H200 (truncation.cuh).
static __device__ __forceinline__ float loss_of(int steps) {
    return steps == 1 ? 0.707f : steps == 2 ? 1.642f : 3.62f + (steps < 4 ? 0.97f : 1.11f) * (steps - 4);
}
static_assert(WM % 16 == 0 && WN % 8 == 0 && STEPS % PROMOTE == 0, "whole instructions and sums");
// Lanes read 8 rows of 16 bytes of A at a time, or 8 columns in 4 rows of B: 32 banks.
constexpr int A_PITCH = BK + 4, B_PITCH = BN + 8;
constexpr int A_FLOATS = BM * A_PITCH, B_FLOATS = BK * B_PITCH;
constexpr int A_QUADS = BK / 4, B_QUADS = BN / 4;  // of a row
constexpr int A_ROWS = THREADS / A_QUADS, B_ROWS = THREADS / B_QUADS;  // in one pass of the copies
static_assert(THREADS % A_QUADS == 0 && BM % A_ROWS == 0, "whole passes of copies of A");
static_assert(THREADS % B_QUADS == 0 && BK % B_ROWS == 0, "whole passes of copies of B");

extern __shared__ __align__(16) float tiles[];  // STAGES tiles of A, then as many of B

extern "C" __global__ void __launch_bounds__(THREADS)
gemm(const float* A, const float* B, float* C, int M, int N, int K) {
    float* const a_tiles = tiles;
    float* const b_tiles = tiles + STAGES * A_FLOATS;

    const int block_row = blockIdx.y * BM;
    const int block_col = blockIdx.x * BN;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warp_row = warp / WARPS_N * WM, warp_col = warp % WARPS_N * WN;
    const int g = lane / 4, t = lane % 4;  // as in mma.cuh

    // A thread copies the same quad of every A_ROWS-th row of A and of every B_ROWS-th row of B.
    const int a_row = threadIdx.x / A_QUADS, a_k = threadIdx.x % A_QUADS * 4;
    const int b_k = threadIdx.x / B_QUADS, b_col = threadIdx.x % B_QUADS * 4;
    const bool whole_block = block_row + BM <= M && block_col + BN <= N && N % 4 == 0 && K % 4 == 0;
    auto copy = [&](int stage, int k0) {
        float* const a_tile = a_tiles + stage * A_FLOATS;
        float* const b_tile = b_tiles + stage * B_FLOATS;
        if (whole_block && k0 + BK <= K) {
            const float* const a_from = A + static_cast<size_t>(block_row + a_row) * K + k0 + a_k;
            const float* const b_from = B + static_cast<size_t>(k0 + b_k) * N + block_col + b_col;
#pragma unroll
            for (int row = 0; row < BM; row += A_ROWS) {
                cp_async<16>(a_tile + (row + a_row) * A_PITCH + a_k,
                             a_from + static_cast<size_t>(row) * K);
            }
#pragma unroll
            for (int k = 0; k < BK; k += B_ROWS) {
                cp_async<16>(b_tile + (k + b_k) * B_PITCH + b_col, b_from + static_cast<size_t>(k) * N);
            }
        } else {  // at an edge, or rows that are not aligned: float by float
            for (int i = threadIdx.x; i < BM * BK; i += THREADS) {
                const int row = block_row + i / BK, k = k0 + i % BK;
                float* const to = a_tile + i / BK * A_PITCH + i % BK;
                if (row < M && k < K) {
                    cp_async<4>(to, A + static_cast<size_t>(row) * K + k);
                } else {
                    *to = 0.0f;
                }
            }
            for (int i = threadIdx.x; i < BK * BN; i += THREADS) {
                const int k = k0 + i / BN, col = block_col + i % BN;
                float* const to = b_tile + i / BN * B_PITCH + i % BN;
                if (k < K && col < N) {
                    cp_async<4>(to, B + static_cast<size_t>(k) * N + col);
                } else {
                    *to = 0.0f;
                }
            }
        }
    };

    const int depth = (K + BK - 1) / BK;  // tiles along k
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (stage < depth) copy(stage, stage * BK);
        cp_async_commit();  // an empty group where there is no tile: the count below stays right
    }

    // Lane i names row i % 16 of a 16 x 8 tile of A, and its left or right half.
    const float* const a_own = a_tiles + (warp_row + lane % 16) * A_PITCH + lane / 16 * 4;
    const float* const b_own = b_tiles + t * B_PITCH + warp_col + g;
    Sum<COMPENSATE> acc[TILES_M][TILES_N][4] = {};
    int reading = 0, writing = STAGES - 1;
#pragma unroll 1
    for (int tile = 0; tile < depth; ++tile) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // the tile is complete for all, and nobody reads the stage to be written
        if (tile + STAGES - 1 < depth) copy(writing, (tile + STAGES - 1) * BK);
        cp_async_commit();

        const float* const a_tile = a_own + reading * A_FLOATS;
        const float* const b_tile = b_own + reading * B_FLOATS;
        float part[TILES_M][TILES_N][4];
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            unsigned b_big[TILES_N][2], b_small[TILES_N][2];
#pragma unroll
            for (int j = 0; j < TILES_N; ++j) {
                const float* const from = b_tile + step * 8 * B_PITCH + j * 8;
                split_tf32(from[0], b_big[j][0], b_small[j][0]);
                split_tf32(from[4 * B_PITCH], b_big[j][1], b_small[j][1]);
            }
#pragma unroll
            for (int i = 0; i < TILES_M; ++i) {
                unsigned a[4], a_big[4], a_small[4];
                ldmatrix(a, a_tile + i * 16 * A_PITCH + step * 8);
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    split_tf32(__int_as_float(static_cast<int>(a[e])), a_big[e], a_small[e]);
                }
                if (step % PROMOTE == 0) {
#pragma unroll
                    for (int j = 0; j < TILES_N; ++j) {
#pragma unroll
                        for (int e = 0; e < 4; ++e) part[i][j][e] = 0.0f;
                    }
                }
                // One kind after the other: products that follow each other add to different sums.
#pragma unroll
                for (int j = 0; j < TILES_N; ++j) mma_tf32(part[i][j], a_small, b_big[j]);
#pragma unroll
                for (int j = 0; j < TILES_N; ++j) mma_tf32(part[i][j], a_big, b_small[j]);
#pragma unroll
                for (int j = 0; j < TILES_N; ++j) mma_tf32(part[i][j], a_big, b_big[j]);
                if (step % PROMOTE == PROMOTE - 1) {
#pragma unroll
                    for (int j = 0; j < TILES_N; ++j) {
#pragma unroll
                        for (int e = 0; e < 4; ++e) acc[i][j][e].add(part[i][j][e]);
                    }
                }
            }
        }
        reading = reading + 1 == STAGES ? 0 : reading + 1;
        writing = writing + 1 == STAGES ? 0 : writing + 1;
    }

    const float loss = mean_loss(loss_of, (K + 7) / 8, PROMOTE);
#pragma unroll
    for (int i = 0; i < TILES_M; ++i) {
        const int row = block_row + warp_row + i * 16 + g;
#pragma unroll
        for (int j = 0; j < TILES_N; ++j) {
            const int col = block_col + warp_col + j * 8 + 2 * t;
            const Sum<COMPENSATE>* const sums = acc[i][j];
            store_pair(C, M, N, row, col, sums[0].total(loss), sums[1].total(loss));
            store_pair(C, M, N, row + 8, col, sums[2].total(loss), sums[3].total(loss));
        }
    }
}
