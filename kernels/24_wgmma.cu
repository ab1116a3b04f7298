// 24 WGMMA: whole warpgroups multiply from shared memory, while another splits.
//
// Idea         Hopper's wgmma multiplies 64 x k by k x PART elements for a warpgroup and runs on by
//              itself. TMA brings the tiles, a warpgroup of its own splits A, and two others multiply:
//              while one adds its partial sums and splits its next B, the products of the other keep
//              the tensor cores busy. With F16, the two products that have a small part are FP16's, which
//              has as many bits as TF32 and twice its rate, wherever the range of a tile allows it.
// Before       mma.sync, rung 23's instruction, reaches little more than half of Hopper's tensor cores,
//              and every warp must read and split both operands for itself.
// Expectation  The instruction wants its second operand with neighbours along k, in shared memory: A
//              lies so, B does not. So this computes C^T = B^T A^T. B^T comes from registers, where it
//              is split at hand, and no transposed copy is needed. A's parts are written to shared memory
//              again, once for a block. With F16 its big part in TF32 stays where it is, for a tensor core
//              ignores the bits that TF32 has not. Shared memory gives PART * 32 bytes for each product;
//              that is half of what it can. The bound on an H200 is a third of the TF32 rate, 165 TFLOPS,
//              or with F16 a half, 247, and before that the power. Sums are promoted every BK, and what
//              they lose until then is given back on average (rung 23).
// Range        Helpers, whose time counts, look at every element of A and B. Where all but the zeros of a
//              tile reach 2^-28 of its largest, which lies from 2^-40 to 2^60, a power of two brings it to
//              FP16's range. A tile that does not fit, and the one that it meets, are multiplied in TF32,
//              as without F16.
// Compensate   For products so small that cuBLAS divides k among blocks, whose shorter sums are better
//              than plain ones, sums keep what rounding takes from them (rung 23). PROMOTE 1 is for the
//              smallest: what is cut off a partial sum of one step is little even where one term is
//              much larger than the rest.
// Limits       An infinity or NaN makes the elements of C that it enters infinite or NaN, but not
//              always the one that FP32 gives; magnitudes from 0x1.ffep127 on may count as
//              infinite, those below 2^-112 keep an error of up to 2^-136; where sums come near the
//              largest float, their order decides which of them overflow.
// Measured     NVIDIA H200, TFLOPS: 80.8 at N = 1024 without F16, with it 118 at 2048, 131 at 4096,
//              136 at 8192; cuBLAS FP32 35.7, 49.4, 51.4 and 51.3. The root mean square of the error
//              at 4096 is 0.084 units of 2^-24 |A||B|; cuBLAS FP32 has 0.40. Compensated: 66.8 and
//              0.028 with PROMOTE 4, 37.2 and 0.018 with PROMOTE 1 (results/published/nvidia-h200).
//              Power is the limit of the large tile, whose clock falls from 1980 MHz to some 1750: in
//              another run it had 122 at 4096 without F16 and 131 with it, and in a third 138 where
//              nobody looked at the range. At 2048 the helpers take what F16 gains. Tried in vain:
//              taking turns by barriers, a block for several tiles, TMA that brings A to two blocks at
//              once.
//
// BM          rows of C per block
// BN          columns of C per block, 64 for each computing warpgroup
// BK          depth of a tile: 128 bytes, the width of the swizzle
// PART        rows of C that one instruction multiplies
// STAGES      tiles of A and B in shared memory
// SPLITS      tiles of A in shared memory that have been split
// GROUP       rows of tiles that the order of blocks runs down (rung 11)
// PROMOTE     steps of 8 along k that are summed in the tensor core
// COMPENSATE  1: what FP32 rounds off the sums is kept and added at the end; 0: it is lost
// F16         1: products with a small part in FP16, where a tile's range allows it; 0: all in TF32

#include "compensated.cuh"
#include "pair.cuh"
#include "prepare.cuh"
#include "prepare_shifts.cuh"
#include "registers.cuh"
#include "split_tf32.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

static_assert(BK == 32, "a row of A is 128 bytes, the width of the swizzle");
constexpr int GROUPS = BN / 64;  // computing warpgroups
constexpr int COMPUTING = 128 * GROUPS, THREADS = COMPUTING + 128;
constexpr int PARTS = BM / PART;
constexpr int STEPS = BK / 8, HALF_STEPS = BK / 16;  // products along k in a tile, TF32 and FP16
// What is cut off a partial sum of so many steps, as measured on an H200 (truncation.cuh).
static __device__ __forceinline__ float loss_of(int steps) {
    return steps == 1 ? 0.707f : steps == 2 ? 1.093f : steps == 3 ? 1.53f : F16 ? 2.030f : 2.022f;
}
static_assert(BM % PART == 0, "whole parts");
static_assert(B_TILE_COLUMNS % BN == 0, "a block's columns of B are of one tile");
static_assert(SPLITS <= STAGES, "a tile is split after it has come");
static_assert(STEPS % PROMOTE == 0, "whole partial sums");
static_assert(!F16 || PROMOTE % 2 == 0, "a product in FP16 is two steps deep");

// A launch gives every thread the same share of the registers; the warpgroup that splits keeps 40 of its
// own and the others divide the rest (rung 12). A raise beyond that would wait for ever.
constexpr int KEPT = 40;
constexpr int AT_LAUNCH = 65536 / THREADS / 8 * 8;
constexpr int SPARE = (AT_LAUNCH - KEPT) / GROUPS;
constexpr int RAISED = AT_LAUNCH + SPARE < 240 ? (AT_LAUNCH + SPARE) / 8 * 8 : 240;
static_assert(RAISED * COMPUTING + KEPT * 128 <= AT_LAUNCH * THREADS, "no more than the launch gives");

struct Memory {
    float a[STAGES][BM][BK];           // swizzled, as TMA and wgmma agree
    unsigned a_split[SPLITS][BM][BK];  // the same swizzle; a row is 32 small parts, or in FP16 32 big and 32 small
    float b[STAGES][BN / 32][BK][32];  // boxes of 32 columns, swizzled too
    int2 shifts[SPLITS];     // of A and B, for FP16
    Mbarrier full[STAGES];   // the bytes of a tile have come
    Mbarrier split[SPLITS];  // A has been split
    Mbarrier empty[STAGES];  // every computing warp has done with both
};
extern __shared__ __align__(1024) unsigned char memory[];

// Two floats' parts in FP16, scaled. The big ones are cut off, as the tensor core cuts off what it reads as
// TF32.
__device__ __forceinline__ void split_a(float low, float high, float scale, unsigned& big, unsigned& small) {
    const float low_big = truncate_to_tf32(low), high_big = truncate_to_tf32(high);
    big = pack_f16(low_big * scale, high_big * scale);
    small = pack_f16((low - low_big) * (scale * F16_SMALL_SCALE), (high - high_big) * (scale * F16_SMALL_SCALE));
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemm(const __grid_constant__ TensorMap a_tiles, const __grid_constant__ TensorMap b_tiles, float* C,
     const int* a_shifts, const int* b_shifts, int M, int N, int K) {
    Memory& shared = *reinterpret_cast<Memory*>(memory);
    if (threadIdx.x == 0) {
        tma_prefetch_descriptor(&a_tiles);
        tma_prefetch_descriptor(&b_tiles);
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&shared.full[stage], 1);
            mbarrier_init(&shared.empty[stage], COMPUTING / 32);
        }
        for (int slot = 0; slot < SPLITS; ++slot) mbarrier_init(&shared.split[slot], 4);
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

    if (warp >= COMPUTING / 32) {
        lower_register_limit<KEPT>();
        const int thread = threadIdx.x - COMPUTING;
        auto start_copies = [&](int tile) {
            const int stage = tile % STAGES;
            mbarrier_arrive_expect_tx(&shared.full[stage], 4 * BK * (BM + BN));
            tma_load_2d(shared.a[stage], &a_tiles, tile * BK, block_row, &shared.full[stage]);
#pragma unroll
            for (int box = 0; box < BN / 32; ++box) {
                tma_load_2d(shared.b[stage][box], &b_tiles, block_col + 32 * box, tile * BK,
                            &shared.full[stage]);
            }
        };
        if (thread == 0) {
            for (int tile = 0; tile < STAGES - SPLITS && tile < depth; ++tile) start_copies(tile);
        }

        // The shifts of a tile are asked for while the one before is split.
        const int b_pitch = (N + B_TILE_COLUMNS - 1) / B_TILE_COLUMNS;
        auto shifts_of = [&](int tile) {
            return make_int2(a_shifts[block_row / BM * depth + tile],
                             b_shifts[tile * b_pitch + block_col / B_TILE_COLUMNS]);
        };
        int2 next = make_int2(NO_SHIFT, NO_SHIFT);
        if (F16) next = shifts_of(0);
        // Eight lanes split eight rows, whose chunks of 16 bytes lie in different banks. Of each row a lane
        // takes eight neighbours along k, two chunks, and interleaves them: a thread that multiplies has B's
        // rows k and k + 4 at hand, which TF32's fragment wants, and FP16's wants as neighbours.
        const int eighth = lane % 8, neighbours = lane / 8, row = thread / 32 * 8 + eighth;
        const int low_place = 8 * row + ((2 * neighbours) ^ eighth), high_place = low_place ^ 1;
        const int big_place = 8 * row + (neighbours ^ eighth), small_place = big_place ^ 4;
#pragma unroll 1
        for (int tile = 0; tile < depth; ++tile) {
            // A tile that is done with leaves its stage and the room of its split A.
            const int done = tile - SPLITS;
            if (done >= 0) mbarrier_wait(&shared.empty[done % STAGES], done / STAGES % 2);
            if (thread == 0 && done + STAGES < depth) start_copies(done + STAGES);
            __syncwarp();
            const int stage = tile % STAGES, slot = tile % SPLITS;
            const int2 shifts = next;
            const bool in_f16 = F16 && shifts.x != NO_SHIFT && shifts.y != NO_SHIFT;
            if (F16) {
                if (thread == 0) shared.shifts[slot] = in_f16 ? shifts : make_int2(NO_SHIFT, NO_SHIFT);
                if (tile + 1 < depth) next = shifts_of(tile + 1);
            }
            mbarrier_wait(&shared.full[stage], tile / STAGES % 2);
            float4* const from = reinterpret_cast<float4*>(shared.a[stage]);
            if (in_f16) {
                const float a_scale = power_of_two(shifts.x);
                uint4* const to = reinterpret_cast<uint4*>(shared.a_split[slot]);
#pragma unroll 1
                for (int i = 0; i < 8 * BM; i += 512) {
                    float4 low[2], high[2];  // four loads under way
#pragma unroll
                    for (int j = 0; j < 2; ++j) {
                        low[j] = from[i + 256 * j + low_place];
                        high[j] = from[i + 256 * j + high_place];
                    }
#pragma unroll
                    for (int j = 0; j < 2; ++j) {
                        uint4 big, small;
                        split_a(low[j].x, high[j].x, a_scale, big.x, small.x);
                        split_a(low[j].y, high[j].y, a_scale, big.y, small.y);
                        split_a(low[j].z, high[j].z, a_scale, big.z, small.z);
                        split_a(low[j].w, high[j].w, a_scale, big.w, small.w);
                        to[i + 256 * j + big_place] = big;
                        to[i + 256 * j + small_place] = small;
                    }
                }
            } else {
                // The big part is written too: a rounded one leaves a smaller rest than one that is cut off.
                uint4* const to = reinterpret_cast<uint4*>(shared.a_split[slot]);
#pragma unroll 1
                for (int i = thread; i < BM * BK / 4; i += 4 * 128) {
                    float4 x[4];
#pragma unroll
                    for (int j = 0; j < 4; ++j) x[j] = from[i + 128 * j];
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        uint4 big, small;
                        split_tf32(x[j].x, big.x, small.x);
                        split_tf32(x[j].y, big.y, small.y);
                        split_tf32(x[j].z, big.z, small.z);
                        split_tf32(x[j].w, big.w, small.w);
                        reinterpret_cast<uint4*>(from)[i + 128 * j] = big;
                        to[i + 128 * j] = small;
                    }
                }
            }
            fence_proxy_async();  // wgmma reads what threads have written
            __syncwarp();
            if (lane == 0) mbarrier_arrive(&shared.split[slot]);
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

    Sum<COMPENSATE> acc[PARTS][PART / 2] = {};
    float part_sum[PART / 2];
    int stage = 0, slot = 0;
    unsigned parity = 0, slot_parity = 0;
#pragma unroll 1
    for (int tile = 0; tile < depth; ++tile) {
        mbarrier_wait(&shared.full[stage], parity);
        mbarrier_wait(&shared.split[slot], slot_parity);
        int2 shifts = make_int2(NO_SHIFT, NO_SHIFT);
        if (F16) {  // read by the lane that also says that the tile is done with
            if (lane == 0) shifts = shared.shifts[slot];
            shifts.x = __shfl_sync(0xffffffffu, shifts.x, 0);
            shifts.y = __shfl_sync(0xffffffffu, shifts.y, 0);
        }
        const bool in_f16 = shifts.x != NO_SHIFT;
        float unit = 1.0f;  // of partial sums
        const float* const b_tile = &shared.b[stage][box][0][0];
        auto b_pair = [&](int step, unsigned place) {
            return *reinterpret_cast<const float2*>(b_tile + 256 * step + place);
        };

        unsigned b_big[STEPS][4], b_small[STEPS][4];  // in FP16, small has both parts
        if (in_f16) {
            // Products with a small part are scaled by both shifts and F16_SMALL_SCALE, which is 2^11. So that
            // all three can be added up, B's big part is scaled by as much, in TF32, whose range is wide.
            const int sum_shift = shifts.x + shifts.y + 11;
            const float for_sums = power_of_two(sum_shift), for_f16 = power_of_two(shifts.y);
            const float for_small = power_of_two(-shifts.x);  // from the scale of sums to 2^11 times B's
            unit = power_of_two(-sum_shift);
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                auto split_b = [&](float x, float y, int i) {  // of k = t and k = t + 4
                    const float x_scaled = x * for_sums, y_scaled = y * for_sums;
                    unsigned x_small, y_small;
                    split_tf32(x_scaled, b_big[step][i], x_small);
                    split_tf32(y_scaled, b_big[step][i + 2], y_small);
                    const int half_step = step / 2, j = step % 2 * 2 + i;
                    b_small[half_step][j] = pack_f16(__int_as_float(x_small) * for_small,
                                                     __int_as_float(y_small) * for_small);
                    b_small[HALF_STEPS + half_step][j] = pack_f16(x * for_f16, y * for_f16);
                };
                const float2 upper = b_pair(step, low), lower = b_pair(step, high);
                split_b(upper.x, lower.x, 0);
                split_b(upper.y, lower.y, 1);
            }
        } else {
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                const float2 upper = b_pair(step, low), lower = b_pair(step, high);
                split_tf32(upper.x, b_big[step][0], b_small[step][0]);
                split_tf32(upper.y, b_big[step][1], b_small[step][1]);
                split_tf32(lower.x, b_big[step][2], b_small[step][2]);
                split_tf32(lower.y, b_big[step][3], b_small[step][3]);
            }
        }
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            keep_registers(b_big[step]);
            keep_registers(b_small[step]);
        }

#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            const WgmmaDescriptor a = k_major_descriptor<SWIZZLE_128B>(shared.a[stage][part * PART]);
            const WgmmaDescriptor a_split = k_major_descriptor<SWIZZLE_128B>(shared.a_split[slot][part * PART]);
#pragma unroll
            for (int first = 0; first < STEPS; first += PROMOTE) {
                wgmma_fence();
                // The small products first: while the sum is small, little is cut off.
                if (in_f16) {
#pragma unroll
                    for (int i = first / 2; i < (first + PROMOTE) / 2; ++i) {  // 64 bytes big, 64 small
                        wgmma_f16(part_sum, b_small[i], advanced(a_split, 32 * i), 2 * i > first);
                        wgmma_f16(part_sum, b_small[HALF_STEPS + i], advanced(a_split, 64 + 32 * i), true);
                    }
                } else {
#pragma unroll
                    for (int step = first; step < first + PROMOTE; ++step) {
                        wgmma_tf32(part_sum, b_small[step], advanced(a, 32 * step), step > first);
                        wgmma_tf32(part_sum, b_big[step], advanced(a_split, 32 * step), true);
                    }
                }
#pragma unroll
                for (int step = first; step < first + PROMOTE; ++step) {
                    wgmma_tf32(part_sum, b_big[step], advanced(a, 32 * step), true);
                }
                wgmma_commit();
                wgmma_wait<0>();
                if (part == PARTS - 1 && first == STEPS - PROMOTE) {
                    __syncwarp();
                    if (lane == 0) mbarrier_arrive(&shared.empty[stage]);
                }
#pragma unroll
                for (int e = 0; e < PART / 2; ++e) acc[part][e].add(part_sum[e] * unit);
            }
        }
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
        if (++slot == SPLITS) {
            slot = 0;
            slot_parity ^= 1;
        }
    }

    const float loss = mean_loss(loss_of, (K + 7) / 8, PROMOTE);
    const int c_col = block_col + 32 * box + col;
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
#pragma unroll
        for (int j = 0; j < PART / 8; ++j) {
            const int row = block_row + part * PART + 8 * j + 2 * t;
            const Sum<COMPENSATE>* const sums = &acc[part][4 * j];
            store_pair(C, M, N, row, c_col, sums[0].total(loss), sums[2].total(loss));
            store_pair(C, M, N, row + 1, c_col, sums[1].total(loss), sums[3].total(loss));
        }
    }
}
