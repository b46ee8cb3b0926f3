//! The operations. Each is a plain value that names its tensors: submitting it to a stream runs it there, or records it
//! while the stream captures. The tensors it reads and writes are part of its value, so the same list serves the host
//! kernels, the CUDA kernels, the memory plan and the graph checker. Operations can be compared, and mapped to other
//! tensors.
//!
//! Shapes are written `(batch, seq, hidden)`; matrices are row-major. Floating operations load f32 or bf16,
//! compute in f32 and round once when storing, unless their documentation says otherwise.

mod accesses;
mod checks;
mod collective;
mod custom;
mod each_tensor;
mod elementwise;
mod launcher;
mod op;
mod operation;
mod order_rows;
mod partial_columns;
mod place_rows;
mod progress_mark;
mod rows_of_ranks;
mod select;
mod sequence_share;
#[cfg(feature = "trainer-ops")]
mod trainer;
mod when;

pub use accesses::Accesses;
pub(crate) use checks::{
    ensure, ensure_apart, ensure_dtype, ensure_elements, ensure_float, ensure_heads, ensure_shape, ensure_values,
};
pub use collective::Collective;
pub use custom::{Custom, CustomOp};
pub(crate) use each_tensor::{HasTensors, tensors};
pub use elementwise::{Add, ColumnRange, Copy, CopyColumns, Fill, Move, Multiply, Poison};
pub use launcher::Launcher;
pub use op::Op;
pub use operation::Operation;
pub use order_rows::{OrderRows, RowOrder};
pub use partial_columns::{AddPartialColumns, BiasGrad, PartialColumns};
pub(crate) use partial_columns::{add_partial, add_partial_at};
pub use place_rows::PlaceRows;
pub use rows_of_ranks::{RowsOfRanks, RowsWay};
pub use select::{Condition, Select};
pub use sequence_share::{KeysOfRank, SequenceShare};
#[cfg(feature = "trainer-ops")]
pub use trainer::*;
pub use when::When;

pub use crate::communicator::CollectiveKind;
pub use crate::progress::ProgressMark;
