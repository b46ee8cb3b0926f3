//! Matrix products, and what runs between them: activations and dropout.

mod activation;
mod dropout;
mod gemm;

pub use activation::{Activation, ActivationBackward, ActivationKind, Gate, Glu, GluBackward};
pub use dropout::{Dropout, DropoutPart, DropoutSite, ReluDropout, ReluDropoutBackward};
pub(crate) use gemm::MatrixPlace;
pub use gemm::{Columns, Epilogue, Fp8Scales, Gemm, GemmColumns};
