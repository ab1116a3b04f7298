// A kernel for the tests of the launch kind `tensor_maps`: one pair of tiles at a time, no overlap.
//
// TURNED  1 if the map of A covers its transpose

#include "prepare.cuh"
#include "tma.cuh"

constexpr int SIDE = 32, DEPTH = 8;

extern "C" __global__ void __launch_bounds__(256)
gemm(const __grid_constant__ TensorMap a_tiles, const __grid_constant__ TensorMap b_tiles, float* C,
     int M, int N, int K) {
    __shared__ alignas(128) float a_tile[SIDE * DEPTH];
    __shared__ alignas(128) float b_tile[DEPTH * SIDE];
    __shared__ Mbarrier full;

    const int first_row = blockIdx.y * SIDE, first_column = blockIdx.x * SIDE;
    const bool asks = threadIdx.x == 0 && threadIdx.y == 0;
    if (asks) {
        mbarrier_init(&full, 1);
        mbarrier_init_fence();
    }
    __syncthreads();

    float acc[4] = {};
    unsigned parity = 0;
    for (int k0 = 0; k0 < K; k0 += DEPTH) {
        if (asks) {
            mbarrier_arrive_expect_tx(&full, 2 * SIDE * DEPTH * sizeof(float));
            if (TURNED) {
                tma_load_2d(a_tile, &a_tiles, first_row, k0, &full);
            } else {
                tma_load_2d(a_tile, &a_tiles, k0, first_row, &full);
            }
            tma_load_2d(b_tile, &b_tiles, first_column, k0, &full);
        }
        mbarrier_wait(&full, parity);
        parity ^= 1;
        for (int k = 0; k < DEPTH; ++k) {
            for (int i = 0; i < 4; ++i) {
                const int row = threadIdx.y + 8 * i;
                const float a = TURNED ? a_tile[k * SIDE + row] : a_tile[row * DEPTH + k];
                acc[i] += a * b_tile[k * SIDE + threadIdx.x];
            }
        }
        __syncthreads();  // nobody reads the tiles any more
    }
    const int column = first_column + threadIdx.x;
    for (int i = 0; i < 4; ++i) {
        const int row = first_row + threadIdx.y + 8 * i;
        if (row < M && column < N) C[static_cast<size_t>(row) * N + column] = acc[i];
    }
}
