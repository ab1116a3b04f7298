// Inline PTX without an emulated branch: the emulator has to refuse it by name.
extern "C" __global__ void gemm(const float* A, const float* B, float* C, int M, int N, int K) {
    unsigned lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    C[lane] = A[lane] + B[lane];
}
