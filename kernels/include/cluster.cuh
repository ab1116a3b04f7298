// Thread-block clusters (sm_90 and later): blocks that run at the same time and can read each other's
// shared memory.
#pragma once

#if defined(LADDER_EMULATOR)

static __device__ __forceinline__ unsigned cluster_rank() { return emulated_cluster_rank(); }
static __device__ __forceinline__ unsigned cluster_size() { return emulated_cluster_size(); }
static __device__ __forceinline__ void cluster_sync() { emulated_cluster_sync(); }
static __device__ __forceinline__ float4 cluster_load(const float4* shared, unsigned rank) {
    float4 value;
    emulated_cluster_load(&value, shared, rank);
    return value;
}

#else

// Index of this block in its cluster, over all axes.
static __device__ __forceinline__ unsigned cluster_rank() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

static __device__ __forceinline__ unsigned cluster_size() {
    unsigned size;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    return size;
}

// Waits for all threads of the cluster; what they wrote to shared memory before is then visible. A block
// must not exit while another still reads its shared memory, so one belongs at the end as well.
static __device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
}

// The float4 that lies at this place in the shared memory of block `rank` of the cluster.
static __device__ __forceinline__ float4 cluster_load(const float4* shared, unsigned rank) {
    float4 value;
    asm volatile("{\n\t"
                 ".reg .u32 remote;\n\t"
                 "mapa.shared::cluster.u32 remote, %4, %5;\n\t"
                 "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [remote];\n\t"
                 "}"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "r"(static_cast<unsigned>(__cvta_generic_to_shared(shared))), "r"(rank) : "memory");
    return value;
}

#endif
