//! What a GPU is to this project: streams, events, planned memory, capture, graphs, and the operations of a
//! transformer, behind one vocabulary. The host implementation has CUDA's semantics and runs anywhere.
//!
//! Start with [`ops`] (what can be done), then [`Device`] and [`Stream`] (how it is submitted), then [`Graph`].

mod array;
mod backend;
mod capture;
mod checker;
mod communicator;
pub mod cuda;
mod device;
mod dtype;
mod error;
mod graph;
pub mod host;
pub mod ops;
mod priority;
mod progress;
mod stream;
mod stream_id;
mod tensor;
mod timeline;

pub use array::{HostArray, HostValues, Staging};
pub use backend::Readback;
pub use communicator::{Communicator, Probe, Request};
pub use device::{ALIGNMENT, Area, Device, HostOptions, TraceEvent};
pub use dtype::{DType, Element, Float};
pub use error::{CaptureRule, CheckError, Error, Result};
pub use graph::{Graph, Node};
pub use half::bf16;
pub use ops::{Accesses, Op, Operation};
pub use progress::{Order, Progress, ProgressMark, Reached};
pub use stream::{Event, Stream};
pub use stream_id::StreamId;
pub use tensor::{BufferId, MAX_RANK, Shape, Tensor};
pub use timeline::{Span, Timeline};
