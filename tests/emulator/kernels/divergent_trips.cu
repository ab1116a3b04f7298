// Lanes of a warp run an inner loop two or three times: the hardware meets again after each inner loop,
// and the order of x and z shows that the n-th accesses do not belong together.
extern "C" __global__ void trips(const float* x, const float* z, float* y) {
    const int lane = threadIdx.x, count = lane % 2 ? 2 : 3;
    float sum = 0.0f;
    for (int outer = 0; outer < 4; ++outer) {
        for (int i = 0; i < count; ++i) sum += x[(outer * 4 + i) * 32 + lane];
        sum += z[outer * 32 + lane];
    }
    y[lane] = sum;
}
