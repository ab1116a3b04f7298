// 25 FP16 split: the tensor cores' faster half, inside the range that FP16 has.
//
// Idea         FP16 has as many bits of mantissa as TF32 and runs at twice its rate. Two FP16 numbers hold
//              22 to 23 bits of a float, the second scaled by 2^11 (Ootomo & Yokota 2022). A helper, whose
//              time counts, splits A and B once and scales each row of A and column of B to FP16's range.
// Before       Rung 24 is bound by a third of the TF32 rate, and every block splits its tiles anew.
// Expectation  Bound by a third of the FP16 rate, 330 TFLOPS on an H200, and before that by its power. FP16
//              operands may lie by rows or by columns, so C = A B as it stands. Splitting moves both
//              matrices through memory: 6 % of the time at N = 8192, 12 % at 4096, and more below.
//              Big * small and small * big are summed apart from big * big, for their scale. What sums
//              lose is given back on average (rung 23).
// Range        A row of A or column of B fits if all but one of its nonzero elements reach 2^-28 of its
//              largest, which is finite and 2^-112 or more; that one is made good in FP32. The helper
//              looks at every element. A block that needs a line which does not fit computes with FP32's
//              multiply-adds instead: slow, and right.
// Compensate   As in rung 23. The products in FP32 are summed so always: they are slow already.
// Limits       What does not fit FP16's scaled range is computed in FP32, infinities and NaN
//              included; where sums come near the largest float, their order decides which of them
//              overflow.
// Measured     NVIDIA H200, TFLOPS: 153 at N = 2048, 185 at 4096, 197 at 8192, 3.8 times cuBLAS FP32.
//              The root mean square of the error at 4096 is 0.083 units of 2^-24 |A||B|; cuBLAS FP32
//              has 0.40. Compensated it has 100 TFLOPS and 0.041 (results/published/nvidia-h200).
//              Power is the limit: at 8192 the clock falls from 1980 MHz to some 1600.
//
// BM          rows of C per block, 64 for each computing warpgroup
// BN          columns of C per block
// BK          depth of a tile: 128 bytes of FP16, the width of the swizzle
// PART        columns of C that one instruction multiplies
// STAGES      tiles in shared memory
// GROUP       rows of tiles that the order of blocks runs down (rung 11)
// COMPENSATE  1: what FP32 rounds off the sums is kept and added at the end; 0: it is lost

#include "compensated.cuh"
#include "mma.cuh"
#include "pair.cuh"
#include "prepare_f16.cuh"
#include "registers.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

static_assert(BK == 64, "a row of A is 128 bytes of FP16, the width of the swizzle");
constexpr int PAIRS = BK / 2;
constexpr int STEPS = BK / 16;  // products along k in a tile
// What is cut off a partial sum of so many steps, as measured on an H200 (truncation.cuh).
static __device__ __forceinline__ float loss_of(int steps) {
    return steps == 1 ? 0.72f : steps == 2 ? 1.335f : steps == 3 ? 2.15f : 3.06f;
}
constexpr int GROUPS = BM / 64;  // computing warpgroups
constexpr int COMPUTING = 128 * GROUPS, THREADS = COMPUTING + 128;
constexpr int PARTS = BN / PART;
static_assert(BN % PART == 0 && PART % 64 == 0, "an instruction reads whole boxes of B");

// A launch gives every thread the same share of the registers; the warpgroup that copies keeps 24 of its
// own and the others divide the rest (rung 12). A raise beyond that would wait for ever.
constexpr int KEPT = 24;
constexpr int AT_LAUNCH = 65536 / THREADS / 8 * 8;
constexpr int SPARE = (AT_LAUNCH - KEPT) / GROUPS;
constexpr int RAISED = AT_LAUNCH + SPARE < 240 ? (AT_LAUNCH + SPARE) / 8 * 8 : 240;
static_assert(RAISED * COMPUTING + KEPT * 128 <= AT_LAUNCH * THREADS, "no more than the launch gives");

struct Stage {  // big, then small; swizzled, as TMA, ldmatrix and wgmma agree
    unsigned a[2][BM][PAIRS];
    unsigned b[2][BN / 64][BK][32];  // boxes of 64 columns
};
struct Memory {
    Stage stages[STAGES];
    Mbarrier full[STAGES];   // the bytes of a stage have come
    Mbarrier empty[STAGES];  // every computing warp has done with it
    int a_shifts[BM], b_shifts[BN];  // of the lines
};
extern __shared__ __align__(1024) unsigned char memory[];

// The tile of C in FP32 arithmetic, for lines that do not fit: 64 x 64 elements at a time, 4 x 4 for each
// of 256 threads, from tiles in shared memory (rung 5), whose sums are added up compensated.
constexpr int SLOW = 64, SLOW_K = 16;
struct SlowTiles {
    float a[SLOW_K][SLOW + 4];
    float b[SLOW_K][SLOW];
};

__device__ void multiply_in_fp32(SlowTiles& tiles, const float* A, const float* B, float* C, int M, int N,
                                 int K, int block_row, int block_col) {
    const int thread_row = threadIdx.x / 16 * 4, thread_col = threadIdx.x % 16 * 4;
    for (int row = block_row; row < block_row + BM; row += SLOW) {
        for (int col = block_col; col < block_col + BN; col += SLOW) {
            Sum<true> acc[4][4] = {};
            for (int k0 = 0; k0 < K; k0 += SLOW_K) {
                for (int i = threadIdx.x; i < SLOW * SLOW_K; i += THREADS) {
                    const int m = row + i / SLOW_K, a_k = k0 + i % SLOW_K;
                    const int n = col + i % SLOW, b_k = k0 + i / SLOW;
                    const bool a_inside = m < M && a_k < K, b_inside = n < N && b_k < K;
                    tiles.a[i % SLOW_K][i / SLOW_K] = a_inside ? A[static_cast<size_t>(m) * K + a_k] : 0.0f;
                    tiles.b[i / SLOW][i % SLOW] = b_inside ? B[static_cast<size_t>(b_k) * N + n] : 0.0f;
                }
                __syncthreads();
                if (threadIdx.x < 256) {
                    float part[4][4] = {};
#pragma unroll
                    for (int k = 0; k < SLOW_K; ++k) {
                        float a[4], b[4];
                        unpack(a, *reinterpret_cast<const float4*>(&tiles.a[k][thread_row]));
                        unpack(b, *reinterpret_cast<const float4*>(&tiles.b[k][thread_col]));
#pragma unroll
                        for (int i = 0; i < 4; ++i) {
#pragma unroll
                            for (int j = 0; j < 4; ++j) part[i][j] += a[i] * b[j];
                        }
                    }
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
#pragma unroll
                        for (int j = 0; j < 4; ++j) acc[i][j].add(part[i][j]);
                    }
                }
                __syncthreads();
            }
            if (threadIdx.x < 256) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    store_quad(C, M, N, row + thread_row + i, col + thread_col,
                               make_float4(acc[i][0].total(), acc[i][1].total(), acc[i][2].total(),
                                           acc[i][3].total()));
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemm(const __grid_constant__ TensorMap a_tiles, const __grid_constant__ TensorMap b_tiles, float* C,
     const float* A, const float* B, const Line* a_lines, const Line* b_lines, int M, int N, int K) {
    Memory& shared = *reinterpret_cast<Memory*>(memory);
    const int tiles_m = (M + BM - 1) / BM, tiles_n = (N + BN - 1) / BN;
    const int band = blockIdx.x / (GROUP * tiles_n), in_band = blockIdx.x % (GROUP * tiles_n);
    const int band_height = min(GROUP, tiles_m - band * GROUP);
    const int block_row = (band * GROUP + in_band % band_height) * BM;
    const int block_col = in_band / band_height * BN;
    const int depth = (K + BK - 1) / BK;  // tiles along k
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    bool unfit = false, misfit = false;
    for (int i = threadIdx.x; i < BM + BN; i += THREADS) {
        const int row = block_row + i, col = block_col + i - BM;
        Line line{0, -1, 0.0f, 0};
        if (i < BM ? row < M : col < N) line = i < BM ? a_lines[row] : b_lines[col];
        (i < BM ? shared.a_shifts[i] : shared.b_shifts[i - BM]) = line.shift;
        unfit |= line.shift == UNFIT;
        misfit |= line.at >= 0;
    }
    if (threadIdx.x == 0) {
        tma_prefetch_descriptor(&a_tiles);
        tma_prefetch_descriptor(&b_tiles);
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&shared.full[stage], 1);
            mbarrier_init(&shared.empty[stage], COMPUTING / 32);
        }
        mbarrier_init_fence();
    }
    const bool misfits = __syncthreads_or(misfit);
    if (__syncthreads_or(unfit)) {
        multiply_in_fp32(*reinterpret_cast<SlowTiles*>(memory), A, B, C, M, N, K, block_row, block_col);
        return;
    }

    if (warp >= COMPUTING / 32) {
        lower_register_limit<KEPT>();
        if (threadIdx.x == COMPUTING) {
#pragma unroll 1
            for (int tile = 0; tile < depth; ++tile) {
                const int stage = tile % STAGES, turn = tile / STAGES;
                Stage& to = shared.stages[stage];
                Mbarrier* const full = &shared.full[stage];
                if (turn > 0) mbarrier_wait(&shared.empty[stage], (turn - 1) % 2);
                mbarrier_arrive_expect_tx(full, sizeof(Stage));
#pragma unroll
                for (int half = 0; half < 2; ++half) {  // small lies below big
                    tma_load_2d(to.a[half], &a_tiles, tile * PAIRS, half * M + block_row, full);
#pragma unroll
                    for (int box = 0; box < BN / 64; ++box) {
                        tma_load_2d(to.b[half][box], &b_tiles, block_col / 2 + 32 * box, half * K + tile * BK,
                                    full);
                    }
                }
            }
        }
        return;
    }
    raise_register_limit<RAISED>();

    const int g = lane / 4, t = lane % 4;
    // Lane i names row i % 16 of a 16 x 16 tile of A, and its left or right half (mma.cuh).
    const int a_row = 16 * warp + lane % 16;
    Sum<COMPENSATE> acc[PARTS][PART / 2] = {};
    float part_sum[PART / 2];
    int stage = 0;
    unsigned parity = 0;
#pragma unroll 1
    for (int tile = 0; tile < depth; ++tile) {
        mbarrier_wait(&shared.full[stage], parity);
        const Stage& from = shared.stages[stage];
        unsigned a_big[STEPS][4], a_small[STEPS][4];
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const unsigned place = swizzled<SWIZZLE_128B>(128 * a_row + 16 * (lane / 16) + 32 * step) / 4;
            ldmatrix(a_big[step], &from.a[0][0][0] + place);
            ldmatrix(a_small[step], &from.a[1][0][0] + place);
        }
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            keep_registers(a_big[step]);
            keep_registers(a_small[step]);
        }

#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            const WgmmaDescriptor b_big =
                wgmma_descriptor<SWIZZLE_128B>(from.b[0][part * PART / 64], sizeof(from.b[0][0]), 1024);
            const WgmmaDescriptor b_small =
                wgmma_descriptor<SWIZZLE_128B>(from.b[1][part * PART / 64], sizeof(from.b[0][0]), 1024);
            wgmma_fence();
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {  // 16 rows of B are 2048 bytes
                wgmma_f16<true>(part_sum, a_small[step], advanced(b_big, 2048 * step), step > 0);
                wgmma_f16<true>(part_sum, a_big[step], advanced(b_small, 2048 * step), true);
            }
            wgmma_commit();
            wgmma_wait<0>();
#pragma unroll
            for (int e = 0; e < PART / 2; ++e) acc[part][e].add(part_sum[e] * (1.0f / F16_SMALL_SCALE));

            wgmma_fence();
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                wgmma_f16<true>(part_sum, a_big[step], advanced(b_big, 2048 * step), step > 0);
            }
            wgmma_commit();
            wgmma_wait<0>();
            if (part == PARTS - 1) {
                __syncwarp();
                if (lane == 0) mbarrier_arrive(&shared.empty[stage]);
            }
#pragma unroll
            for (int e = 0; e < PART / 2; ++e) acc[part][e].add(part_sum[e]);
        }
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }

    const float loss = mean_loss(loss_of, (K + 15) / 16, STEPS);
    // Back to scale by two powers of two, for one alone may be no float.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = 16 * warp + g + 8 * half;
        const int row_shift = shared.a_shifts[row];
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
#pragma unroll
            for (int j = 0; j < PART / 8; ++j) {
                const int col = part * PART + 8 * j + 2 * t;
                float value[2];
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int shift = row_shift + shared.b_shifts[col + e];
                    const float sum = acc[part][4 * j + 2 * half + e].total(loss);
                    value[e] = sum * power_of_two(-(shift / 2)) * power_of_two(shift / 2 - shift);
                }
                store_pair(C, M, N, block_row + row, block_col + col, value[0], value[1]);
            }
        }
    }
    if (!misfits) return;

    // Each thread adds the products of misfits to its own elements: those of the row's with all of B, those
    // of the column's with all of A but the row's, whose product is there already.
#pragma unroll 1
    for (int i = 0; i < BN / 2; ++i) {
        const int row = block_row + 16 * warp + g + 8 * (i % 2);
        const int col = block_col + i / 4 * 8 + 2 * t + i / 2 % 2;
        if (row >= M || col >= N) continue;
        const Line of_row = a_lines[row], of_column = b_lines[col];
        float& c = C[static_cast<size_t>(row) * N + col];
        if (of_row.at >= 0) c += of_row.misfit * B[static_cast<size_t>(of_row.at) * N + col];
        if (of_column.at >= 0 && of_column.at != of_row.at) {
            c += A[static_cast<size_t>(row) * K + of_column.at] * of_column.misfit;
        }
    }
}
