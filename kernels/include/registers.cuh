// Moving registers between the warpgroups of a block (setmaxnreg): a warpgroup that only starts copies
// gives its registers to those that compute. All warps of a warpgroup must execute it. COUNT is the new
// limit per thread, a multiple of 8 from 24 to 256.
//
// The instruction belongs to the architecture-specific targets (sm_90a, sm_100a, sm_120a and their
// relatives). For any other target both functions are empty: the kernel keeps its registers.
#pragma once

#if !defined(LADDER_EMULATOR) &&                                                                      \
    (defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(__CUDA_ARCH_FEAT_SM100_ALL) ||                     \
     defined(__CUDA_ARCH_FEAT_SM120_ALL) || defined(__CUDA_ARCH_FAMILY_SPECIFIC__))

// Waits until the block has so many registers to give.
template <int COUNT>
static __device__ __forceinline__ void raise_register_limit() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(COUNT));
}
template <int COUNT>
static __device__ __forceinline__ void lower_register_limit() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(COUNT));
}

#else

template <int COUNT>
static __device__ __forceinline__ void raise_register_limit() {}
template <int COUNT>
static __device__ __forceinline__ void lower_register_limit() {}

#endif
