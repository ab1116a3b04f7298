// Ceiling of reading: 16-byte global loads from L1, L2 or DRAM; where they end is a matter of what
// the launch reads.
//
//   L1    L1 = 1: each block reads its own 32 KiB at every trip (step 0)
//   L2    L1 = 0: loads that pass by L1; all blocks together go round a part of what L2 holds
//   DRAM  L1 = 0: the same round an array many times as large as L2
//
// L1  whether the loads may hit in L1

#include "ceiling.cuh"

__device__ inline float4 load(const float4* address) { return L1 ? *address : __ldcg(address); }

extern "C" __global__ void __launch_bounds__(THREADS)
ceiling(const float4* in, float4* out, int trips, int step, int chunks) {
    int chunk = blockIdx.x % chunks;
    float4 sum = {};

#pragma unroll 1
    for (int trip = 0; trip < trips; ++trip) {
        const float4* from = in + static_cast<size_t>(chunk) * CHUNK + threadIdx.x;
        float4 value[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; ++i) value[i] = load(from + i * THREADS);
#pragma unroll
        for (int i = 0; i < LOADS; ++i) add(sum, value[i]);
        chunk = next_chunk(chunk, step, chunks);
    }

    out[blockIdx.x * THREADS + threadIdx.x] = sum;
}
