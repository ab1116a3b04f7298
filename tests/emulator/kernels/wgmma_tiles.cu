// C = A B by wgmma with TF32 operands: tiles by TMA into a ring of stages, one producer warp, one
// warpgroup that multiplies. A is M x K; B comes as its transpose, N x K: TF32 operands must be K-major.
// The tile of C is 64 x COLUMNS; any size whose K is a multiple of 4.
//
// COLUMNS      64, 128, 192 or 256
// SWIZZLED     width of the tiles' swizzle, 32, 64 or 128 bytes; a tile is SWIZZLED / 4 deep
// a_registers  1: the warpgroup loads its fragments of A; 0: they are read from shared memory
// rounded      1: the warpgroup rounds A's tile in place before, which is an ordinary write
// fault        plants one
#include "split_tf32.cuh"
#include "tma.cuh"
#include "wgmma.cuh"
constexpr int BM = 64, BN = COLUMNS, BK = SWIZZLED / 4, STAGES = 2, CONSUMERS = 128;
constexpr int SPARE = 32;  // floats, for a tile that does not begin where it should
constexpr Swizzle SWIZZLE = static_cast<Swizzle>(SWIZZLED);
constexpr unsigned TILE_BYTES = 4 * BK * (BM + BN);

extern "C" __global__ void __launch_bounds__(CONSUMERS + 32, 1)
gemm(const __grid_constant__ TensorMap a_tiles, const __grid_constant__ TensorMap b_tiles,
     float* __restrict__ C, int M, int N, int K, int a_registers, int rounded, int fault) {
    __shared__ alignas(1024) float a_tile[STAGES][BM * BK];
    __shared__ alignas(1024) float b_tile[STAGES][(BN * BK + SPARE + 255) / 256 * 256];
    __shared__ Mbarrier full[STAGES], empty[STAGES], converted[STAGES];
    const int tid = threadIdx.x, steps = (K + BK - 1) / BK, off = fault == 6 ? SPARE : 0;
    if (tid == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&full[stage], 1);
            mbarrier_init(&empty[stage], CONSUMERS / 32);
            mbarrier_init(&converted[stage], CONSUMERS);
        }
        mbarrier_init_fence();
    }
    __syncthreads();

    if (tid >= CONSUMERS) {
        if (tid == CONSUMERS) {
            for (int step = 0; step < steps; ++step) {
                const int stage = step % STAGES;
                mbarrier_wait(&empty[stage], (step / STAGES & 1) ^ 1);
                mbarrier_arrive_expect_tx(&full[stage], TILE_BYTES);
                tma_load_2d(a_tile[stage], &a_tiles, step * BK, blockIdx.y * BM, &full[stage]);  // copy of A
                tma_load_2d(b_tile[stage] + off, &b_tiles, step * BK, blockIdx.x * BN, &full[stage]);  // copy of B
            }
        }
        return;
    }

    const int warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
    float sum[BN / 2];
    for (int step = 0; step < steps; ++step) {
        const int stage = step % STAGES;
        if (fault != 1) mbarrier_wait(&full[stage], step / STAGES & 1);
        if (rounded) {
            for (int i = tid; i < BM * BK; i += CONSUMERS)
                a_tile[stage][i] = __int_as_float(round_to_tf32(a_tile[stage][i]));  // rounds A
            if (fault != 5 && fault != 12) fence_proxy_async();
            mbarrier_arrive(&converted[stage]);
            mbarrier_wait(&converted[stage], step / STAGES & 1);
            if (fault == 12) fence_proxy_async();  // by the one that reads, no fault
        }
        const WgmmaDescriptor a = k_major_descriptor<SWIZZLE>(a_tile[stage]);
        const WgmmaDescriptor b =
            fault == 9 ? wgmma_descriptor<SWIZZLE>(b_tile[stage], 16, 64 * SWIZZLED)
                       : k_major_descriptor<SWIZZLE>(b_tile[stage] + off);
        unsigned fragments[BK / 8][4];
        if (a_registers) {
#pragma unroll
            for (int k = 0; k < BK / 8; ++k) {
                for (int i = 0; i < 4; ++i) {
                    const int row = 16 * warp + g + i % 2 * 8, column = 8 * k + t + i / 2 * 4;
                    const unsigned at = swizzled<SWIZZLE>(row * SWIZZLED + 4 * column) / 4;
                    fragments[k][i] = static_cast<unsigned>(__float_as_int(a_tile[stage][at]));
                }
                keep_registers(fragments[k]);
            }
        }
        if (fault != 4) wgmma_fence();
        if (fault != 7 || warp != 2) {
#pragma unroll
            for (int k = 0; k < BK / 8; ++k) {
                const bool accumulate = step > 0 || k > 0;
                if (a_registers) {
                    wgmma_tf32(sum, fragments[k], advanced(b, 32 * k), accumulate);
                } else {
                    wgmma_tf32(sum, advanced(a, 32 * k), advanced(b, 32 * k), accumulate);  // the product
                }
            }
        }
        if (fault != 8) wgmma_commit();
        if (fault == 3 && lane == 0) mbarrier_arrive(&empty[stage]);
        if (fault == 10 && tid == 33) a_tile[stage][0] = 0.0f;  // fault 10: what is still being read
        if (fault == 2) sum[0] += 1.0f;  // fault 2: touches a sum
        wgmma_wait<0>();
        if (a_registers && fault != 13) __syncwarp();  // all lanes have loaded their fragments
        if (fault != 3 && lane == 0) mbarrier_arrive(&empty[stage]);
    }
    if (fault == 11) {
        wgmma_fence();
        wgmma_tf32(sum, k_major_descriptor<SWIZZLE>(a_tile[0]), k_major_descriptor<SWIZZLE>(b_tile[0]), true);  // fault 11
        wgmma_commit();
        return;
    }
#pragma unroll
    for (int i = 0; i < BN / 2; ++i) {
        const int row = blockIdx.y * BM + 16 * warp + g + i / 2 % 2 * 8;
        const int column = blockIdx.x * BN + i / 4 * 8 + 2 * t + i % 2;
        if (row < M && column < N) C[(size_t)row * N + column] = sum[i];
    }
}
