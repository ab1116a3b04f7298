// Flags in global memory by which one warp hands data to a warp of another block.
//
// Raising releases what the warp wrote before (after __syncwarp(), what all its lanes wrote); an await
// acquires it. The one that waits takes the flag down again, so that memory which was zero at first is
// zero after every launch. Waiting is safe only for blocks that started earlier: those with a lower index.
#pragma once

#if defined(LADDER_EMULATOR)

static __device__ __forceinline__ void flag_raise(unsigned* flag) { emulated_flag_raise(flag); }
static __device__ __forceinline__ void flag_await(unsigned* flag) { emulated_flag_await(flag); }

#else

static __device__ __forceinline__ void flag_raise(unsigned* flag) {
    asm volatile("st.release.gpu.global.u32 [%0], 1;" :: "l"(flag) : "memory");
}

// Given up after 2^31 clocks, as mbarrier_wait is: a lost flag ends as a wrong result, not as a hang.
static __device__ __forceinline__ void flag_await(unsigned* flag) {
    const long long start = clock64();
    unsigned raised;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(raised) : "l"(flag) : "memory");
    } while (raised == 0 && clock64() - start < (1ll << 31));
    asm volatile("st.relaxed.gpu.global.u32 [%0], 0;" :: "l"(flag) : "memory");
}

#endif
