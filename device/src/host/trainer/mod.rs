//! Operations of a trainer of transformers.

mod attention;
mod experts;
mod losses;
mod low_precision;
mod math;
mod norms;
mod products;
mod scratch;
mod updates;
