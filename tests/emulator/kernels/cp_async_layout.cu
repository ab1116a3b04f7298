// Calibration: one warp-wide cp.async of FLOATS floats a lane; see cp_async_sectors.csv.
#include <cuda_pipeline_primitives.h>
extern "C" __global__ void copy(const float* in, float* out, int row, int from_stride, int to_stride,
                                int from, int to) {
    __shared__ __align__(1024) float shared[8192];
    const int lane = threadIdx.x, column = lane % row * FLOATS;
    float* target = &shared[to + lane / row * to_stride + column];
    __pipeline_memcpy_async(target, &in[from + lane / row * from_stride + column], 4 * FLOATS);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    out[lane] = *target;
}
