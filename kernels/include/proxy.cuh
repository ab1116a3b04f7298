// Ordinary accesses and those of the copy engine and of wgmma reach shared memory on two ways, the
// generic and the async proxy (sm_90 and later).
#pragma once

// Makes what this thread has written to shared memory visible to the async proxy. By the thread that has
// written (cp.async included, after its wait), before the barrier behind which a wgmma reads it. What
// TMA has written needs none.
static __device__ __forceinline__ void fence_proxy_async() {
#if defined(LADDER_EMULATOR)
    emulated_fence_proxy_async();
#else
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
