// 13 Split k: several warps, and several blocks, share one tile of C along k.
//
// Idea         A small product has few tiles of C and a long k. Here SPLITS blocks, a cluster, take a
//              part of k each for one tile, and within a block SLICES groups of warps take a part of
//              every tile's depth. At the end each block adds a share of the partial sums of
//              all, read from the others' shared memory, always in the same order: the bits repeat.
//              Where that is not enough, PARTS such clusters share a tile: all but the last leave
//              their sums in global memory, and the last, which started last, adds them in order.
//              A stays as it is, a row of k after the other, and a thread reads quads along k: no
//              helper has to transpose it, which would take longer than such a product.
// Before       All rungs so far give a tile of C to one block: at N = 512 and 128 x 128 that is 16
//              blocks on 132 multiprocessors. Smaller tiles feed more of them but reuse less.
// Expectation  Time falls as blocks fill the multiprocessors, until the sum of the parts costs as
//              much as it saves: SPLITS * BM * BN floats cross between multiprocessors per tile.
//              Atomics or a pass over global memory would cost more, and atomics also the order.
//              Rows of A of 128 bytes would start in one bank; TMA's swizzle spreads their quads.
//              Four small blocks on a multiprocessor hide each other's waits, so two stages do.
// Measured     NVIDIA H200, TFLOPS, the best of three sets: 7.7 at N = 256, 25.7 at 512, 41.1 at 1024;
//              cuBLAS FP32 4.2, 19.9 and 35.7 (results/published/nvidia-h200). At 4096 it has 44.9,
//              0.84 times rung 12: there are tiles enough. With PARTS (rung 15) 64 x 4096 x 4096 takes
//              40.2 and 256 x 256 x 16384 39.8; cuBLAS has 39.1 and 39.5. With copies by cp.async
//              (rung 10) these two had 36.5 and 35.6: a fifth of the instructions were no FMAs, and
//              eight warps were too few. Clusters of 4 and 8 run slower than PARTS.
//
// BM       rows of C per cluster
// BN       columns of C per cluster
// BK       depth of a tile
// TM       rows of C per thread
// TN       columns of C per thread
// LANES_M  lanes of a warp along the rows of C
// STAGES   tiles in shared memory
// SLICES   groups of warps of a block that share a tile's depth
// SPLITS   blocks of a cluster, each with its part of k
// PARTS    clusters that share a tile, each with its part of k

#include "cluster.cuh"
#include "flag.cuh"
#include "prepare.cuh"
#include "quad.cuh"
#include "swizzle.cuh"
#include "tma.cuh"

constexpr int LANES_N = 32 / LANES_M;
constexpr int WARP_M = LANES_M * TM, WARP_N = LANES_N * TN;  // outputs of a warp
constexpr int WARPS_N = BN / WARP_N;
constexpr int WARPS = BM / WARP_M * WARPS_N;  // of one slice
constexpr int SLICE_THREADS = 32 * WARPS, THREADS = SLICE_THREADS * SLICES;
constexpr int WIDTH = 32;  // columns of A in a box: 128 bytes, the width of the swizzle
constexpr int DEPTH = BK / SLICES;  // of a slice
constexpr int QUADS = TM * TN / 4;  // of C per thread
constexpr int SHARE = BM * BN / 4 / SPLITS;  // quads of C that each block adds and stores
static_assert(BK % WIDTH == 0 && WARP_M % 8 == 0, "whole boxes of A, and warps start at whole swizzles");
static_assert(DEPTH % 4 == 0 && BM * BN % (4 * SPLITS) == 0, "slices of quads, and equal shares");
static_assert(PARTS <= 32, "a lane waits for each of the other parts");

struct Stage {
    float a[BK / WIDTH][BM][WIDTH];  // swizzled
    float b[BK][BN];
};
struct Memory {
    union {
        Stage stages[STAGES];
        float4 partial[SLICES][QUADS][SLICE_THREADS];  // of C, at the end
    };
    Mbarrier full[STAGES];   // the bytes of a stage have come
    Mbarrier empty[STAGES];  // every warp has read it
};
extern __shared__ __align__(1024) unsigned char memory[];

// What clusters leave for the one that has the last part of their tile: for each tile and block of a
// cluster PARTS - 1 shares of C, and a flag for every warp. Zero before the first launch.
struct Scratch {
    float4* shares;
    unsigned* left;
    __device__ Scratch(float* memory, int rank) {
        const size_t tiles = static_cast<size_t>(gridDim.x) * gridDim.y;
        const size_t tile = static_cast<size_t>(blockIdx.y) * gridDim.x + blockIdx.x;
        const size_t first = (tile * SPLITS + rank) * (PARTS - 1);
        shares = reinterpret_cast<float4*>(memory) + first * SHARE;
        left = reinterpret_cast<unsigned*>(memory + tiles * (PARTS - 1) * BM * BN) + first * (THREADS / 32);
    }
};

// Where a thread of a slice stands in the tile of C: its first row and column. Its rows are LANES_M
// apart, so that lanes read rows of A that follow each other and lie in different banks.
struct Place {
    int row, col;
    __device__ explicit Place(int thread) {
        const int lane = thread % 32, warp = thread / 32;
        row = warp / WARPS_N * WARP_M + lane / 2 % LANES_M;
        col = warp % WARPS_N * WARP_N + (lane % 2 + lane / (2 * LANES_M) * 2) * 4;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
gemm(const __grid_constant__ TensorMap a_tiles, const __grid_constant__ TensorMap b_tiles, float* C,
     float* scratch_memory, int M, int N, int K) {
    Memory& shared = *reinterpret_cast<Memory*>(memory);
    const int block_row = blockIdx.y * BM;
    const int block_col = blockIdx.x * BN;
    const int slice = threadIdx.x / SLICE_THREADS, thread = threadIdx.x % SLICE_THREADS;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Place own(thread);

    // The block's part of k, in tiles; the last parts may be shorter or empty.
    const int rank = cluster_rank(), part = blockIdx.z / SPLITS;
    const int depth = (K + BK - 1) / BK;
    const int each = (depth + SPLITS * PARTS - 1) / (SPLITS * PARTS);
    const int first = min((part * SPLITS + rank) * each, depth);
    const int tiles = min(first + each, depth) - first;

    // The first thread starts the copies, STAGES - 1 tiles ahead: the stage that they fill was read
    // completely before the present one (rung 12 with PRODUCER 0).
    auto start_copies = [&](int tile) {
        const int stage = tile % STAGES, turn = tile / STAGES;
        if (turn > 0) mbarrier_wait(&shared.empty[stage], (turn - 1) % 2);
        Stage& to = shared.stages[stage];
        const int k0 = (first + tile) * BK;
        mbarrier_arrive_expect_tx(&shared.full[stage], sizeof(Stage));
#pragma unroll
        for (int box = 0; box < BK / WIDTH; ++box) {
            tma_load_2d(to.a[box], &a_tiles, k0 + box * WIDTH, block_row, &shared.full[stage]);
        }
        tma_load_2d(to.b, &b_tiles, block_col, k0, &shared.full[stage]);
    };
    int started = 0;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&shared.full[stage], 1);
            mbarrier_init(&shared.empty[stage], THREADS / 32);
        }
        mbarrier_init_fence();
        for (; started < STAGES - 1 && started < tiles; ++started) start_copies(started);
    }
    __syncthreads();

    // Quad q of a row of A lies at q ^ row % 8 in its box. What the compiler knows of both is apart from
    // what the thread knows: its rows are LANES_M apart, its slice's quads are DEPTH / 4 apart.
    const int box = slice * DEPTH / WIDTH, first_quad = slice * DEPTH % WIDTH / 4;
    const int own_quad = first_quad ^ own.row % LANES_M;
    float acc[TM][TN] = {};
    int stage = 0;
    unsigned parity = 0;
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
        if (threadIdx.x == 0 && started < tiles) start_copies(started++);
        __syncwarp();
        mbarrier_wait(&shared.full[stage], parity);
        const Stage& from = shared.stages[stage];
#pragma unroll
        for (int k0 = 0; k0 < DEPTH; k0 += 4) {
            float a[TM][4];
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                const float* const row = from.a[box + k0 / WIDTH][own.row + i * LANES_M];
                const int quad = own_quad ^ (k0 % WIDTH / 4 ^ i * LANES_M % 8);
                unpack(a[i], *reinterpret_cast<const float4*>(row + 4 * quad));
            }
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                float b[TN];
#pragma unroll
                for (int j = 0; j < TN; j += 4) {
                    const float* const row = from.b[slice * DEPTH + k0 + k];
                    unpack(&b[j], *reinterpret_cast<const float4*>(row + own.col + j * LANES_N));
                }
#pragma unroll
                for (int i = 0; i < TM; ++i) {
#pragma unroll
                    for (int step = 0; step < TN; ++step) {
                        const int j = i % 2 ? TN - 1 - step : step;  // back and forth, as in rung 10
                        acc[i][j] += a[i][k] * b[j];
                    }
                }
            }
        }
        __syncwarp();
        if (lane == 0) mbarrier_arrive(&shared.empty[stage]);
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }

    __syncthreads();  // nobody reads the tiles any more: their memory takes the partial sums
    // In the order of threads, so that neighbours write and later read neighbouring quads.
#pragma unroll
    for (int q = 0; q < QUADS; ++q) {
        const int i = q / (TN / 4), j = q % (TN / 4) * 4;
        shared.partial[slice][q][thread] =
            repacked(acc[i][j], acc[i][j + 1], acc[i][j + 2], acc[i][j + 3], M);
    }
    cluster_sync();  // the partial sums of all blocks are complete

    const Scratch scratch(scratch_memory, rank);
    if (PARTS > 1 && part == PARTS - 1) {
        // The same warp of the blocks before, which started earlier, has written what this one reads.
        if (lane < PARTS - 1) flag_await(&scratch.left[lane * (THREADS / 32) + warp]);
        __syncwarp();
    }
    for (int e = threadIdx.x; e < SHARE; e += THREADS) {
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        auto add = [&](const float4& more) {
            sum.x += more.x;
            sum.y += more.y;
            sum.z += more.z;
            sum.w += more.w;
        };
        if (PARTS > 1 && part == PARTS - 1) {
#pragma unroll
            for (int before = 0; before < PARTS - 1; ++before) add(scratch.shares[before * SHARE + e]);
        }
        const int quad = rank * SHARE + e;
#pragma unroll
        for (int other = 0; other < SPLITS; ++other) {
#pragma unroll
            for (int s = 0; s < SLICES; ++s) {
                add(cluster_load(&shared.partial[s][0][0] + quad, other));
            }
        }
        if (part < PARTS - 1) {
            scratch.shares[part * SHARE + e] = sum;
        } else {
            const int q = quad / SLICE_THREADS, i = q / (TN / 4), j = q % (TN / 4) * 4;
            const Place of(quad % SLICE_THREADS);
            store_quad(C, M, N, block_row + of.row + i * LANES_M, block_col + of.col + j * LANES_N, sum);
        }
    }
    if (part < PARTS - 1) {
        __syncwarp();
        if (lane == 0) flag_raise(&scratch.left[part * (THREADS / 32) + warp]);
    }
    cluster_sync();  // no block ends while another still reads its shared memory
}
