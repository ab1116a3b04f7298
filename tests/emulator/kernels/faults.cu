// Planted faults, one for each value of FAULT. The line that must be named carries its number.
// x, y and n floats; y[i] = x[i] (or a sum of two) is the right result. 64 threads a block.
extern "C" __global__ void planted(const float* x, float* y, int n) {
    __shared__ float s[64];
    const int t = threadIdx.x;
#if FAULT == 1
    s[t] = x[t];
    y[t] = s[t ^ 1];  // fault 1: exchange within a warp without __syncwarp
#elif FAULT == 2
    s[t] = x[t];
    __syncwarp();
    y[t] = s[t ^ 1];  // none: the same with it
#elif FAULT == 3
    if (t < 63) s[t] = x[t];
    __syncthreads();
    y[t] = s[63 - t];  // fault 3: a word that nobody wrote
#elif FAULT == 4
    y[t] = x[t] + blockIdx.x;  // fault 4: every block writes the same output
#elif FAULT == 5
    if (t < 32) __syncthreads();  // fault 5: half of the block does not come
    y[t] = x[t];
#elif FAULT == 6
    float v = x[t];
    if (t % 32 < 16) {
        v = __shfl_xor_sync(0xffffffffu, v, 1);  // fault 6: half of the warp waits elsewhere
    } else {
        s[t] = v;
        __syncthreads();
    }
    y[t] = v;
#elif FAULT == 7
    s[t + 1] = x[t];  // fault 7: one past the end of a shared array
    __syncthreads();
    y[t] = t ? s[t] : x[t];
#elif FAULT == 8
    y[t] = x[t - 1];  // fault 8: a negative index
#elif FAULT == 9
    float ignored = x[n + t - 63];  // fault 9: one past the end, the result still right
    y[t] = x[t] + 0.0f * ignored;
#elif FAULT == 10
    const float4 v = *reinterpret_cast<const float4*>(x + 4 * t + 1);  // fault 10: misaligned
    y[t] = v.x;
#elif FAULT == 11
    if (t < 32) {
        s[t] = x[t];
        __syncthreads();  // other 11
    } else {
        s[t] = x[t];
        __syncthreads();  // fault 11: half of the block at another barrier
    }
    y[t] = s[t];
#elif FAULT == 12
    s[t] = x[t];
    y[t] = s[63 - t];  // fault 12: a missing barrier between warps; read before written
#elif FAULT == 13
    s[0] = x[t];  // fault 13: all threads write one word
    __syncthreads();
    y[t] = s[0];
#elif FAULT == 14
    volatile float* flag = s;
    s[t] = x[t];
    __syncthreads();
    while (flag[t] == x[t]) {  // fault 14: waits for ever
    }
    y[t] = x[t];
#elif FAULT == 15
    const float v = __shfl_down_sync(0x0000ffffu, x[t], 16);  // fault 15: from outside the mask
    y[t] = v;
#elif FAULT == 16
    if (blockIdx.x == 0) y[t] = x[t];
    else y[64 + t] = y[t];  // fault 16: reads what another block writes
#elif FAULT == 17
    if (t == 3) y[(size_t)n * 1000000000ull] = 1.0f;  // fault 17: far outside any buffer
    y[t] = x[t];
#elif FAULT == 18
    if (t == 5) __trap();  // fault 18: the kernel stops itself
    y[t] = x[t];
#elif FAULT == 19
    y[t] = x[t] + t / (n - 128);  // fault 19: divides by zero
#else
#error "FAULT names no planted fault"
#endif
}
