// Copies of a matrix tile by the Tensor Memory Accelerator (sm_90 and later): one thread asks, the
// copy engine computes all addresses and reports the landed bytes to an mbarrier.
#pragma once
#include "mbarrier.cuh"

// What cuTensorMapEncodeTiled fills in: a CUtensorMap, whose header NVRTC does not have. A kernel takes
// it as `const __grid_constant__ TensorMap`, so that it lies in constant memory where the engine reads.
struct alignas(64) TensorMap { unsigned long long opaque[16]; };

#if defined(LADDER_EMULATOR)

static __device__ __forceinline__ void tma_load_2d(void* shared, const TensorMap* map, int column, int row,
                                                   Mbarrier* barrier) {
    emulated_tma_load_2d(shared, map, column, row, barrier);
}
static __device__ __forceinline__ void tma_prefetch_descriptor(const TensorMap*) {}

#else

// Starts the copy of the map's box whose first element is (row, column) to `shared` (128-byte aligned,
// rows of the box without gaps). Elements outside the matrix arrive as zeros and count as bytes, so the
// barrier must always expect the whole box.
//
// shared::cta says that the copy goes to this block. With shared::cluster, which older PTX asks for, the
// code for sm_120 calls a routine of the driver, and ptxas then ignores setmaxnreg.
static __device__ __forceinline__ void tma_load_2d(void* shared, const TensorMap* map, int column, int row,
                                                   Mbarrier* barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3}], [%4];"
                 :: "r"(static_cast<unsigned>(__cvta_generic_to_shared(shared))), "l"(map), "r"(column),
                    "r"(row), "r"(mbarrier_address(barrier)) : "memory");
}

// Fetches the map itself before its first use, which then need not wait for it.
static __device__ __forceinline__ void tma_prefetch_descriptor(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory");
}

#endif
