//! The engine's promises, on small models: the same bits in every setting and layout, and the numbers of independent references.

mod models;

mod distributed_optimizer;
mod grad_reduce;
mod layouts;
mod parameter_groups;
mod parity;
mod pipeline;
mod ranks;
mod recompute;
mod same_bits;
mod tensor_parallel;
mod zero_bubble;
