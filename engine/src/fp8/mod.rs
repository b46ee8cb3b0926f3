//! Matrix products of 8-bit factors: recipes, what is kept for each weight, and what products read.

mod memory;
mod operand;
mod recipe;

pub(crate) use memory::Fp8Memory;
pub use memory::{Fp8Param, ScaleCell, ScaleState};
pub(crate) use operand::{Copies, Operand, QuantizeAs};
pub use recipe::{Fp8, Fp8Format, Fp8Recipe};
