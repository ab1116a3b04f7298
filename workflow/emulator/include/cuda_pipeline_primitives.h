// The asynchronous copies of CUDA's <cuda_pipeline_primitives.h>, for the emulator.
#pragma once
#include "emulated_cuda.h"

static inline __attribute__((always_inline)) void __pipeline_memcpy_async(
    void* shared, const void* global, size_t bytes, size_t zero_fill = 0) {
  emulated_cp_async(shared, global, (unsigned)bytes, (unsigned)(bytes - zero_fill));
}
static inline __attribute__((always_inline)) void __pipeline_commit() { emulated_cp_async_commit(); }
static inline __attribute__((always_inline)) void __pipeline_wait_prior(unsigned pending) {
  emulated_cp_async_wait(pending);
}
