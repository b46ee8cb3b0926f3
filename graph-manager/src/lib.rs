#![doc = include_str!("../README.md")]
//!
//! # The types of this page
//!
//! - Steps: [`CudaGraphManager`], [`ManagerOptions`], [`CheckReplays`], [`Mempool`], [`StepContext`], [`Policy`],
//!   [`CaptureAll`], [`TrainingPolicy`], [`TrainingRegion`], [`TensorTree`].
//! - By hand: [`Capture`], [`RunOutput`], [`Pool`].
//! - Layers: [`Layer`], [`graph_callables`], [`GraphedCallables`], [`CallOrder`].
//! - Random numbers: [`RandomState`], [`Masks`]. Side streams and passes: [`SideStream`], [`StepPass`].
//! - Findings: [`Report`], [`Verification`], [`Verified`], [`Sameness`], [`Error`].
//! - Operations, tensors and streams: [`device`]; own operations: [`device::ops::CustomOp`], [`device::ops::Launcher`].

mod binding;
mod buffer_use;
mod call_group;
mod call_hooks;
mod callables;
mod capture;
mod context;
mod difference;
mod error;
mod finally;
mod forgotten;
mod graph_dot;
mod graph_hooks;
mod inputs;
mod keys;
mod layer;
mod lists;
mod manager;
mod occupied;
mod options;
mod order;
mod passes;
mod placement;
mod plan;
mod policy;
mod pool;
mod program;
mod protected;
#[cfg(feature = "trainer-ops")]
mod random;
mod region;
mod report;
mod results;
mod run;
mod side_stream;
mod slots;
mod state;
mod step;
mod tensor_tree;
mod training;
mod trial;
mod verify;
mod when;
mod words;

/// The crate of devices, streams, memory and operations.
pub use device;

pub use buffer_use::BufferUse;
pub use call_hooks::CallHooks;
pub use callables::{GraphedCallables, graph_callables};
pub use capture::{ByHand, Capture, RunOutput, Signature};
pub use context::StepContext;
pub use difference::{Difference, DifferingValues, Sameness};
pub use error::{Error, Result};
pub use forgotten::Forgotten;
pub use graph_dot::GraphDot;
pub use graph_hooks::GraphHooks;
pub use layer::{BoxedLayer, Layer};
pub use manager::CudaGraphManager;
pub use options::{CheckReplays, ManagerOptions, Mempool};
pub use order::{Call, CallOrder, Calls, Phase};
pub use passes::{Piece, PieceEntry, StepPass, Then};
pub use policy::{CaptureAll, Instance, Policy};
pub use pool::Pool;
pub use program::ListedEntry;
#[cfg(feature = "trainer-ops")]
pub use random::{Masks, RandomState};
pub use report::{EagerReport, GraphReport, Launch, MemoryUse, Report, StepReport};
pub use side_stream::{Fork, SideStream};
pub use tensor_tree::TensorTree;
pub use training::{TrainingPolicy, TrainingRegion};
pub use verify::{EagerMemory, Verification, VerificationBytes, Verified};
pub use when::WhenBody;
