// Three warps hand data on by mbarriers: the first writes s and y, the second waits for it and writes t,
// the third waits for the second and reads all three. What the first wrote reaches the third through the
// second. y[32 + i] = 3 x[i] + 1. FAULT plants one.
#include "mbarrier.cuh"
#ifndef FAULT
#define FAULT 0
#endif

extern "C" __global__ void chain(const float* x, float* y) {
    __shared__ float s[32], t[32];
    __shared__ Mbarrier first, second;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        mbarrier_init(&first, FAULT == 3 ? 1 : 32);
        mbarrier_init(&second, 1);
        mbarrier_init_fence();
    }
    __syncthreads();
    if (warp == 0) {
#if FAULT == 2
        mbarrier_arrive(&first);
#endif
        s[lane] = x[lane];  // writes s
        y[lane] = x[lane];  // writes y
#if FAULT == 3
        if (lane == 0) mbarrier_arrive(&first);  // for lanes that nothing orders before this one
#elif FAULT != 2
        mbarrier_arrive(&first);
#endif
    } else if (warp == 1) {
#if FAULT != 1
        mbarrier_wait(&first, 0);
#endif
        t[lane] = 1.0f;
        __syncwarp();
        if (lane == 0) mbarrier_arrive(&second);
    } else {
        mbarrier_wait(&second, 0);
        y[32 + lane] = 2.0f * s[31 - lane]  // reads s
                       + t[31 - lane]
                       + y[31 - lane];  // reads y
    }
}
