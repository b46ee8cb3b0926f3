//! Operations of a trainer of transformers.

mod attention;
mod experts;
mod losses;
mod low_precision;
mod norms;
mod products;
mod updates;

pub use attention::*;
pub use experts::*;
pub use losses::*;
pub use low_precision::*;
pub use norms::*;
pub use products::*;
pub use updates::*;
