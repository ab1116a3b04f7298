// The order in which TMA lays the rows of a tile and wgmma reads them, so that neither meets bank conflicts.
//
// A swizzle of W = 32, 64 or 128 bytes is for tiles whose rows are W bytes long, one after the other. It
// permutes the 16-byte chunks of each row, by the row's number: eight rows that a plain layout would start
// in one bank then lie in all of them. The permutation is one of addresses, so a tile begins at a multiple
// of 8 * W bytes, where the pattern starts: `__shared__ alignas(1024) ...` for 128 bytes.
#pragma once

enum Swizzle : unsigned {  // the width in bytes; in a manifest "none", "32B", "64B" and "128B"
    SWIZZLE_NONE = 0,
    SWIZZLE_32B = 32,
    SWIZZLE_64B = 64,
    SWIZZLE_128B = 128,
};

// Where the byte lies that a plain layout would put at `offset`, both counted from the tile's first byte:
// the element (row, column) of a tile of floats is at swizzled<S>(row * S + 4 * column).
template <Swizzle Mode>
static __device__ __forceinline__ constexpr unsigned swizzled(unsigned offset) {
    return Mode == SWIZZLE_NONE ? offset : offset ^ (((offset >> 7) & (Mode / 16 - 1)) << 4);
}
