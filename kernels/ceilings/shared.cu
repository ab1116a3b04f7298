// Ceiling of shared memory: 16-byte loads without bank conflicts.
//
//   SHARING = 1  every lane of a warp reads an address of its own: 512 bytes, four wavefronts
//   SHARING = 2  lanes l and l ^ 1 read one address: 256 bytes, two wavefronts that serve 512
//
// SHARING  lanes that read one address

#include "ceiling.cuh"

constexpr int LANES = 32;
constexpr int REPEATS = 8;     // loads of a thread in a trip
constexpr int ELEMENTS = 1024;  // 16 KiB

extern "C" __global__ void __launch_bounds__(THREADS)
ceiling(const float4* in, float4* out, int trips, int step, int chunks) {
    __shared__ float4 tile[ELEMENTS];
    for (int i = threadIdx.x; i < ELEMENTS; i += THREADS) tile[i] = in[i];
    __syncthreads();

    unsigned at = threadIdx.x % LANES / SHARING;
    float4 sum = {};
#pragma unroll 1
    for (int trip = 0; trip < trips; ++trip) {
        float4 value[REPEATS];
#pragma unroll
        for (int i = 0; i < REPEATS; ++i) value[i] = tile[at + i * LANES];
#pragma unroll
        for (int i = 0; i < REPEATS; ++i) add(sum, value[i]);
        at = (at + step * LANES) % (ELEMENTS / 2);
    }

    out[blockIdx.x * THREADS + threadIdx.x] = sum;
}
