//! The host device: the same operations on the CPU, with rayon and a GEMM library.

mod activation;
mod attention;
mod cache;
mod clock;
mod custom;
mod dropout;
mod elementwise;
mod embedding;
mod gemm;
mod head_norm;
mod loss;
mod loss_parallel;
mod math;
pub(crate) mod memory;
mod muon;
mod norm;
mod optimizer;
pub mod philox;
mod pool;
mod quantize;
mod quantize_blocks;
mod quantize_counts;
mod rotary;
mod run;
mod scratch;
mod small_gemm;
mod stream;
mod tensors;
mod transpose_fp8;
pub(crate) mod view;

pub(crate) use clock::{HostClock, OpenSpan};
pub use pool::Pool;
pub(crate) use run::run;
pub(crate) use scratch::scratch_bytes;
pub(crate) use stream::HostStream;
pub use tensors::HostTensors;
