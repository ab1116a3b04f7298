// Dynamic shared memory: the launch decides where it ends.
extern "C" __global__ void fill(float* out, int count) {
    extern __shared__ float shared[];
    for (int i = threadIdx.x; i < count; i += blockDim.x) shared[i] = 1.0f;  // planted: past the end
    __syncthreads();
    if (threadIdx.x == 0) out[0] = shared[count - 1];
}
