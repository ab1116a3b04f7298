// 14 Stream k: WORKERS blocks stay for the whole product and share its work to the last tile.
//
// Idea         The grid has as many blocks as run at one time. Most of the product they take tile by
//              tile; the last one to two rounds of tiles are laid end to end along k and cut into
//              equal pieces, so that all blocks end together. Where a cut goes through a tile, the
//              block with the front part leaves its sums in global memory and the one with the back
//              part adds them.
// Before       With a block per tile the last round is rarely full: at N = 3072 and 256 x 128 there are
//              288 tiles for 132 multiprocessors, and three rounds are needed for the work of 2.2.
// Expectation  Time follows the work and not the rounds: at 3072 up to 1.37 times faster, at 4096 and
//              8192 3 %. A block stores one tile while the copies of its next are under way, and
//              starts once. The price is one tile of partial sums per block to write and to read,
//              2 * 128 KiB * 132 = 35 MB at 256 x 128, which pays from N = 2048 on.
// Measured     NVIDIA H200, TFLOPS: 52.0 at N = 3072, where rung 12's tiles of the same size leave
//              most of the last round empty (39.9); 52.9 at 4096 and 53.6 at 8192, 0.5 % less than
//              rung 12, for there the last round is nearly full (results/published/nvidia-h200).
//              Blocks that share cut tiles stand at different places along k, so L2 fetches 0.72 GB
//              from DRAM at 4096 where it fetches 0.37 for rung 12.
//
// BM       rows of C per block
// BN       columns of C per block
// BK       depth of a tile
// TM       rows of C per thread
// TN       columns of C per thread
// LANES_M  lanes of a warp along the rows of C
// STAGES   tiles in shared memory
// UNROLL   steps along k in one pass of the loop
// GROUP    rows of tiles that the order of tiles runs down (rung 11)
// ORDER    of a thread's FMAs: 0 by rows, 1 by columns, 2 by squares of 2 x 2
// AHEAD    1: operands for k + 1 are read before the FMAs of k (rung 9); 0: left to the compiler
// WORKERS  blocks of the grid: the multiprocessors of the GPU (H200: 132, RTX 5080: 84)

#include "flag.cuh"
#include "fma_order.cuh"
#include "prepare.cuh"
#include "quad.cuh"
#include "registers.cuh"
#include "tma.cuh"

constexpr int LANES_N = 32 / LANES_M;
constexpr int WARP_M = LANES_M * TM, WARP_N = LANES_N * TN;  // outputs of a warp
constexpr int WARPS_N = BN / WARP_N;
constexpr int WARPS = BM / WARP_M * WARPS_N;  // that compute
constexpr int COMPUTING = 32 * WARPS;
constexpr int THREADS = COMPUTING + 128;  // and a warpgroup that starts the copies (rung 12)
static_assert(BK % UNROLL == 0 && UNROLL % 2 == 0, "the loop makes whole passes of an even length");

constexpr int AT_LAUNCH = 65536 / THREADS / 8 * 8;  // registers per thread
constexpr int SPARE = 128 * (AT_LAUNCH - 24) / COMPUTING;
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

// What the blocks leave for each other, zero before the first launch.
struct Scratch {
    float4 partial[WORKERS][TM * TN / 4][COMPUTING];
    unsigned left[WORKERS][WARPS];
};

// A piece of work: a tile of C, and its tiles along k from `first` to before `last`.
struct Piece {
    int block_row, block_col;
    int first, last;
};

// The pieces of one block: first its part of the cut tiles, from the end back, so that what another
// block waits for is done first; then whole tiles.
struct Schedule {
    int tiles_m, tiles_n, depth;
    int cut;              // tiles that are laid end to end
    long long from, to;   // what is left of the block's part of them, in tiles along k
    int next;             // whole tile

    __device__ Schedule(int M, int N, int K) {
        tiles_m = (M + BM - 1) / BM;
        tiles_n = (N + BN - 1) / BN;
        depth = (K + BK - 1) / BK;
        const int tiles = tiles_m * tiles_n, rounds = tiles / WORKERS;
        cut = tiles % WORKERS == 0 ? 0 : tiles - max(rounds - 1, 0) * WORKERS;
        const long long work = static_cast<long long>(cut) * depth;
        // Every block that shares has a part: the one before is always the one that has the front.
        const long long sharing = min(work, static_cast<long long>(WORKERS));
        from = to = 0;
        if (blockIdx.x < sharing) {
            from = work * blockIdx.x / sharing;
            to = work * (blockIdx.x + 1) / sharing;
        }
        next = cut + blockIdx.x;
    }

    __device__ bool take(Piece& piece) {
        int tile;
        if (to > from) {
            tile = static_cast<int>((to - 1) / depth);
            const long long start = static_cast<long long>(tile) * depth;
            piece.first = static_cast<int>(max(from - start, 0ll));
            piece.last = static_cast<int>(to - start);
            to = start + piece.first;
        } else {
            if (next >= tiles_m * tiles_n) return false;
            tile = next;
            piece.first = 0;
            piece.last = depth;
            next += WORKERS;
        }
        const int band = tile / (GROUP * tiles_n), in_band = tile % (GROUP * tiles_n);
        const int band_height = min(GROUP, tiles_m - band * GROUP);
        piece.block_row = (band * GROUP + in_band % band_height) * BM;
        piece.block_col = in_band / band_height * BN;
        return true;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemm(const __grid_constant__ TensorMap a_tiles, const __grid_constant__ TensorMap b_tiles, float* C,
     float* scratch_memory, int M, int N, int K) {
    Memory& shared = *reinterpret_cast<Memory*>(memory);
    Scratch& scratch = *reinterpret_cast<Scratch*>(scratch_memory);
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

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Schedule schedule(M, N, K);
    Piece piece;
    int stage = 0;
    unsigned parity = 0;
    auto advance = [&]() {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    };

    if (warp >= WARPS) {
        lower_register_limit<24>();
        if (threadIdx.x == COMPUTING) {
            while (schedule.take(piece)) {
#pragma unroll 1
                for (int tile = piece.first; tile < piece.last; ++tile) {
                    Mbarrier* const full = &shared.full[stage];
                    mbarrier_wait(&shared.empty[stage], parity ^ 1);  // at first, all are empty
                    mbarrier_arrive_expect_tx(full, sizeof(Stage));
                    tma_load_2d(shared.stages[stage].a, &a_tiles, piece.block_row, tile * BK, full);
                    tma_load_2d(shared.stages[stage].b, &b_tiles, piece.block_col, tile * BK, full);
                    advance();
                }
            }
        }
        return;
    }
    raise_register_limit<RAISED>();

    const int lane_m = lane / 2 % LANES_M;
    const int lane_n = lane % 2 + lane / (2 * LANES_M) * 2;
    const int quad_row = warp / WARPS_N * WARP_M + lane_m * 4;
    const int quad_col = warp % WARPS_N * WARP_N + lane_n * 4;

    float a[2][TM], b[2][TN];
    const float *a_from, *b_from;  // the thread's first operands of the step to be read next
    auto enter = [&]() {
        mbarrier_wait(&shared.full[stage], parity);
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

#pragma unroll 1
    while (schedule.take(piece)) {
        float acc[TM][TN] = {};
        enter();
        if (AHEAD) read(0, 0);
#pragma unroll 1
        for (int tile = piece.first; tile < piece.last; ++tile) {
#pragma unroll 1
            for (int pass = 0; pass < BK; pass += UNROLL) {
#pragma unroll
                for (int k = 0; k < UNROLL; ++k) {
                    const int set = AHEAD ? k % 2 : 0;
                    if (!AHEAD) read(0, k);
                    if (k + 1 == UNROLL) {
                        const bool more = tile + 1 < piece.last;
                        a_from += UNROLL * BM;
                        b_from += UNROLL * BN;
                        if (pass + UNROLL == BK) {  // the last operands of this stage have been read
                            __syncwarp();
                            if (lane == 0) mbarrier_arrive(&shared.empty[stage]);
                            advance();
                            if (more) enter();
                        }
                        if (AHEAD && (pass + UNROLL < BK || more)) read(0, 0);
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

        if (piece.first > 0) {  // the block before has the front of this tile
            if (lane == 0) flag_await(&scratch.left[blockIdx.x - 1][warp]);
            __syncwarp();
#pragma unroll
            for (int q = 0; q < TM * TN / 4; ++q) {
                const float4 front = scratch.partial[blockIdx.x - 1][q][threadIdx.x];
                acc[4 * q / TN][4 * q % TN + 0] += front.x;
                acc[4 * q / TN][4 * q % TN + 1] += front.y;
                acc[4 * q / TN][4 * q % TN + 2] += front.z;
                acc[4 * q / TN][4 * q % TN + 3] += front.w;
            }
        }
        if (piece.last < schedule.depth) {  // the block after has the back
#pragma unroll
            for (int q = 0; q < TM * TN / 4; ++q) {
                scratch.partial[blockIdx.x][q][threadIdx.x] =
                    repacked(acc[4 * q / TN][4 * q % TN + 0], acc[4 * q / TN][4 * q % TN + 1],
                             acc[4 * q / TN][4 * q % TN + 2], acc[4 * q / TN][4 * q % TN + 3], M);
            }
            __syncwarp();
            if (lane == 0) flag_raise(&scratch.left[blockIdx.x][warp]);
        } else {
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                const int row = piece.block_row + quad_row + i / 4 * 4 * LANES_M + i % 4;
#pragma unroll
                for (int j = 0; j < TN; j += 4) {
                    store_quad(C, M, N, row, piece.block_col + quad_col + j * LANES_N,
                               repacked(acc[i][j], acc[i][j + 1], acc[i][j + 2], acc[i][j + 3], M));
                }
            }
        }
    }
}
