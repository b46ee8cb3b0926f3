//! Parameters by name: frozen ones, and those with a learning rate of their own.

mod freeze;
mod frozen_weights;
mod groups;
mod name_patterns;

pub use freeze::FrozenNames;
pub(crate) use frozen_weights::check_frozen_weights;
pub use groups::NamedGroup;
