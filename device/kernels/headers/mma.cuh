// Products of small bf16 matrices by all threads of a warp, accumulated in f32 (compute capability 8.0 and newer).
#pragma once
#include "common.cuh"

// Four matrices of 8 x 8 from shared memory: threads 8 i .. 8 i + 8 point to the rows of matrix i. Of each a thread has
// row lane / 4, columns 2 (lane % 4) and the next.
inline void load_matrices(u32 (&x)[4], const bf16* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"((u32)__cvta_generic_to_shared(row))
                 : "memory");
}

// The same, of the transposed matrices.
inline void load_matrices_transposed(u32 (&x)[4], const bf16* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"((u32)__cvta_generic_to_shared(row))
                 : "memory");
}

// sums (16 x 8) += a (16 x 16) @ b (16 x 8). Of the sums a thread has rows lane / 4 and the eighth after it, columns
// 2 (lane % 4) and the next. `a` has the quarters (0, 0), (8, 0), (0, 8) and (8, 8), `b` the transposed halves.
inline void multiply_add(float (&sums)[4], const u32 (&a)[4], const u32* b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
