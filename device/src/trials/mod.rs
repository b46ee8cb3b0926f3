//! A trial of every operation: on the host, on a device and in a graph, with sizes of models and odd ones.

mod attention;
mod case;
mod cases;
mod divided;
mod documents;
mod elementwise;
mod embedding_and_loss;
mod experts;
mod fp8;
mod fp8_blocks;
mod fp8_products;
mod generation;
mod guard;
mod joint_norm;
mod latent;
#[cfg(test)]
mod mapped;
mod norms;
mod products;
mod sizes;
mod trial;
mod updates;
mod workbench;

pub use case::Case;
pub use cases::all;
pub use fp8_products::with_one_scale;
pub use trial::{Outcome, run};
pub use workbench::Workbench;
