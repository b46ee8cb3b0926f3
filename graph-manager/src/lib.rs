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

mod call_order;
mod capture;
mod code;
mod error;
mod finally;
mod inputs;
mod keys;
mod layers;
mod manager;
mod memory;
mod options;
mod passes;
mod policy;
mod program;
mod report;
mod side_stream;
mod steps;
mod tensor_tree;
mod training;
mod verify;
mod words;

/// The crate of devices, streams, memory and operations.
pub use device;

pub use call_order::{Call, CallOrder, Calls, Phase};
pub use capture::{ByHand, Capture, RunOutput, Signature};
#[cfg(feature = "trainer-ops")]
pub use code::{Masks, RandomState};
pub use code::{StepContext, WhenBody};
pub use error::{Error, Result};
pub use layers::{BoxedLayer, CallHooks, GraphedCallables, Layer, graph_callables};
pub use manager::{CudaGraphManager, Forgotten};
pub use memory::{GraphHooks, Pool};
pub use options::{CheckReplays, ManagerOptions, Mempool};
pub use passes::{Piece, PieceEntry, StepPass, Then};
pub use policy::{CaptureAll, Instance, Policy};
pub use program::ListedEntry;
pub use report::{BufferUse, EagerReport, GraphDot, GraphReport, Launch, MemoryUse, Report, StepReport};
pub use side_stream::{Fork, SideStream};
pub use tensor_tree::TensorTree;
pub use training::{TrainingPolicy, TrainingRegion};
pub use verify::{Difference, DifferingValues, EagerMemory, Sameness, Verification, VerificationBytes, Verified};
