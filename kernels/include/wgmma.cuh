// Products of matrices by a warpgroup on the tensor cores of Hopper (wgmma, sm_90a only).
//
// Four warps, the first of them number 0, 4, 8, ... of the block, add a product of A (64 x k) and B (k x N)
// to a sum (64 x N) that lies in their registers; k is 8 for TF32 and 16 for FP16, N is twice the length of
// a thread's array of sums. B is read from shared memory, A from there or from registers. All 128 threads
// execute every function below together. The products run while the threads go on:
//
//     wgmma_fence();                 // the registers of sums and of A are complete
//     wgmma_tf32(sum, a, b, true);   // several; those on one sum follow each other
//     wgmma_commit();                // ends a group
//     wgmma_wait<0>();               // sums may be read, A's registers and shared memory written again
//
// Fragments, with g = lane / 4, t = lane % 4 and w = warp % 4: the registers of A are those of mma.cuh for
// rows 16 w to 16 w + 15, and sum[4 j + i] is sum[i] there for the same rows and columns 8 j to 8 j + 7:
// row 16 w + g + 8 (i / 2), column 8 j + 2 t + i % 2.
//
// Operands in shared memory. K-major means that elements along k are neighbours: A by rows, B as its
// transpose, N x k. TF32 operands must be so. FP16 operands may also be "MN-major" (A as its transpose,
// B by rows), which TRANSPOSED says. A descriptor names the tile, see below. What a thread has written
// there needs fence_proxy_async() (proxy.cuh); tiles of TMA need none.
//
// Traps.
// - The sums are "+f" operands of every instruction, so that the compiler knows them in use. Any other
//   access between the first product and the wait makes ptxas insert waits (warning C7510 and its kin).
// - Registers of A must be finished before the fence: if a part of their computation sinks behind it, ptxas
//   inserts another warpgroup.arrive (C7519). keep_registers(a) before wgmma_fence() holds them there.
// - Loops around the products are unrolled fully; a sum whose index is not a constant goes to local memory.
#pragma once
#include "proxy.cuh"
#include "swizzle.cuh"

#if !defined(LADDER_EMULATOR) && defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "wgmma.cuh: these instructions exist for sm_90a only"
#endif

typedef unsigned long long WgmmaDescriptor;

// A tile in shared memory: an array of atoms, each 8 rows of S bytes, or of 16 bytes without a swizzle. A
// row holds elements along k of one row of A or column of B if the tile is K-major, else elements along m
// or n of one k. The atoms that one product reads lie apart, bytes:
//
//                     swizzled (row of S bytes)                    not swizzled (row of 16 bytes)
//   K-major   stride  next 8 rows of A or columns of B             the same
//             leading not used: one row holds all k of a product   next 16 bytes along k
//   MN-major  stride  next 8 along k                               next 8 elements along m or n
//             leading next S / 2 elements along m or n             next 8 along k
//
// The first atom begins at a multiple of 8 S bytes. Both distances are multiples of 16, below 2^18.
template <Swizzle Mode>
static __device__ __forceinline__ WgmmaDescriptor wgmma_descriptor(const void* tile, unsigned leading_bytes,
                                                                   unsigned stride_bytes) {
    constexpr WgmmaDescriptor code =
        Mode == SWIZZLE_128B ? 1 : Mode == SWIZZLE_64B ? 2 : Mode == SWIZZLE_32B ? 3 : 0;
#if defined(LADDER_EMULATOR)
    emulated_wgmma_tile(tile);
#endif
    const WgmmaDescriptor address = static_cast<unsigned>(__cvta_generic_to_shared(tile));
    return (address & 0x3ffff) >> 4 | static_cast<WgmmaDescriptor>(leading_bytes >> 4) << 16 |
           static_cast<WgmmaDescriptor>(stride_bytes >> 4) << 32 | code << 62;
}

// A swizzled K-major tile as TMA delivers it: a box of S bytes of k, its rows one after the other.
template <Swizzle Mode>
static __device__ __forceinline__ WgmmaDescriptor k_major_descriptor(const void* tile) {
    static_assert(Mode != SWIZZLE_NONE, "the rows of a tile that is not swizzled are 16 bytes long");
    return wgmma_descriptor<Mode>(tile, 16, 8 * Mode);
}

// The same tile, `bytes` further (a multiple of 16): 32 bytes along a K-major row are the next product's k.
static __device__ __forceinline__ WgmmaDescriptor advanced(WgmmaDescriptor tile, unsigned bytes) {
    return tile + (bytes >> 4);
}

// The registers of a finished A (or of sums, by the second function): what computes them stays in front.
template <int COUNT>
static __device__ __forceinline__ void keep_registers(unsigned (&registers)[COUNT]) {
#if !defined(LADDER_EMULATOR)
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+r"(registers[i]));
#endif
}
template <int COUNT>
static __device__ __forceinline__ void keep_registers(float (&registers)[COUNT]) {
#if !defined(LADDER_EMULATOR)
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(registers[i]));
#endif
}

#if defined(LADDER_EMULATOR)

// `line` is the caller's: threads that meet at different instructions are found by it.
static __device__ __forceinline__ void wgmma_fence(unsigned line = __builtin_LINE()) {
    emulated_wgmma_fence(line);
}
static __device__ __forceinline__ void wgmma_commit(unsigned line = __builtin_LINE()) {
    emulated_wgmma_commit(line);
}
template <int PENDING>
static __device__ __forceinline__ void wgmma_wait(unsigned line = __builtin_LINE()) {
    emulated_wgmma_wait(PENDING, line);
}
template <int SUMS>
static __device__ __forceinline__ void wgmma_tf32(float (&sum)[SUMS], const unsigned (&a)[4],
                                                  WgmmaDescriptor b, bool accumulate,
                                                  unsigned line = __builtin_LINE()) {
    emulated_wgmma(sum, SUMS, a, 0, b, accumulate, 0, 0, 0, line);
}
template <int SUMS>
static __device__ __forceinline__ void wgmma_tf32(float (&sum)[SUMS], WgmmaDescriptor a, WgmmaDescriptor b,
                                                  bool accumulate, unsigned line = __builtin_LINE()) {
    emulated_wgmma(sum, SUMS, nullptr, a, b, accumulate, 0, 0, 0, line);
}
template <bool B_TRANSPOSED = false, int SUMS>
static __device__ __forceinline__ void wgmma_f16(float (&sum)[SUMS], const unsigned (&a)[4],
                                                 WgmmaDescriptor b, bool accumulate,
                                                 unsigned line = __builtin_LINE()) {
    emulated_wgmma(sum, SUMS, a, 0, b, accumulate, 1, 0, B_TRANSPOSED, line);
}
template <bool A_TRANSPOSED = false, bool B_TRANSPOSED = false, int SUMS>
static __device__ __forceinline__ void wgmma_f16(float (&sum)[SUMS], WgmmaDescriptor a, WgmmaDescriptor b,
                                                 bool accumulate, unsigned line = __builtin_LINE()) {
    emulated_wgmma(sum, SUMS, nullptr, a, b, accumulate, 1, A_TRANSPOSED, B_TRANSPOSED, line);
}

#else

// Orders accesses of registers before this by the threads themselves: before the first product, and again
// wherever sums or A's registers were touched since.
static __device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Ends the group of the products so far.
static __device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most PENDING of the warpgroup's groups are still under way.
template <int PENDING>
static __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory");
}

// The functions are, for SUMS = 32, 64, 96, 128 (N = 64, 128, 192, 256):
//
//   wgmma_tf32(float (&sum)[SUMS], const unsigned (&a)[4], WgmmaDescriptor b, bool accumulate)
//   wgmma_tf32(float (&sum)[SUMS], WgmmaDescriptor a, WgmmaDescriptor b, bool accumulate)
//   wgmma_f16<B_TRANSPOSED = false>(float (&sum)[SUMS], const unsigned (&a)[4], WgmmaDescriptor b, ...)
//   wgmma_f16<A_TRANSPOSED = false, B_TRANSPOSED = false>(float (&sum)[SUMS], WgmmaDescriptor a, ...)
//
// sum = A B + sum, or A B alone without `accumulate`, which saves setting sums to zero. PTX wants every
// register of a sum by name, hence the macros: WGMMA_NAMES_* name the operands of 32 sums in the
// instruction's text, WGMMA_SUMS_* list them for the compiler.
#define WGMMA_NAMES_0                                                                              \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_NAMES_32                                                                             \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_NAMES_64                                                                             \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "             \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define WGMMA_NAMES_96                                                                             \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define WGMMA_SUMS_8(i)                                                                            \
    "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3]), "+f"(sum[i + 4]),          \
        "+f"(sum[i + 5]), "+f"(sum[i + 6]), "+f"(sum[i + 7])
#define WGMMA_SUMS_32(i) WGMMA_SUMS_8(i), WGMMA_SUMS_8(i + 8), WGMMA_SUMS_8(i + 16), WGMMA_SUMS_8(i + 24)
#define WGMMA_SUMS_64 WGMMA_SUMS_32(0), WGMMA_SUMS_32(32)
#define WGMMA_SUMS_96 WGMMA_SUMS_64, WGMMA_SUMS_32(64)
#define WGMMA_SUMS_128 WGMMA_SUMS_96, WGMMA_SUMS_32(96)

// SHAPE and TYPES as in the instruction's name; A, B, ACCUMULATE and TRANSPOSED are names of operands.
#define WGMMA_TEXT(SHAPE, TYPES, NAMES, A, B, ACCUMULATE, TRANSPOSED)                              \
    "{\n\t"                                                                                        \
    ".reg .pred accumulate;\n\t"                                                                   \
    "setp.ne.b32 accumulate, " ACCUMULATE ", 0;\n\t"                                               \
    "wgmma.mma_async.sync.aligned." SHAPE ".f32." TYPES " {" NAMES "}, " A ", " B                  \
    ", accumulate, 1, 1" TRANSPOSED ";\n\t"                                                        \
    "}"

// The four functions for one N. P0 to P5 name the operands after the sums.
#define WGMMA_FUNCTIONS(N, NAMES, SUMS, P0, P1, P2, P3, P4, P5, P6)                                \
    static __device__ __forceinline__ void wgmma_tf32(float (&sum)[N / 2], const unsigned (&a)[4], \
                                                      WgmmaDescriptor b, bool accumulate) {        \
        asm volatile(WGMMA_TEXT("m64n" #N "k8", "tf32.tf32", NAMES,                                \
                                "{" P0 ", " P1 ", " P2 ", " P3 "}", P4, P5, "")                    \
                     : SUMS                                                                        \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                         \
                       "r"(static_cast<int>(accumulate)));                                         \
    }                                                                                              \
    static __device__ __forceinline__ void wgmma_tf32(float (&sum)[N / 2], WgmmaDescriptor a,      \
                                                      WgmmaDescriptor b, bool accumulate) {        \
        asm volatile(WGMMA_TEXT("m64n" #N "k8", "tf32.tf32", NAMES, P0, P1, P2, "")                \
                     : SUMS                                                                        \
                     : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));                         \
    }                                                                                              \
    template <bool B_TRANSPOSED = false>                                                           \
    static __device__ __forceinline__ void wgmma_f16(float (&sum)[N / 2], const unsigned (&a)[4],  \
                                                     WgmmaDescriptor b, bool accumulate) {         \
        asm volatile(WGMMA_TEXT("m64n" #N "k16", "f16.f16", NAMES,                                 \
                                "{" P0 ", " P1 ", " P2 ", " P3 "}", P4, P5, ", " P6)               \
                     : SUMS                                                                        \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                         \
                       "r"(static_cast<int>(accumulate)), "n"(static_cast<int>(B_TRANSPOSED)));    \
    }                                                                                              \
    template <bool A_TRANSPOSED = false, bool B_TRANSPOSED = false>                                \
    static __device__ __forceinline__ void wgmma_f16(float (&sum)[N / 2], WgmmaDescriptor a,       \
                                                     WgmmaDescriptor b, bool accumulate) {         \
        asm volatile(WGMMA_TEXT("m64n" #N "k16", "f16.f16", NAMES, P0, P1, P2, ", " P3 ", " P4)    \
                     : SUMS                                                                        \
                     : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)),                          \
                       "n"(static_cast<int>(A_TRANSPOSED)), "n"(static_cast<int>(B_TRANSPOSED)));  \
    }

WGMMA_FUNCTIONS(64, WGMMA_NAMES_0, WGMMA_SUMS_32(0), "%32", "%33", "%34", "%35", "%36", "%37", "%38")
WGMMA_FUNCTIONS(128, WGMMA_NAMES_0 ", " WGMMA_NAMES_32, WGMMA_SUMS_64, "%64", "%65", "%66", "%67", "%68",
                "%69", "%70")
WGMMA_FUNCTIONS(192, WGMMA_NAMES_0 ", " WGMMA_NAMES_32 ", " WGMMA_NAMES_64, WGMMA_SUMS_96, "%96", "%97",
                "%98", "%99", "%100", "%101", "%102")
WGMMA_FUNCTIONS(256, WGMMA_NAMES_0 ", " WGMMA_NAMES_32 ", " WGMMA_NAMES_64 ", " WGMMA_NAMES_96,
                WGMMA_SUMS_128, "%128", "%129", "%130", "%131", "%132", "%133", "%134")

#undef WGMMA_FUNCTIONS
#undef WGMMA_TEXT
#undef WGMMA_SUMS_128
#undef WGMMA_SUMS_96
#undef WGMMA_SUMS_64
#undef WGMMA_SUMS_32
#undef WGMMA_SUMS_8
#undef WGMMA_NAMES_96
#undef WGMMA_NAMES_64
#undef WGMMA_NAMES_32
#undef WGMMA_NAMES_0

#endif
