//! Matrix products, and what runs between them: activations and dropout.

mod activation;
mod dropout;
mod gemm;

pub use activation::*;
pub use dropout::*;
pub use gemm::*;
