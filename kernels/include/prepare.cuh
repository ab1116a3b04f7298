// The copies of A and B that a launch of the kind `tensor_maps` makes before `gemm`.
//
// A tensor map (TMA) describes a matrix whose rows start at multiples of 16 bytes. The rows of A and B
// do so only where K and N are multiples of 4; for any other size the launch maps a copy with padded
// rows. And a kernel that gives a thread neighbouring rows of C wants the elements of A that lie below
// each other side by side, which only a transposed A offers to 16-byte reads. Both copies move each
// element once through memory, against K multiplications with it.
//
// The launch decides which of the two runs and with what grid: workflow/ladder/tensor_maps.py, which
// mirrors the tile sizes below. `pitch` is the distance of two rows of the copy, in floats. Indices are
// size_t, since a matrix may come close to 2^31 elements and the padding beyond. Along y a block walks
// on where the grid ends.
#pragma once

constexpr int TRANSPOSE_TILE = 32;  // side of the tile that a block of 32 x 8 threads turns at a time
constexpr int PAD_COLUMNS = 128;    // columns that a block of 32 x 8 threads copies, of 8 rows at a time

// T (K x M) = A (M x K) transposed. A warp reads a row of the tile and writes a column of it, so that
// both sides of the copy touch 128 consecutive bytes.
extern "C" __global__ void __launch_bounds__(256)
transpose_a(const float* __restrict__ A, float* __restrict__ T, int M, int K, int pitch) {
    // One column more than needed: the 32 floats of a column then lie in 32 banks.
    __shared__ float tile[TRANSPOSE_TILE][TRANSPOSE_TILE + 1];

    const size_t rows = M, columns = K;
    const size_t first_row = static_cast<size_t>(blockIdx.x) * TRANSPOSE_TILE;
    for (size_t first_column = static_cast<size_t>(blockIdx.y) * TRANSPOSE_TILE; first_column < columns;
         first_column += static_cast<size_t>(gridDim.y) * TRANSPOSE_TILE) {
        const size_t column = first_column + threadIdx.x;
#pragma unroll
        for (int i = 0; i < TRANSPOSE_TILE; i += 8) {  // four loads under way in each thread
            const size_t row = first_row + threadIdx.y + i;
            if (row < rows && column < columns) {
                tile[threadIdx.y + i][threadIdx.x] = A[row * columns + column];
            }
        }
        __syncthreads();  // the tile is complete

        const size_t row = first_row + threadIdx.x;
#pragma unroll
        for (int i = 0; i < TRANSPOSE_TILE; i += 8) {
            const size_t turned = first_column + threadIdx.y + i;
            if (turned < columns && row < rows) {
                T[turned * pitch + row] = tile[threadIdx.x][threadIdx.y + i];
            }
        }
        __syncthreads();  // nobody reads the tile any more
    }
}

// out = in (rows x columns), its rows `pitch` apart; the padding stays as it is.
extern "C" __global__ void __launch_bounds__(256)
pad_rows(const float* __restrict__ in, float* __restrict__ out, int rows, int columns, int pitch) {
    const size_t last_row = rows, last_column = columns;
    const size_t first = static_cast<size_t>(blockIdx.x) * PAD_COLUMNS + threadIdx.x;
    for (size_t row = static_cast<size_t>(blockIdx.y) * 8 + threadIdx.y; row < last_row;
         row += static_cast<size_t>(gridDim.y) * 8) {
#pragma unroll
        for (int i = 0; i < PAD_COLUMNS; i += 32) {
            const size_t column = first + i;
            if (column < last_column) out[row * pitch + column] = in[row * last_column + column];
        }
    }
}
