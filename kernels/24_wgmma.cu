// 24 WGMMA: whole warpgroups multiply from shared memory, while another splits.
//
// Idea         Hopper's wgmma multiplies 64 x k by k x PART elements for a warpgroup and runs on by
//              itself. TMA brings the tiles, a warpgroup of its own splits A, and two others multiply:
//              while one adds its partial sums and splits its next B, the products of the other keep
//              the tensor cores busy. A block stays for several tiles of C, as in rung 14: while one is
//              stored, the next is copied and split.
// Before       mma.sync, rung 23's instruction, reaches little more than half of Hopper's tensor cores,
//              and every warp must read and split both operands for itself.
// Expectation  The instruction wants its second operand with neighbours along k, in shared memory: A
//              lies so, B does not. So this computes C^T = B^T A^T. B^T comes from registers, where it
//              is split at hand, and no transposed copy is needed. A is read as it is, for the tensor
//              core ignores the bits that TF32 has not: that is its big part. Only the small part has
//              to be written, once for a block. Shared memory gives PART * 32 bytes for each product;
//              that is half of what it can. The bound is a third of the TF32 rate, 165 TFLOPS on an
//              H200, and its power. Sums are promoted every BK, and what they lose until then is
//              given back on average (rung 23).
// Limits       An infinity or NaN makes the elements of C that it enters infinite or NaN, but not
//              always the one that FP32 gives; magnitudes from 0x1.ffep127 on may count as
//              infinite, those below 2^-112 keep an error of up to 2^-136; where sums come near the
//              largest float, their order decides which of them overflow.
// Measured     NVIDIA H200, TFLOPS: 71 at N = 1024, 119 at 2048, 122 at 4096, 124 at 8192; cuBLAS FP32
//              35.1, 49.4, 51.2 and 51.1 (results/published/nvidia-h200). The root mean square of the
//              error at 4096 is 0.084 units of 2^-24 |A||B|; cuBLAS FP32 has 0.40. Power is the limit
//              of the large tile: from 2048 on the clock falls from 1980 MHz to some 1700. With one
//              tile for each block the small tile had 85 at 1024 (another H200).
//
// BM       rows of C per block
// BN       columns of C per block, 64 for each computing warpgroup
// BK       depth of a tile: 128 bytes, the width of the swizzle
// PART     rows of C that one instruction multiplies
// STAGES   tiles of A and B in shared memory
// SMALLS   tiles of A's small part in shared memory
// GROUP    rows of tiles that the order of tiles runs down (rung 11)
// WORKERS  blocks of the grid at most, one for each multiprocessor (H200: 132); each takes several tiles

#include "pair.cuh"
#include "prepare.cuh"
#include "registers.cuh"
#include "split_tf32.cuh"
#include "tma.cuh"
#include "truncation.cuh"
#include "wgmma.cuh"

static_assert(BK == 32, "a row of A is 128 bytes, the width of the swizzle");
constexpr int GROUPS = BN / 64;  // computing warpgroups
constexpr int COMPUTING = 128 * GROUPS, THREADS = COMPUTING + 128;
constexpr int PARTS = BM / PART;
constexpr int STEPS = BK / 8;  // products along k in a tile
constexpr float LOSS = 1.57f;  // of partial sums of a tile's depth, as measured on an H200 (truncation.cuh)
static_assert(BM % PART == 0, "whole parts");
static_assert(SMALLS <= STAGES, "a tile is split after it has come");

// A launch gives every thread the same share of the registers; the warpgroup that splits keeps 40 of its
// own and the others divide the rest (rung 12). A raise beyond that would wait for ever.
constexpr int KEPT = 40;
constexpr int AT_LAUNCH = 65536 / THREADS / 8 * 8;
constexpr int SPARE = (AT_LAUNCH - KEPT) / GROUPS;
constexpr int RAISED = AT_LAUNCH + SPARE < 240 ? (AT_LAUNCH + SPARE) / 8 * 8 : 240;
static_assert(RAISED * COMPUTING + KEPT * 128 <= AT_LAUNCH * THREADS, "no more than the launch gives");

struct Memory {
    float a[STAGES][BM][BK];             // swizzled, as TMA and wgmma agree
    float a_small[SMALLS][BM][BK];       // the same places
    float b[STAGES][BN / 32][BK][32];    // boxes of 32 columns, swizzled too
    Mbarrier full[STAGES];   // the bytes of a tile have come
    Mbarrier split[SMALLS];  // its small part has been written
    Mbarrier empty[STAGES];  // every computing warp has done with both
};
extern __shared__ __align__(1024) unsigned char memory[];

extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemm(const __grid_constant__ TensorMap a_tiles, const __grid_constant__ TensorMap b_tiles, float* C,
     int M, int N, int K) {
    Memory& shared = *reinterpret_cast<Memory*>(memory);
    if (threadIdx.x == 0) {
        tma_prefetch_descriptor(&a_tiles);
        tma_prefetch_descriptor(&b_tiles);
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&shared.full[stage], 1);
            mbarrier_init(&shared.empty[stage], COMPUTING / 32);
        }
        for (int small = 0; small < SMALLS; ++small) mbarrier_init(&shared.split[small], 4);
        mbarrier_init_fence();
    }
    __syncthreads();

    const int tiles_m = (M + BM - 1) / BM, tiles_n = (N + BN - 1) / BN;
    const int depth = (K + BK - 1) / BK;  // tiles along k
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // A block's tiles of C follow each other WORKERS apart, and the stages run on through all of them: while
    // the sums of one are stored, the next one's tiles are copied and split already.
    const int shares = (tiles_m * tiles_n - blockIdx.x + gridDim.x - 1) / gridDim.x;
    auto place = [&](int share, int& block_row, int& block_col) {
        const int index = blockIdx.x + share * gridDim.x;
        const int band = index / (GROUP * tiles_n), in_band = index % (GROUP * tiles_n);
        const int band_height = min(GROUP, tiles_m - band * GROUP);
        block_row = (band * GROUP + in_band % band_height) * BM;
        block_col = in_band / band_height * BN;
    };

    if (warp >= COMPUTING / 32) {
        lower_register_limit<KEPT>();
        const int thread = threadIdx.x - COMPUTING;
        int block_row, block_col;
        auto start_copies = [&](int turn) {
            const int stage = turn % STAGES, tile = turn % depth;
            if (tile == 0) place(turn / depth, block_row, block_col);
            mbarrier_arrive_expect_tx(&shared.full[stage], 4 * BK * (BM + BN));
            tma_load_2d(shared.a[stage], &a_tiles, tile * BK, block_row, &shared.full[stage]);
#pragma unroll
            for (int box = 0; box < BN / 32; ++box) {
                tma_load_2d(shared.b[stage][box], &b_tiles, block_col + 32 * box, tile * BK,
                            &shared.full[stage]);
            }
        };
        const int turns = shares * depth;
        if (thread == 0) {
            for (int turn = 0; turn < STAGES - SMALLS && turn < turns; ++turn) start_copies(turn);
        }
#pragma unroll 1
        for (int turn = 0; turn < turns; ++turn) {
            // A tile that is done with leaves its stage and the room of its small part.
            const int done = turn - SMALLS;
            if (done >= 0) mbarrier_wait(&shared.empty[done % STAGES], done / STAGES % 2);
            if (thread == 0 && done + STAGES < turns) start_copies(done + STAGES);
            __syncwarp();
            const int stage = turn % STAGES, small = turn % SMALLS;
            mbarrier_wait(&shared.full[stage], turn / STAGES % 2);
            const float4* const from = reinterpret_cast<const float4*>(shared.a[stage]) + thread;
            float4* const to = reinterpret_cast<float4*>(shared.a_small[small]) + thread;
#pragma unroll 1
            for (int i = 0; i < BM * BK / 4; i += 4 * 128) {
                float4 x[4];  // four loads under way
#pragma unroll
                for (int j = 0; j < 4; ++j) x[j] = from[i + 128 * j];
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    to[i + 128 * j] = make_float4(tf32_remainder(x[j].x), tf32_remainder(x[j].y),
                                                  tf32_remainder(x[j].z), tf32_remainder(x[j].w));
                }
            }
            fence_proxy_async();  // wgmma reads what threads have written
            __syncwarp();
            if (lane == 0) mbarrier_arrive(&shared.split[small]);
        }
        return;
    }
    raise_register_limit<RAISED>();

    // Which column of C a row of B^T stands for is free. A thread's two rows are neighbouring columns,
    // to be read and stored as pairs; the eight lanes of a group take four chunks of 16 bytes, so that
    // the swizzle spreads the reads of half a warp over all banks.
    const int g = lane / 4, t = lane % 4;
    const int chunk = g / 4 + warp % 2 * 2 + g / 2 % 2 * 4;
    const int box = warp / 2, col = 4 * chunk + g % 2 * 2;
    const unsigned low = swizzled<SWIZZLE_128B>(128 * t + 4 * col) / 4;         // of k = t
    const unsigned high = swizzled<SWIZZLE_128B>(128 * (t + 4) + 4 * col) / 4;  // of k = t + 4

    // What the tensor core cuts off a partial sum grows with the number of its big products.
    const float loss = LOSS * (min((K + 7) / 8, STEPS) + 1) / (STEPS + 1);
    int stage = 0, small = 0;
    unsigned parity = 0, small_parity = 0;
#pragma unroll 1
    for (int share = 0; share < shares; ++share) {
        float acc[PARTS][PART / 2] = {};
        float part_sum[PART / 2];
#pragma unroll 1
        for (int tile = 0; tile < depth; ++tile) {
            mbarrier_wait(&shared.full[stage], parity);
            unsigned b_big[STEPS][4], b_small[STEPS][4];
            const float* const b_tile = &shared.b[stage][box][0][0];
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                const float2 upper = *reinterpret_cast<const float2*>(b_tile + 256 * step + low);
                const float2 lower = *reinterpret_cast<const float2*>(b_tile + 256 * step + high);
                split_tf32(upper.x, b_big[step][0], b_small[step][0]);
                split_tf32(upper.y, b_big[step][1], b_small[step][1]);
                split_tf32(lower.x, b_big[step][2], b_small[step][2]);
                split_tf32(lower.y, b_big[step][3], b_small[step][3]);
            }
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                keep_registers(b_big[step]);
                keep_registers(b_small[step]);
            }
            mbarrier_wait(&shared.split[small], small_parity);

#pragma unroll
            for (int part = 0; part < PARTS; ++part) {
                const WgmmaDescriptor a_big =
                    k_major_descriptor<SWIZZLE_128B>(shared.a[stage][part * PART]);
                const WgmmaDescriptor a_small =
                    k_major_descriptor<SWIZZLE_128B>(shared.a_small[small][part * PART]);
                wgmma_fence();
                // The small products first: while the sum is small, little is cut off.
#pragma unroll
                for (int step = 0; step < STEPS; ++step) {
                    wgmma_tf32(part_sum, b_small[step], advanced(a_big, 32 * step), step > 0);
                    wgmma_tf32(part_sum, b_big[step], advanced(a_small, 32 * step), true);
                }
#pragma unroll
                for (int step = 0; step < STEPS; ++step) {
                    wgmma_tf32(part_sum, b_big[step], advanced(a_big, 32 * step), true);
                }
                wgmma_commit();
                wgmma_wait<0>();
                if (part == PARTS - 1) {
                    __syncwarp();
                    if (lane == 0) mbarrier_arrive(&shared.empty[stage]);
                }
#pragma unroll
                for (int e = 0; e < PART / 2; ++e) acc[part][e] += part_sum[e];
            }
            if (++stage == STAGES) {
                stage = 0;
                parity ^= 1;
            }
            if (++small == SMALLS) {
                small = 0;
                small_parity ^= 1;
            }
        }

        int block_row, block_col;
        place(share, block_row, block_col);
        auto whole = [&](float sum) { return with_truncation_made_good(sum, loss); };
        const int c_col = block_col + 32 * box + col;
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
#pragma unroll
            for (int j = 0; j < PART / 8; ++j) {
                const int row = block_row + part * PART + 8 * j + 2 * t;
                store_pair(C, M, N, row, c_col, whole(acc[part][4 * j]), whole(acc[part][4 * j + 2]));
                store_pair(C, M, N, row + 1, c_col, whole(acc[part][4 * j + 1]),
                           whole(acc[part][4 * j + 3]));
            }
        }
    }
}
