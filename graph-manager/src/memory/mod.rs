//! The memory of a step's buffers: a plan from the list, areas, and addresses.

mod binding;
mod occupied;
mod placement;
mod plan;
mod pool;
mod slots;

pub(crate) use binding::{Binding, BoundBuffer};
pub(crate) use plan::{AreaKind, PlacedBuffer, Plan};
pub use pool::{GraphHooks, Pool};
pub(crate) use slots::{check_flights, in_flight, raise, slots};
