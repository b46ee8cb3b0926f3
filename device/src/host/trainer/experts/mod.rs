//! Mixtures of experts.

mod bias;
mod counted;
mod exchange;
mod glu;
mod grouped_gemm;
mod limit;
mod load;
mod route;
mod rows;
