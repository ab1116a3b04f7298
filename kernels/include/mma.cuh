// Products of small matrices by one warp on the tensor cores (mma.sync, compute capability 8.0 and newer).
//
// All 32 lanes execute the instruction together; each holds a part of every matrix, its fragment. With
// g = lane / 4 and t = lane % 4, the registers hold these (row, column) of A (16 x k), B (k x 8) and the
// sum (16 x 8):
//
//        TF32, k = 8         FP16, k = 16: two columns of A or two rows of B, the lower one in the low half
//   a[0] (g,     t)          (g,     2t), (g,     2t + 1)
//   a[1] (g + 8, t)          (g + 8, 2t), (g + 8, 2t + 1)
//   a[2] (g,     t + 4)      (g,     2t + 8), (g,     2t + 9)
//   a[3] (g + 8, t + 4)      (g + 8, 2t + 8), (g + 8, 2t + 9)
//   b[0] (t,     g)          (2t,     g), (2t + 1, g)
//   b[1] (t + 4, g)          (2t + 8, g), (2t + 9, g)
//
//   sum[0] (g, 2t)    sum[1] (g, 2t + 1)    sum[2] (g + 8, 2t)    sum[3] (g + 8, 2t + 1)
//
// A product is exact. Their sum is not that of FP32 arithmetic: the tensor core aligns the terms with the
// sum so far and cuts off what sticks out, so that long sums drift towards zero. Of TF32 operands it
// ignores the low 13 bits: see split_tf32.cuh.
#pragma once

#if defined(LADDER_EMULATOR)

// `line` is the caller's: lanes that meet at different instructions are found by it.
static __device__ __forceinline__ void mma_tf32(float (&sum)[4], const unsigned (&a)[4],
                                                const unsigned (&b)[2],
                                                unsigned line = __builtin_LINE()) {
    emulated_mma(sum, a, b, 0, line);
}
static __device__ __forceinline__ void mma_f16(float (&sum)[4], const unsigned (&a)[4],
                                               const unsigned (&b)[2],
                                               unsigned line = __builtin_LINE()) {
    emulated_mma(sum, a, b, 1, line);
}
static __device__ __forceinline__ void ldmatrix(unsigned (&matrices)[4], const void* row,
                                                unsigned line = __builtin_LINE()) {
    emulated_ldmatrix(matrices, row, 0, line);
}
static __device__ __forceinline__ void ldmatrix_transposed(unsigned (&matrices)[4], const void* row,
                                                           unsigned line = __builtin_LINE()) {
    emulated_ldmatrix(matrices, row, 1, line);
}

#else

// sum += A B, m16n8k8. With a sum of zeros before it, nothing is read for the sum: the compiler uses RZ.
static __device__ __forceinline__ void mma_tf32(float (&sum)[4], const unsigned (&a)[4],
                                                const unsigned (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
                 " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// sum += A B, m16n8k16.
static __device__ __forceinline__ void mma_f16(float (&sum)[4], const unsigned (&a)[4],
                                               const unsigned (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
                 " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four matrices of 8 rows of 16 bytes each from shared memory: lane i names row i % 8 of matrix i / 8,
// aligned to 16 bytes. matrices[j] then holds of matrix j the 4 bytes number t of row g: one TF32 element
// or two neighbouring FP16 elements. The fragment of A is so filled by one instruction if the matrices are
// its quarters, in the order of a[0] to a[3].
static __device__ __forceinline__ void ldmatrix(unsigned (&matrices)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row))) : "memory");
}

// The same for FP16 matrices to be transposed: matrices[j] holds of matrix j the elements of column g in
// rows 2t and 2t + 1. So fragments of B come from a B stored by rows.
static __device__ __forceinline__ void ldmatrix_transposed(unsigned (&matrices)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row))) : "memory");
}

#endif
