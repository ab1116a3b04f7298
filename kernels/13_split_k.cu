// 13 Split k: several warps, and several blocks, share one tile of C along k.
//
// Idea         A small product has few tiles of C and a long k. Here SPLITS blocks, a cluster, take a
//              part of k each for one tile, and within a block SLICES groups of warps take a part of
//              every tile's depth. At the end each block adds a share of the partial sums of
//              all, read from the others' shared memory, always in the same order: the bits repeat.
//              Where that is not enough, PARTS such clusters share a tile: all but the last leave
//              their sums in global memory, and the last, which started last, adds them in order.
//              A stays as it is in shared memory, a row of k after the other, and a thread reads
//              quads along k: so A is copied by 16 bytes too, a quarter of rung 10's copies.
// Before       All rungs so far give a tile of C to one block: at N = 512 and 128 x 128 that is 16
//              blocks on 132 multiprocessors. Smaller tiles feed more of them but reuse less, and
//              copies and their addresses take a seventh of the issue slots.
// Expectation  Time falls as blocks fill the multiprocessors, until the sum of the parts costs as
//              much as it saves: SPLITS * BM * BN floats cross between multiprocessors per tile.
//              Atomics or a pass over global memory would cost more, and atomics also the order.
//              At large N splitting is all cost and no gain: SPLITS 1 is rung 10 with slices.
// Measured     NVIDIA H200, TFLOPS, the best of three sets: 8.0 at N = 256, 24.4 at 512, 39.3 at 1024;
//              cuBLAS FP32 4.2, 19.9 and 35.7 (results/published/nvidia-h200). At 4096 it has 43.0,
//              0.81 times rung 12: there are tiles enough. 256 x 256 x 16384 needs PARTS: 35.6 with 16
//              of them (rung 15) against 25.7; cuBLAS has 39.5. Larger clusters place badly: with one
//              block per multiprocessor only 15 of 8 blocks fit at a time, on 120 of 132.
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
#include "cp_async.cuh"
#include "flag.cuh"
#include "quad.cuh"

constexpr int LANES_N = 32 / LANES_M;
constexpr int WARP_M = LANES_M * TM, WARP_N = LANES_N * TN;  // outputs of a warp
constexpr int WARPS_N = BN / WARP_N;
constexpr int WARPS = BM / WARP_M * WARPS_N;  // of one slice
constexpr int SLICE_THREADS = 32 * WARPS, THREADS = SLICE_THREADS * SLICES;
constexpr int A_PITCH = BK + 4;  // rows of A start in different banks
constexpr int A_FLOATS = BM * A_PITCH, B_FLOATS = BK * BN;
constexpr int A_QUADS = BK / 4, B_QUADS = BN / 4;  // of a row
constexpr int A_ROWS = THREADS / A_QUADS, B_ROWS = THREADS / B_QUADS;  // in one pass of the copies
static_assert(THREADS % A_QUADS == 0 && BM % A_ROWS == 0, "whole passes of copies of A");
static_assert(THREADS % B_QUADS == 0 && BK % B_ROWS == 0, "whole passes of copies of B");
constexpr int DEPTH = BK / SLICES;  // of a slice
constexpr int QUADS = TM * TN / 4;  // of C per thread
constexpr int SHARE = BM * BN / 4 / SPLITS;  // quads of C that each block adds and stores
static_assert(DEPTH % 4 == 0 && BM * BN % (4 * SPLITS) == 0, "slices of quads, and equal shares");
static_assert(PARTS <= 32, "a lane waits for each of the other parts");

// STAGES tiles of A, then as many of B; at the end SLICES partial tiles of C.
extern __shared__ __align__(16) float tiles[];

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
gemm(const float* A, const float* B, float* C, float* scratch_memory, int M, int N, int K) {
    float* const a_tiles = tiles;
    float* const b_tiles = tiles + STAGES * A_FLOATS;

    const int block_row = blockIdx.y * BM;
    const int block_col = blockIdx.x * BN;
    const int slice = threadIdx.x / SLICE_THREADS, thread = threadIdx.x % SLICE_THREADS;
    const Place own(thread);

    // The block's part of k, in tiles; the last parts may be shorter or empty.
    const int rank = cluster_rank(), part = blockIdx.z / SPLITS;
    const int depth = (K + BK - 1) / BK;
    const int each = (depth + SPLITS * PARTS - 1) / (SPLITS * PARTS);
    const int first = min((part * SPLITS + rank) * each, depth);
    const int last = min(first + each, depth);

    // A thread copies the same quad of every A_ROWS-th row of A and of every B_ROWS-th row of B; its
    // first ones move on by a tile at a time.
    const int a_row = threadIdx.x / A_QUADS, a_k = threadIdx.x % A_QUADS * 4;
    const int b_k = threadIdx.x / B_QUADS, b_col = threadIdx.x % B_QUADS * 4;
    const size_t a_stride = static_cast<size_t>(A_ROWS) * K, b_stride = static_cast<size_t>(B_ROWS) * N;
    const float* a_from = A + static_cast<size_t>(block_row + a_row) * K + first * BK + a_k;
    const float* b_from = B + static_cast<size_t>(first * BK + b_k) * N + block_col + b_col;
    const bool whole_block = block_row + BM <= M && block_col + BN <= N && N % 4 == 0 && K % 4 == 0;
    auto copy = [&](int stage, int k0) {
        float* const a_tile = a_tiles + stage * A_FLOATS;
        float* const b_tile = b_tiles + stage * B_FLOATS;
        if (whole_block && k0 + BK <= K) {
#pragma unroll
            for (int p = 0; p < BM / A_ROWS; ++p) {
                cp_async<16>(a_tile + (p * A_ROWS + a_row) * A_PITCH + a_k, a_from + p * a_stride);
            }
#pragma unroll
            for (int p = 0; p < BK / B_ROWS; ++p) {
                cp_async<16>(b_tile + (p * B_ROWS + b_k) * BN + b_col, b_from + p * b_stride);
            }
            a_from += BK;
            b_from += static_cast<size_t>(BK) * N;
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
                if (k < K && col < N) {
                    cp_async<4>(b_tile + i, B + static_cast<size_t>(k) * N + col);
                } else {
                    b_tile[i] = 0.0f;
                }
            }
        }
    };

#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (first + stage < last) copy(stage, (first + stage) * BK);
        cp_async_commit();  // an empty group where there is no tile: the count below stays right
    }

    float acc[TM][TN] = {};
    int reading = 0, writing = STAGES - 1;
    const float* const a_own = a_tiles + own.row * A_PITCH + slice * DEPTH;
    const float* const b_own = b_tiles + slice * DEPTH * BN + own.col;
#pragma unroll 1
    for (int tile = first; tile < last; ++tile) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // the tile is complete for all, and nobody reads the stage to be written
        if (tile + STAGES - 1 < last) copy(writing, (tile + STAGES - 1) * BK);
        cp_async_commit();

        const float* const a_tile = a_own + reading * A_FLOATS;
        const float* const b_tile = b_own + reading * B_FLOATS;
#pragma unroll
        for (int quad = 0; quad < DEPTH; quad += 4) {
            float a[TM][4];
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                const float* const from = a_tile + i * LANES_M * A_PITCH + quad;
                unpack(a[i], *reinterpret_cast<const float4*>(from));
            }
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                float b[TN];
#pragma unroll
                for (int j = 0; j < TN; j += 4) {
                    const float* const from = b_tile + (quad + k) * BN + j * LANES_N;
                    unpack(&b[j], *reinterpret_cast<const float4*>(from));
                }
#pragma unroll
                for (int i = 0; i < TM; ++i) {
#pragma unroll
                    for (int j = 0; j < TN; ++j) acc[i][j] += a[i][k] * b[j];
                }
            }
        }
        reading = reading + 1 == STAGES ? 0 : reading + 1;
        writing = writing + 1 == STAGES ? 0 : writing + 1;
    }

    cp_async_wait<0>();
    __syncthreads();  // nobody reads the tiles any more: their memory takes the partial sums
    // In the order of threads, so that neighbours write and later read neighbouring quads.
    float4* const partial = reinterpret_cast<float4*>(tiles);
#pragma unroll
    for (int q = 0; q < QUADS; ++q) {
        const int i = q / (TN / 4), j = q % (TN / 4) * 4;
        partial[(slice * QUADS + q) * SLICE_THREADS + thread] =
            repacked(acc[i][j], acc[i][j + 1], acc[i][j + 2], acc[i][j + 3], M);
    }
    cluster_sync();  // the partial sums of all blocks are complete

    const Scratch scratch(scratch_memory, rank);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
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
                add(cluster_load(partial + s * QUADS * SLICE_THREADS + quad, other));
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
