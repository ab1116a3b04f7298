// 13 Split k: several warps, and several blocks, share one tile of C along k.
//
// Idea         A small product has few tiles of C and a long k. Here SPLITS blocks, a cluster, take a
//              part of k each for one tile, and within a block SLICES groups of warps take a part of
//              every tile's depth. At the end each block adds a share of the partial sums of
//              all, read from the others' shared memory, always in the same order: the bits repeat.
// Before       All rungs so far give a tile of C to one block: at N = 512 and 128 x 128 that is 16
//              blocks on 132 multiprocessors. Smaller tiles feed more of them but reuse less.
// Expectation  Time falls as blocks fill the multiprocessors, until the sum of the parts costs as
//              much as it saves: SPLITS * BM * BN floats cross between multiprocessors per tile.
//              Atomics or a pass over global memory would cost more, and atomics also the order.
//              At large N splitting is all cost and no gain: SPLITS 1 is rung 10 with slices.
// Measured     Not yet.
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

#include "cluster.cuh"
#include "cp_async.cuh"
#include "quad.cuh"

constexpr int LANES_N = 32 / LANES_M;
constexpr int WARP_M = LANES_M * TM, WARP_N = LANES_N * TN;  // outputs of a warp
constexpr int WARPS_N = BN / WARP_N;
constexpr int WARPS = BM / WARP_M * WARPS_N;  // of one slice
constexpr int SLICE_THREADS = 32 * WARPS, THREADS = SLICE_THREADS * SLICES;
constexpr int A_PITCH = BM + 4;  // lanes store 8 depths of 4 rows: 32 banks
constexpr int COPY_ROWS = THREADS / 8;  // of A in one pass of the block's copies
constexpr int A_FLOATS = BK * A_PITCH, B_FLOATS = BK * BN;
static_assert(BM % COPY_ROWS == 0 && BK * BN % (4 * THREADS) == 0, "whole passes of copies");
constexpr int QUADS = TM * TN / 4;  // of C per thread
constexpr int SHARE = BM * BN / 4 / SPLITS;  // quads of C that each block adds and stores
static_assert(BK % SLICES == 0 && BM * BN % (4 * SPLITS) == 0, "equal slices and shares");

// STAGES tiles of A, transposed, then as many of B; at the end SLICES partial tiles of C.
extern __shared__ __align__(16) float tiles[];

// Where a thread of a slice stands in the tile of C: the first of its rows and columns.
struct Place {
    int row, col;
    __device__ explicit Place(int thread) {
        const int lane = thread % 32, warp = thread / 32;
        row = warp / WARPS_N * WARP_M + lane / 2 % LANES_M * 4;
        col = warp % WARPS_N * WARP_N + (lane % 2 + lane / (2 * LANES_M) * 2) * 4;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
gemm(const float* A, const float* B, float* C, int M, int N, int K) {
    float* const a_tiles = tiles;
    float* const b_tiles = tiles + STAGES * A_FLOATS;

    const int block_row = blockIdx.y * BM;
    const int block_col = blockIdx.x * BN;
    const int slice = threadIdx.x / SLICE_THREADS, thread = threadIdx.x % SLICE_THREADS;
    const Place own(thread);

    // The block's part of k, in tiles; the last parts may be shorter or empty.
    const int depth = (K + BK - 1) / BK;
    const int part = (depth + SPLITS - 1) / SPLITS;
    const int first = min(static_cast<int>(cluster_rank()) * part, depth);
    const int last = min(first + part, depth);

    const int copy_k = threadIdx.x % 8, copy_row = threadIdx.x / 8;
    const bool whole_block = block_row + BM <= M && block_col + BN <= N && N % 4 == 0;
    auto copy = [&](int stage, int k0) {
        float* const a_tile = a_tiles + stage * A_FLOATS;
        float* const b_tile = b_tiles + stage * B_FLOATS;
        if (whole_block && k0 + BK <= K) {
            float* const to = a_tile + copy_k * A_PITCH + copy_row;
            const float* const from = A + static_cast<size_t>(block_row + copy_row) * K + k0 + copy_k;
#pragma unroll
            for (int row = 0; row < BM; row += COPY_ROWS) {
#pragma unroll
                for (int k = 0; k < BK; k += 8) {
                    cp_async<4>(to + k * A_PITCH + row, from + static_cast<size_t>(row) * K + k);
                }
            }
#pragma unroll
            for (int p = 0; p < BK * BN / 4; p += THREADS) {
                const int i = p + threadIdx.x;
                const int k = i / (BN / 4), col = i % (BN / 4) * 4;
                cp_async<16>(b_tile + 4 * i, B + static_cast<size_t>(k0 + k) * N + block_col + col);
            }
        } else {  // at an edge, or rows of B that are not aligned: float by float
            for (int i = threadIdx.x; i < BM * BK; i += THREADS) {
                const int row = block_row + i / BK, k = k0 + i % BK;
                float* const to = a_tile + i % BK * A_PITCH + i / BK;
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
    for (int tile = first; tile < last; ++tile) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // the tile is complete for all, and nobody reads the stage to be written
        if (tile + STAGES - 1 < last) copy(writing, (tile + STAGES - 1) * BK);
        cp_async_commit();

        const float* const a_tile = a_tiles + reading * A_FLOATS + slice * (BK / SLICES) * A_PITCH;
        const float* const b_tile = b_tiles + reading * B_FLOATS + slice * (BK / SLICES) * BN;
#pragma unroll
        for (int k = 0; k < BK / SLICES; ++k) {
            float a[TM], b[TN];
#pragma unroll
            for (int i = 0; i < TM; i += 4) {
                const float* const from = a_tile + k * A_PITCH + own.row + i * LANES_M;
                unpack(&a[i], *reinterpret_cast<const float4*>(from));
            }
#pragma unroll
            for (int j = 0; j < TN; j += 4) {
                const float* const from = b_tile + k * BN + own.col + j * LANES_N;
                unpack(&b[j], *reinterpret_cast<const float4*>(from));
            }
#pragma unroll
            for (int i = 0; i < TM; ++i) {
#pragma unroll
                for (int j = 0; j < TN; ++j) acc[i][j] += a[i] * b[j];
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

    const int share = cluster_rank() * SHARE;
    for (int e = share + threadIdx.x; e < share + SHARE; e += THREADS) {
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int rank = 0; rank < SPLITS; ++rank) {
#pragma unroll
            for (int s = 0; s < SLICES; ++s) {
                const float4 part_sum = cluster_load(partial + s * QUADS * SLICE_THREADS + e, rank);
                sum.x += part_sum.x;
                sum.y += part_sum.y;
                sum.z += part_sum.z;
                sum.w += part_sum.w;
            }
        }
        const int q = e / SLICE_THREADS, i = q / (TN / 4), j = q % (TN / 4) * 4;
        const Place of(e % SLICE_THREADS);
        store_quad(C, M, N, block_row + of.row + i / 4 * 4 * LANES_M + i % 4,
                   block_col + of.col + j * LANES_N, sum);
    }
    cluster_sync();  // no block ends while another still reads its shared memory
}
