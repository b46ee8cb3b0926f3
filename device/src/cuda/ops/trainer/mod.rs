//! Operations of a trainer of transformers.

mod attention;
mod experts;
mod losses;
mod low_precision;
mod norms;
pub(crate) mod products;
mod updates;

pub(crate) use norms::norm_parts;
