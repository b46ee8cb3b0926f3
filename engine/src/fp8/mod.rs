//! Matrix products of 8-bit factors: recipes, the memory of each weight, and the operands of products.

mod counts;
mod memory;
mod operand;
mod recipe;
mod scale_state;
mod weight;

pub use counts::{CountCell, CountCells, Fp8Losses, Losses, PendingCounts, TensorCounts, TensorKind};
pub(crate) use counts::{Fp8Counts, LossSums};
pub(crate) use memory::Fp8Memory;
pub use memory::{CopySource, Fp8Param};
pub(crate) use operand::{Copies, Operand, QuantizeAs};
pub use recipe::{Fp8, Fp8Format, Fp8Recipe, Made};
pub use scale_state::{ScaleCell, ScaleState};
