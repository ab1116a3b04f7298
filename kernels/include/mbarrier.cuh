// Barriers in shared memory (sm_90 and later). A phase completes when all expected arrivals have come
// and all bytes announced by arrive_expect_tx have landed; then the next one begins. An arrival
// releases what its thread did before, a completed wait acquires it.
#pragma once

typedef unsigned long long Mbarrier;  // opaque, in shared memory

#if defined(LADDER_EMULATOR)

static __device__ __forceinline__ void mbarrier_init(Mbarrier* barrier, unsigned arrivals) {
    emulated_mbarrier_init(barrier, arrivals);
}
static __device__ __forceinline__ void mbarrier_init_fence() {}
static __device__ __forceinline__ void mbarrier_arrive(Mbarrier* barrier) {
    emulated_mbarrier_arrive(barrier, 0);
}
static __device__ __forceinline__ void mbarrier_arrive_expect_tx(Mbarrier* barrier, unsigned bytes) {
    emulated_mbarrier_arrive(barrier, bytes);
}
static __device__ __forceinline__ void mbarrier_wait(Mbarrier* barrier, unsigned parity) {
    emulated_mbarrier_wait(barrier, parity);
}

#else

// PTX names shared memory by 32-bit addresses of its own window.
static __device__ __forceinline__ unsigned mbarrier_address(const Mbarrier* barrier) {
    return static_cast<unsigned>(__cvta_generic_to_shared(barrier));
}

// By one thread; then mbarrier_init_fence() by the same thread and __syncthreads() by all.
static __device__ __forceinline__ void mbarrier_init(Mbarrier* barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 :: "r"(mbarrier_address(barrier)), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the copy engine and to the other blocks of a cluster.
static __device__ __forceinline__ void mbarrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void mbarrier_arrive(Mbarrier* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(mbarrier_address(barrier)) : "memory");
}

// Arrives, and adds `bytes` to what the current phase waits for.
static __device__ __forceinline__ void mbarrier_arrive_expect_tx(Mbarrier* barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(mbarrier_address(barrier)), "r"(bytes) : "memory");
}

// One try: sleeps until the phase completes, or for 10 ms at most. The GPU's own limit is so short that
// a thread which mostly waits, as a producer does, would ask again and again.
static __device__ __forceinline__ bool mbarrier_try_wait(const Mbarrier* barrier, unsigned parity) {
    unsigned completed;
    asm volatile("{\n\t"
                 ".reg .pred complete;\n\t"
                 "mbarrier.try_wait.parity.shared::cta.b64 complete, [%1], %2, %3;\n\t"
                 "selp.u32 %0, 1, 0, complete;\n\t"
                 "}"
                 : "=r"(completed)
                 : "r"(mbarrier_address(barrier)), "r"(parity), "r"(10000000) : "memory");
    return completed != 0;
}

// Waits until the phase of this parity (0 for the first, then 1, 0, ...) has completed. On a fresh
// barrier parity 1 counts as completed.
//
// The wait is given up after 2^31 clocks, about a second and more than any wait takes, even under a tool
// that slows every access: a lost arrival then ends as a wrong result and not as a GPU that hangs. It
// must not end in __trap(): with one in the kernel, ptxas ignores setmaxnreg.
static __device__ __forceinline__ void mbarrier_wait(Mbarrier* barrier, unsigned parity) {
    if (mbarrier_try_wait(barrier, parity)) return;
    const long long start = clock64();
    #pragma unroll 1
    while (!mbarrier_try_wait(barrier, parity)) {
        if (clock64() - start > (1ll << 31)) break;
    }
}

#endif
