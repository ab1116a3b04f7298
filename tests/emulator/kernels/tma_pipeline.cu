// A warp-specialised GEMM: one warp starts TMA copies into a ring of stages, four warps compute.
// 160 threads, a 64 x 64 tile of C, 8 x 4 outputs each; any size whose K and N are multiples of 4.
// EACH_ARRIVES: all consumer threads arrive on "empty", else one of each warp. FAULT plants one.
#include "registers.cuh"
#include "tma.cuh"
#ifndef STAGES
#define STAGES 3
#endif
#ifndef EACH_ARRIVES
#define EACH_ARRIVES 0
#endif
#ifndef FAULT
#define FAULT 0
#endif
constexpr int BM = 64, BN = 64, BK = 16, CONSUMERS = 128;
constexpr unsigned TILE_BYTES = 4 * (BM * BK + BK * BN);

extern "C" __global__ void __launch_bounds__(CONSUMERS + 32, 1)
gemm(const __grid_constant__ TensorMap a_tiles, const __grid_constant__ TensorMap b_tiles,
     float* __restrict__ C, int M, int N, int K) {
    __shared__ alignas(128) float a_tile[STAGES][BM][BK];
    __shared__ alignas(128) float b_tile[STAGES][BK][BN];
    __shared__ Mbarrier full[STAGES], empty[STAGES];
    const int tid = threadIdx.x, steps = (K + BK - 1) / BK;

    if (tid == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&full[stage], 1);
#if FAULT == 7
            if (stage == 0)
#endif
            mbarrier_init(&empty[stage], EACH_ARRIVES ? CONSUMERS : CONSUMERS / 32);
        }
        mbarrier_init_fence();
    }
#if FAULT != 10
    __syncthreads();
#endif

    if (tid >= CONSUMERS) {
        lower_register_limit<40>();
        if (tid == CONSUMERS) {
            tma_prefetch_descriptor(&a_tiles);
            tma_prefetch_descriptor(&b_tiles);
#if FAULT == 11
            const int copies = steps + 1;
#else
            const int copies = steps;
#endif
            for (int step = 0; step < copies; ++step) {
                const int stage = step % STAGES, round = step / STAGES;
#if FAULT == 12
                mbarrier_wait(&empty[stage], round & 1);  // fault 12: the other parity
#elif FAULT == 14
                if (round) mbarrier_wait(&full[stage], (round & 1) ^ 1);  // landed, but perhaps still read
#elif FAULT != 2
                mbarrier_wait(&empty[stage], (round & 1) ^ 1);  // fault 7: not initialised
#endif
#if FAULT == 5
                mbarrier_arrive_expect_tx(&full[stage], TILE_BYTES - 1024);
#elif FAULT == 6
                mbarrier_arrive_expect_tx(&full[stage], TILE_BYTES + 1024);
#else
                mbarrier_arrive_expect_tx(&full[stage], TILE_BYTES);
#endif
#if FAULT == 8
                mbarrier_arrive(&full[stage]);  // fault 8: one arrival too many
#endif
                tma_load_2d(a_tile[stage], &a_tiles, step * BK, blockIdx.y * BM, &full[stage]);  // copy of A
#if FAULT == 9
                tma_load_2d(&b_tile[stage][0][8], &b_tiles, blockIdx.x * BN, step * BK, &full[stage]);  // fault 9: off 128 bytes
#else
                tma_load_2d(b_tile[stage], &b_tiles, blockIdx.x * BN, step * BK, &full[stage]);  // copy of B
#endif
            }
        }
        return;
    }

    raise_register_limit<240>();
    const int first_row = tid / 16 * 8, first_column = tid % 16 * 4;
    float sums[8][4] = {};
    for (int step = 0; step < steps; ++step) {
        const int stage = step % STAGES;
#if FAULT == 13
        if (tid >= 32)
#endif
#if FAULT != 1
        mbarrier_wait(&full[stage], step / STAGES & 1);  // waits for the copies
#endif
#if FAULT == 3
        if (tid % 32 == 0) mbarrier_arrive(&empty[stage]);
#endif
        for (int k = 0; k < BK; ++k) {
            const float4 b = *reinterpret_cast<const float4*>(&b_tile[stage][k][first_column]);  // reads B
            for (int i = 0; i < 8; ++i) {
                const float a = a_tile[stage][first_row + i][k];  // reads A
                sums[i][0] += a * b.x;
                sums[i][1] += a * b.y;
                sums[i][2] += a * b.z;
                sums[i][3] += a * b.w;
            }
        }
#if FAULT == 3
#elif EACH_ARRIVES
        mbarrier_arrive(&empty[stage]);
#else
#if FAULT != 4
        __syncwarp();
#endif
        if (tid % 32 == 0) mbarrier_arrive(&empty[stage]);
#endif
    }
    for (int i = 0; i < 8; ++i)
        for (int j = 0; j < 4; ++j) {
            const int row = blockIdx.y * BM + first_row + i, column = blockIdx.x * BN + first_column + j;
            if (row < M && column < N) C[(size_t)row * N + column] = sums[i][j];
        }
}
