// What the kernels of this folder share: the size of a block and of the piece it works on.
//
// All have one signature. `in` and `out` are arrays of 16-byte elements; `trips` is how often the
// timed loop runs. Where memory is read, it is cut into `chunks` of CHUNK elements; block b begins
// with chunk b % chunks and goes on by `step` chunks (less than `chunks`) at each trip. That `step`
// and `chunks` are known only at run time keeps the compiler from moving a load out of the loop.

#pragma once

constexpr int THREADS = 512;
constexpr int LOADS = 4;                  // 16-byte loads of a thread under way at once
constexpr int CHUNK = LOADS * THREADS;  // elements of 16 bytes that a block reads in a trip: 32 KiB

__device__ inline void add(float4& sum, const float4 value) {
    sum.x += value.x;
    sum.y += value.y;
    sum.z += value.z;
    sum.w += value.w;
}

// The chunk after `chunk`, round and round.
__device__ inline int next_chunk(int chunk, int step, int chunks) {
    chunk += step;
    return chunk >= chunks ? chunk - chunks : chunk;
}
