// Ceiling of a GEMM's inner loop: the multiply-adds of an 8 x 16 register tile, fed from shared
// memory, and nothing else: no tile is ever loaded anew, nobody waits for anybody.
//
// A warp has 8 x 4 lanes and a tile of 64 x 64, a block 4 x 4 warps. Bit 0 of the lane counts along
// the columns and bit 1 along the rows, so that pairs of lanes share each load (as in rung 8). Per
// depth k a thread issues 6 loads of 16 bytes and 128 multiply-adds.
//
// A trip of the loop is DEPTH of k.

#include "ceiling.cuh"

constexpr int TM = 8, TN = 16;
constexpr int LANES_M = 8, LANES_N = 4;
constexpr int WARPS_M = 4, WARPS_N = 2;
constexpr int BLOCK = 32 * WARPS_M * WARPS_N;
constexpr int QUADS_M = WARPS_M * LANES_M * TM / 4, QUADS_N = WARPS_N * LANES_N * TN / 4;
constexpr int DEPTH = 8;

extern "C" __global__ void __launch_bounds__(BLOCK)
ceiling(const float4* in, float4* out, int trips, int step, int chunks) {
    __shared__ float4 a_tile[DEPTH][QUADS_M], b_tile[DEPTH][QUADS_N];
    for (int i = threadIdx.x; i < DEPTH * QUADS_M; i += BLOCK) a_tile[0][i] = in[i];
    for (int i = threadIdx.x; i < DEPTH * QUADS_N; i += BLOCK) b_tile[0][i] = in[i];
    __syncthreads();

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int lane_m = lane / 2 % LANES_M, lane_n = lane % 2 + lane / (2 * LANES_M) * 2;
    int row = warp / WARPS_N * LANES_M * TM / 4 + lane_m;
    int col = warp % WARPS_N * LANES_N * TN / 4 + lane_n;

    float acc[TM][TN] = {};
#pragma unroll 1
    for (int trip = 0; trip < trips; ++trip) {
#pragma unroll
        for (int k = 0; k < DEPTH; ++k) {
            float4 a[TM / 4], b[TN / 4];
#pragma unroll
            for (int i = 0; i < TM / 4; ++i) a[i] = a_tile[k][row + i * LANES_M];
#pragma unroll
            for (int j = 0; j < TN / 4; ++j) b[j] = b_tile[k][col + j * LANES_N];
            const float* rows = &a[0].x;
            const float* columns = &b[0].x;
#pragma unroll
            for (int i = 0; i < TM; ++i) {
#pragma unroll
                for (int j = 0; j < TN; ++j) acc[i][j] = fmaf(rows[i], columns[j], acc[i][j]);
            }
        }
        row += step;  // by zero, which the compiler does not know
        col += step;
    }

    float4 sum = {};
#pragma unroll
    for (int i = 0; i < TM; ++i) {
#pragma unroll
        for (int j = 0; j < TN; j += 4) {
            add(sum, make_float4(acc[i][j], acc[i][j + 1], acc[i][j + 2], acc[i][j + 3]));
        }
    }
    out[blockIdx.x * BLOCK + threadIdx.x] = sum;
}
