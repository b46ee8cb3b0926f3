mod codes;
mod quantize;
mod quantize_blocks;
mod quantize_counts;
mod quantize_gemm;
mod quantize_reference;
mod scales;
mod transpose_fp8;
