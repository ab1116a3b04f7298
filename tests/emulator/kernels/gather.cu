// Loads through given indices, WIDTH floats a lane: any pattern of a warp.
template <int FLOATS> struct Vector;
template <> struct Vector<1> { using type = float; };
template <> struct Vector<2> { using type = float2; };
template <> struct Vector<4> { using type = float4; };
using V = Vector<WIDTH>::type;

extern "C" __global__ void gather(const int* index, const V* from, V* to) {
    __shared__ V shared[1024];
    const int lane = threadIdx.x;
    for (int i = lane; i < 1024; i += 32) shared[i] = from[i];
    __syncthreads();
    const int place = index[lane];
    if (place >= 0) {
        const V near = shared[place];  // counted: shared
        const V far = from[place];  // counted: global
        to[lane] = near;
        to[32 + lane] = far;
    }
}
