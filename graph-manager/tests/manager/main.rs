//! The manager on a toy model: order, slots, boundaries, side streams, and the mistakes it refuses.

// The examples are files that share a module; here each is a module with its own copy of it.
#![allow(clippy::duplicate_mod)]

mod buffer_uses;
mod by_default;
mod by_hand;
mod callables;
mod capture;
mod changed;
mod data_parallel;
mod double;
mod early;
mod eight_bits;
mod examples;
mod external;
mod forgotten;
mod handover;
mod hooks;
mod host_calls;
mod lanes;
mod left_out;
mod list_order;
mod listed;
mod mistakes;
mod moves;
mod named;
mod nvtx;
mod other_device;
mod outputs;
mod own_calls;
mod panics;
mod passes;
mod planning;
mod protected;
mod queues;
mod random;
mod rehearsals;
mod side_streams;
mod toy;
mod training;
mod traps;
mod twelve_mistakes;
mod verify;
mod when;
mod when_own_operations;
