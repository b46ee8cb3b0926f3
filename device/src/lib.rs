//! Streams, events, planned memory, capture and graphs, and the operations of a transformer, behind one vocabulary. On
//! a GPU it is CUDA. On the host it has CUDA's semantics and runs anywhere.
//!
//! Start with [`ops`] (the operations), then [`Device`] and [`Stream`] (their submission), then [`Graph`]. Memory is an
//! [`Area`] with [`Tensor`]s; [`Event`]s order streams; [`CheckError`] and [`CaptureRule`] name mistakes. Operations of your
//! own: [`ops::CustomOp`], [`ops::Launcher`], [`cuda::CudaWork`]. The crate's `README.md` has an example and a table of the
//! files.

#![cfg_attr(
    not(all(feature = "cuda", feature = "host", feature = "trainer-ops")),
    allow(dead_code, unused_imports, reason = "what serves all features is here for any")
)]

#[cfg(not(any(feature = "cuda", feature = "host")))]
compile_error!("a device is on a GPU or on the host. Fix: enable the feature `cuda`, `host` or both");

mod calling;
mod capture;
mod capture_mode;
mod communicator;
#[cfg_attr(not(feature = "cuda"), path = "no_cuda.rs")]
pub mod cuda;
mod device;
mod digest;
mod dispatch;
mod dtype;
mod error;
mod float8;
mod gpu_types;
mod graph;
mod hash;
pub mod host;
mod host_memory;
mod nvtx_range;
pub mod ops;
pub mod philox;
mod priority;
mod progress;
pub mod random;
mod stream;
mod stream_id;
mod submitted;
mod sync_debug;
mod tensor;
mod timeline;
#[cfg(feature = "trainer-ops")]
pub mod trials;
#[cfg(not(all(feature = "cuda", feature = "host")))]
mod uncallable;

pub use capture::Checked;
pub use capture_mode::CaptureMode;
pub use communicator::{Communicator, Probe, Request, SharedArea};
pub use device::{ALIGNMENT, Area, Device, Home, HostOptions, Listener, Snapshot, Submission, TraceEvent};
pub use dispatch::Readback;
pub use dtype::{DType, Element, Float};
pub use error::{CaptureRule, CheckError, Error, Result};
pub use float8::{F8E4M3, F8E5M2};
pub use graph::{Graph, Node};
pub use half::bf16;
pub use hash::fnv1a;
pub use host::HostTensors;
pub use host_memory::{Growth, HostArray, HostValues, Staging, available_memory};
pub use nvtx_range::{NvtxRange, is_under_profiler};
pub use ops::{Accesses, Op, Operation};
pub use progress::{Order, Progress, ProgressMark, Reached};
pub use stream::{COPY_BLOCK, CopiedBytes, Event, HostCopy, Stream, copy_blocks};
pub use stream_id::StreamId;
pub use sync_debug::SyncDebug;
pub(crate) use tensor::BufferNames;
pub use tensor::{BufferId, BufferName, MAX_RANK, Shape, Tensor};
pub use timeline::{Span, Timeline, WORK_CATEGORIES};

/// The README's example, compiled and run as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
