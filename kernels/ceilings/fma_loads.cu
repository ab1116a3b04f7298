// Ceiling of multiply-adds beside shared loads: what a load costs the pipe that multiplies.
//
// A multiply-add and a shared load take an issue slot each, and at so few loads neither the banks nor
// the queue is busy. But what a load brings has to be written to the registers, 128 bytes at a time for
// a warp, and that is where multiply-adds write too. FLOATS is what a load brings to each thread: if
// only issue slots counted, 1, 2 and 4 would be equally fast.
//
// As in the inner loop of a 16 x 8 register tile there are 6 loads to 128 multiply-adds. Those read
// registers that no load writes, and the same two again and again, which spares the register banks;
// nobody waits for what is loaded. All threads read one address.
//
// A trip of the loop is FMAS multiply-adds and LOADS_IN_TRIP loads per thread.

#include "ceiling.cuh"

constexpr int ACCUMULATORS = 32, FMAS = 128, LOADS_IN_TRIP = 6;

static __device__ __forceinline__ void load(unsigned address) {
    float x, y, z, w;
    if (FLOATS == 1) {
        asm volatile("ld.volatile.shared.f32 %0, [%1];" : "=f"(x) : "r"(address));
    } else if (FLOATS == 2) {
        asm volatile("ld.volatile.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "r"(address));
    } else {
        asm volatile("ld.volatile.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(x), "=f"(y), "=f"(z), "=f"(w) : "r"(address));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
ceiling(const float4* in, float4* out, int trips, int step, int chunks) {
    __shared__ float4 tile[LOADS_IN_TRIP];
    const float4 start = in[threadIdx.x];
    if (threadIdx.x < LOADS_IN_TRIP) tile[threadIdx.x] = start;
    __syncthreads();
    const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(tile));

    const float a = start.x, b = start.y;
    float acc[ACCUMULATORS];
#pragma unroll
    for (int i = 0; i < ACCUMULATORS; ++i) acc[i] = start.z + i;

#pragma unroll 1
    for (int trip = 0; trip < trips; ++trip) {
#pragma unroll
        for (int i = 0; i < FMAS; ++i) {
            acc[i % ACCUMULATORS] = fmaf(a, acc[i % ACCUMULATORS], b);
            const int loads = i * LOADS_IN_TRIP / FMAS;
            if ((i + 1) * LOADS_IN_TRIP / FMAS > loads) load(from + 16 * loads);
        }
    }

    float4 sum = start;
#pragma unroll
    for (int i = 0; i < ACCUMULATORS; i += 4) {
        add(sum, make_float4(acc[i], acc[i + 1], acc[i + 2], acc[i + 3]));
    }
    out[blockIdx.x * THREADS + threadIdx.x] = sum;
}
