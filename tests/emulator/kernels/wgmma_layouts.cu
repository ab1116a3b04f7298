// C = A B for 64 x 64 x 64 by wgmma with FP16 operands in every layout that shared memory may have: any
// swizzle, K-major or not. One warpgroup writes the tiles itself and is done after one round.
//
// ONLY          one width of the next, the others left out of the code
// width         of the swizzle: 0, 32, 64 or 128 bytes
// a_transposed  1: rows of A's tile hold elements along m, those of B's along n; 0: along k
// b_transposed
// a_registers   1: A's fragments are built in registers; 0: A is read from shared memory
// fault         plants one
#include "split_f16.cuh"
#include "wgmma.cuh"
constexpr int SIDE = 64;

// The byte of an element in a tile of 64 lines (rows of A, columns of B) times 64 along k. A tile is made
// of panels, as long as 64 rows of S bytes: K-major rows are lines, others are places along k.
template <Swizzle Mode, bool Transposed>
static __device__ unsigned place(int line, int k) {
    constexpr unsigned row_bytes = Mode == SWIZZLE_NONE ? 16 : Mode;
    const unsigned row = Transposed ? k : line, byte = 2 * (Transposed ? line : k);
    return byte / row_bytes * SIDE * row_bytes + swizzled<Mode>(row * row_bytes + byte % row_bytes);
}

template <Swizzle Mode, bool Transposed>
static __device__ void write_tile(unsigned char* tile, const float* matrix, int line_pitch, int k_pitch) {
    for (int i = 2 * threadIdx.x; i < SIDE * SIDE; i += 256) {  // two neighbours of one row
        const int line = Transposed ? i % SIDE : i / SIDE, k = Transposed ? i / SIDE : i % SIDE;
        const float* at = matrix + line * line_pitch + k * k_pitch;
        *reinterpret_cast<unsigned*>(tile + place<Mode, Transposed>(line, k)) =
            pack_f16(at[0], at[Transposed ? line_pitch : k_pitch]);
    }
}

template <Swizzle Mode, bool Transposed>
static __device__ WgmmaDescriptor descriptor(const unsigned char* tile, int k) {
    constexpr unsigned row_bytes = Mode == SWIZZLE_NONE ? 16 : Mode, panel = SIDE * row_bytes;
    constexpr unsigned next_8_rows = 8 * row_bytes;
    if constexpr (Transposed && Mode == SWIZZLE_NONE) {
        return wgmma_descriptor<Mode>(tile + k * row_bytes, next_8_rows, panel);
    } else if constexpr (Transposed) {
        return wgmma_descriptor<Mode>(tile + k * row_bytes, panel, next_8_rows);
    } else if constexpr (Mode == SWIZZLE_NONE) {
        return wgmma_descriptor<Mode>(tile + 2 * k / row_bytes * panel, panel, next_8_rows);
    } else {
        return advanced(k_major_descriptor<Mode>(tile + 2 * k / row_bytes * panel), 2 * k % row_bytes);
    }
}

template <Swizzle Mode, bool ATransposed, bool BTransposed>
static __device__ void multiply(const float* A, const float* B, float* C, bool a_registers,
                                unsigned char* a_tile, unsigned char* b_tile, bool fault) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    write_tile<Mode, ATransposed>(a_tile, A, SIDE, 1);
    write_tile<Mode, BTransposed>(b_tile, B, 1, SIDE);
    fence_proxy_async();
    __syncthreads();
    unsigned fragments[SIDE / 16][4];
#pragma unroll
    for (int k = 0; k < SIDE / 16; ++k) {
        for (int i = 0; i < 4; ++i) {
            const float* at = A + (16 * warp + g + i % 2 * 8) * SIDE + 16 * k + 2 * t + i / 2 * 8;
            fragments[k][i] = pack_f16(at[0], at[1]);
        }
        keep_registers(fragments[k]);
    }
    float sum[SIDE / 2];
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < SIDE / 16; ++k) {
        const WgmmaDescriptor b = descriptor<Mode, BTransposed>(b_tile, 16 * k);
        if (a_registers) {
            wgmma_f16<BTransposed>(sum, fragments[k], b, k > 0);
        } else {
            wgmma_f16<ATransposed, BTransposed>(sum, descriptor<Mode, ATransposed>(a_tile, 16 * k), b, k > 0);
        }
    }
    wgmma_commit();
    if (fault) {
        __syncthreads();  // ends no product
        if (threadIdx.x == 70) b_tile[0] = 0;  // fault: still being read
    }
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < SIDE / 2; ++i)
        C[(16 * warp + g + i / 2 % 2 * 8) * SIDE + i / 4 * 8 + 2 * t + i % 2] = sum[i];
}

template <Swizzle Mode>
static __device__ void choose(const float* A, const float* B, float* C, int a_transposed, int b_transposed,
                              int a_registers, unsigned char* a_tile, unsigned char* b_tile, int fault) {
    if (a_transposed && b_transposed) {
        multiply<Mode, true, true>(A, B, C, a_registers, a_tile, b_tile, fault);
    } else if (a_transposed) {
        multiply<Mode, true, false>(A, B, C, a_registers, a_tile, b_tile, fault);
    } else if (b_transposed) {
        multiply<Mode, false, true>(A, B, C, a_registers, a_tile, b_tile, fault);
    } else {
        multiply<Mode, false, false>(A, B, C, a_registers, a_tile, b_tile, fault);
    }
}

extern "C" __global__ void __launch_bounds__(128)
gemm(const float* A, const float* B, float* C, int width, int a_transposed, int b_transposed,
     int a_registers, int fault) {
    __shared__ alignas(1024) unsigned char a_tile[2 * SIDE * SIDE], b_tile[2 * SIDE * SIDE];
#if defined(ONLY)
    choose<static_cast<Swizzle>(ONLY)>(A, B, C, a_transposed, b_transposed, a_registers, a_tile, b_tile, fault);
#else
    if (width == 0) choose<SWIZZLE_NONE>(A, B, C, a_transposed, b_transposed, a_registers, a_tile, b_tile, fault);
    if (width == 32) choose<SWIZZLE_32B>(A, B, C, a_transposed, b_transposed, a_registers, a_tile, b_tile, fault);
    if (width == 64) choose<SWIZZLE_64B>(A, B, C, a_transposed, b_transposed, a_registers, a_tile, b_tile, fault);
    if (width == 128) choose<SWIZZLE_128B>(A, B, C, a_transposed, b_transposed, a_registers, a_tile, b_tile, fault);
#endif
}
