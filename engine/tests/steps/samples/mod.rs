//! Steps by their samples: lengths, documents, answers and their losses.

mod answers;
mod kept_losses;
mod lengths;
mod packing;
mod pair_losses;
