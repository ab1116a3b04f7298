// Calibration: one warp loads 16 bytes a lane from shared memory, STRIDE quads apart.
extern "C" __global__ void wide_load(const float* in, float* out) {
    __shared__ float4 quads[32 * STRIDE];
    for (int i = threadIdx.x; i < 32 * STRIDE; i += 32)
        quads[i] = reinterpret_cast<const float4*>(in)[i];
    __syncthreads();
    const float4 v = quads[threadIdx.x * STRIDE];
    reinterpret_cast<float4*>(out)[threadIdx.x] = v;
}
