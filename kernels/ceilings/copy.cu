// Ceiling of DRAM as most kernels meet it: an array copied to another in 16-byte loads and stores,
// both many times as large as L2.

#include "ceiling.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
ceiling(const float4* in, float4* out, int trips, int step, int chunks) {
    int chunk = blockIdx.x % chunks;

#pragma unroll 1
    for (int trip = 0; trip < trips; ++trip) {
        const size_t first = static_cast<size_t>(chunk) * CHUNK + threadIdx.x;
        float4 value[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; ++i) value[i] = in[first + i * THREADS];
#pragma unroll
        for (int i = 0; i < LOADS; ++i) out[first + i * THREADS] = value[i];
        chunk = next_chunk(chunk, step, chunks);
    }
}
