// Ceiling of the FMA pipe: multiply-adds on registers alone, as many as an SM can start.
//
// Each thread keeps ACCUMULATORS independent chains, so that none waits for the one before; a and b
// stay in registers and are read again and again, which spares the register banks. Each chain is
// x -> a x + b with |a| < 1: it converges, and the result is stored, so that nothing can be left out.
//
// A trip of the loop is REPEATS * ACCUMULATORS multiply-adds per thread.

#include "ceiling.cuh"

constexpr int ACCUMULATORS = 16, REPEATS = 16;

extern "C" __global__ void __launch_bounds__(THREADS)
ceiling(const float4* in, float4* out, int trips, int step, int chunks) {
    const float4 start = in[threadIdx.x];
    const float a = start.x, b = start.y;
    float acc[ACCUMULATORS];
#pragma unroll
    for (int i = 0; i < ACCUMULATORS; ++i) acc[i] = start.z + i;

#pragma unroll 1
    for (int trip = 0; trip < trips; ++trip) {
#pragma unroll
        for (int i = 0; i < REPEATS * ACCUMULATORS; ++i) {
            acc[i % ACCUMULATORS] = fmaf(a, acc[i % ACCUMULATORS], b);
        }
    }

    float4 sum = start;
#pragma unroll
    for (int i = 0; i < ACCUMULATORS; i += 4) {
        add(sum, make_float4(acc[i], acc[i + 1], acc[i + 2], acc[i + 3]));
    }
    out[blockIdx.x * THREADS + threadIdx.x] = sum;
}
