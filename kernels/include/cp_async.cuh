// Asynchronous copies from global to shared memory (cp.async, compute capability 8.0 and newer).
//
// The copy needs no register on its way and runs while the thread goes on. A thread's copies since
// its last commit form a group; waiting for all but the newest N groups makes the older ones visible
// to the thread itself, and a barrier makes them visible to the block.
#pragma once

// Copies BYTES (4, 8 or 16; both addresses aligned to it).
template <int BYTES>
__device__ __forceinline__ void cp_async(float* shared, const float* global) {
#if defined(LADDER_EMULATOR)
    emulated_cp_async(shared, global, BYTES, BYTES);
#else
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    if constexpr (BYTES == 16) {  // .cg: only 16-byte copies may pass by L1
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(global)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(global),
                     "n"(BYTES) : "memory");
    }
#endif
}

// Ends the group of the copies so far; an empty group is allowed and complete at once.
__device__ __forceinline__ void cp_async_commit() {
#if defined(LADDER_EMULATOR)
    emulated_cp_async_commit();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most PENDING of this thread's groups are still under way.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait() {
#if defined(LADDER_EMULATOR)
    emulated_cp_async_wait(PENDING);
#else
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}
