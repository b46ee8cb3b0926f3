mod dense;
pub mod dropout;
mod gemm_tf32;
