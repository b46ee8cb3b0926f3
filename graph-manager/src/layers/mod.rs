//! Layers as graphs, made ahead of time. They share memory, and are called in one order.

mod callables;
mod group;
mod hooks;
mod layer;

pub use callables::{GraphedCallables, graph_callables};
pub use hooks::CallHooks;
pub use layer::{BoxedLayer, Layer};
