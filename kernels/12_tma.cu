// 12 TMA: a copy engine fills the tiles, and the warps that compute do nothing else.
//
// Idea         One thread asks the Tensor Memory Accelerator for whole tiles; the engine computes the
//              addresses, pads the edges with zeros and reports to a barrier in shared memory. A
//              warpgroup of its own does the asking (PRODUCER 1) and gives its registers to those
//              that compute. A comes transposed already: a small kernel, whose time counts, has
//              written it so, and both operands are read from shared memory as quads.
// Before       With cp.async every thread computes addresses and issues copies, four bytes of A at a
//              time, and all warps meet at a barrier for each tile. That leaves about nine of ten
//              issue slots to FMAs.
// Expectation  Per k an 8 x 16 tile costs 128 FMAs and 6 shared loads, and nearly nothing else: 95 %
//              of the issue slots. Stages are handed over by two barriers each, "full" and "empty",
//              so that a fast warp may run ahead of a slow one. Large tiles (256 x 128) take all of a
//              multiprocessor's registers and halve the traffic from L2 against 128 x 128.
//              The loop must stay small: UNROLL steps along k are enough, for 32 steps of 8 x 16
//              are 70 KB of instructions.
// Measured     NVIDIA H200, TFLOPS: 51.5 at N = 2048, 53.3 at 4096, 53.9 at 8192; cuBLAS FP32 49.4,
//              51.4 and 51.3 (results/published/nvidia-h200). At 4096 that is 1.13 times rungs 10 and
//              11. What is left to the peak of 66.9: 6 % of the loop are no FMAs; the last of 4 rounds
//              of blocks (16 at 8192) is not full, 3 %; and what a shared load brings has to be
//              written to the registers, where the FMAs write too: beside six loads of 4, 8 or 16
//              bytes, 128 FMAs run at 61.8, 59.6 and 57.0 TFLOPS (kernels/ceilings/fma_loads.cu).
//
// BM        rows of C per block
// BN        columns of C per block
// BK        depth of a tile
// TM        rows of C per thread
// TN        columns of C per thread
// LANES_M   lanes of a warp along the rows of C
// STAGES    tiles in shared memory
// UNROLL    steps along k in one pass of the loop
// GROUP     rows of tiles that the order of blocks runs down (rung 11)
// BLOCKS    blocks per multiprocessor that the registers must allow
// ORDER     of a thread's FMAs: 0 by rows, 1 by columns, 2 by squares of 2 x 2
// AHEAD     1: operands for k + 1 are read before the FMAs of k (rung 9); 0: left to the compiler
// PRODUCER  1: a warpgroup of its own starts the copies; 0: the first thread does so in passing, which
//           needs no exchange of registers (sm_90a and sm_120a have it, plain sm_120 does not)

#include "fma_order.cuh"
#include "prepare.cuh"
#include "quad.cuh"
#include "registers.cuh"
#include "tma.cuh"

constexpr int LANES_N = 32 / LANES_M;
constexpr int WARP_M = LANES_M * TM, WARP_N = LANES_N * TN;  // outputs of a warp
constexpr int WARPS_N = BN / WARP_N;
constexpr int WARPS = BM / WARP_M * WARPS_N;  // that compute
constexpr int PRODUCER_THREADS = PRODUCER ? 128 : 0;
constexpr int THREADS = 32 * WARPS + PRODUCER_THREADS;
constexpr int A_FLOATS = BK * BM, B_FLOATS = BK * BN;
static_assert(BK % UNROLL == 0 && UNROLL % 2 == 0, "the loop makes whole passes of an even length");

// A launch gives every thread the same share of the registers; the producer keeps 24 of its own and
// the others divide the rest.
constexpr int AT_LAUNCH = 65536 / BLOCKS / THREADS / 8 * 8;
constexpr int SPARE = PRODUCER_THREADS * (AT_LAUNCH - 24) / (32 * WARPS);
constexpr int RAISED = AT_LAUNCH + SPARE < 248 ? (AT_LAUNCH + SPARE) / 8 * 8 : 248;

struct Stage {
    float a[BK][BM];  // transposed
    float b[BK][BN];
};
struct Memory {
    Stage stages[STAGES];
    Mbarrier full[STAGES];   // the bytes of a stage have come
    Mbarrier empty[STAGES];  // every computing warp has read it
};
extern __shared__ __align__(1024) unsigned char memory[];

__device__ __forceinline__ void start_copies(Memory& shared, const TensorMap& a_tiles,
                                             const TensorMap& b_tiles, int tile, int block_row,
                                             int block_col) {
    const int stage = tile % STAGES, turn = tile / STAGES;
    if (turn > 0) mbarrier_wait(&shared.empty[stage], (turn - 1) % 2);
    mbarrier_arrive_expect_tx(&shared.full[stage], sizeof(Stage));
    tma_load_2d(shared.stages[stage].a, &a_tiles, block_row, tile * BK, &shared.full[stage]);
    tma_load_2d(shared.stages[stage].b, &b_tiles, block_col, tile * BK, &shared.full[stage]);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
gemm(const __grid_constant__ TensorMap a_tiles, const __grid_constant__ TensorMap b_tiles, float* C,
     int M, int N, int K) {
    Memory& shared = *reinterpret_cast<Memory*>(memory);
    if (threadIdx.x == 0) {
        tma_prefetch_descriptor(&a_tiles);
        tma_prefetch_descriptor(&b_tiles);
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&shared.full[stage], 1);
            mbarrier_init(&shared.empty[stage], WARPS);
        }
        mbarrier_init_fence();
    }
    __syncthreads();

    const int tiles_m = (M + BM - 1) / BM, tiles_n = (N + BN - 1) / BN;
    const int band = blockIdx.x / (GROUP * tiles_n), in_band = blockIdx.x % (GROUP * tiles_n);
    const int band_height = min(GROUP, tiles_m - band * GROUP);
    const int block_row = (band * GROUP + in_band % band_height) * BM;
    const int block_col = in_band / band_height * BN;
    const int depth = (K + BK - 1) / BK;  // tiles along k
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    if (PRODUCER && warp >= WARPS) {
        lower_register_limit<24>();
        if (threadIdx.x == 32 * WARPS) {
#pragma unroll 1
            for (int tile = 0; tile < depth; ++tile) {
                start_copies(shared, a_tiles, b_tiles, tile, block_row, block_col);
            }
        }
        return;
    }
    if (PRODUCER) raise_register_limit<RAISED>();
    // Without a producer the copies run STAGES - 1 tiles ahead: the stage that they fill was read
    // completely before the present one.
    int started = 0;
    if (!PRODUCER && threadIdx.x == 0) {
        for (; started < STAGES - 1 && started < depth; ++started) {
            start_copies(shared, a_tiles, b_tiles, started, block_row, block_col);
        }
    }

    const int lane_m = lane / 2 % LANES_M;
    const int lane_n = lane % 2 + lane / (2 * LANES_M) * 2;
    const int quad_row = warp / WARPS_N * WARP_M + lane_m * 4;
    const int quad_col = warp % WARPS_N * WARP_N + lane_n * 4;

    float a[2][TM], b[2][TN];
    const float *a_from, *b_from;  // the thread's first operands of the step to be read next
    auto enter = [&](int stage) {
        a_from = &shared.stages[stage].a[0][quad_row];
        b_from = &shared.stages[stage].b[0][quad_col];
    };
    auto read = [&](int set, int k) {
#pragma unroll
        for (int i = 0; i < TM; i += 4) {
            unpack(&a[set][i], *reinterpret_cast<const float4*>(a_from + k * BM + i * LANES_M));
        }
#pragma unroll
        for (int j = 0; j < TN; j += 4) {
            unpack(&b[set][j], *reinterpret_cast<const float4*>(b_from + k * BN + j * LANES_N));
        }
    };
    auto release = [&](int stage) {
        __syncwarp();
        if (lane == 0) mbarrier_arrive(&shared.empty[stage]);
    };

    float acc[TM][TN] = {};
    int stage = 0;
    unsigned parity = 0;
    mbarrier_wait(&shared.full[0], 0);
    enter(0);
    if (AHEAD) read(0, 0);
#pragma unroll 1
    for (int tile = 0; tile < depth; ++tile) {
        if (!PRODUCER) {
            if (threadIdx.x == 0 && started < depth) {
                start_copies(shared, a_tiles, b_tiles, started++, block_row, block_col);
            }
            __syncwarp();
        }
#pragma unroll 1
        for (int pass = 0; pass < BK; pass += UNROLL) {
#pragma unroll
            for (int k = 0; k < UNROLL; ++k) {
                const int set = AHEAD ? k % 2 : 0;
                if (!AHEAD) read(0, k);
                if (k + 1 == UNROLL) {
                    a_from += UNROLL * BM;
                    b_from += UNROLL * BN;
                    if (pass + UNROLL == BK) {  // the last operands of this stage have been read
                        release(stage);
                        if (++stage == STAGES) {
                            stage = 0;
                            parity ^= 1;
                        }
                        if (tile + 1 < depth) mbarrier_wait(&shared.full[stage], parity);
                        enter(stage);
                    }
                    if (AHEAD && (pass + UNROLL < BK || tile + 1 < depth)) read(0, 0);
                } else if (AHEAD) {
                    read((k + 1) % 2, k + 1);
                }
#pragma unroll
                for (int step = 0; step < TM * TN; ++step) {
                    const int i = row_of(step), j = column_of(step);
                    acc[i][j] += a[set][i] * b[set][j];
                }
            }
        }
    }

#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const int row = block_row + quad_row + i / 4 * 4 * LANES_M + i % 4;
#pragma unroll
        for (int j = 0; j < TN; j += 4) {
            store_quad(C, M, N, row, block_col + quad_col + j * LANES_N,
                       repacked(acc[i][j], acc[i][j + 1], acc[i][j + 2], acc[i][j + 3], M));
        }
    }
}
