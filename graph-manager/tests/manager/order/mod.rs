//! The order of the work of a step.

mod host_calls;
mod lanes;
mod list_order;
mod listed;
mod own_calls;
mod queues;
mod side_streams;
mod when;
mod when_own_operations;
