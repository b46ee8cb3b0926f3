//! The manager on a toy model: order, slots, boundaries, side streams, and the mistakes it refuses.

// The examples are files that share a module; here each is a module with its own copy of it.
#![allow(clippy::duplicate_mod)]

mod buffer_uses;
mod by_hand;
mod capture;
mod examples;
mod external;
mod handover;
mod lanes;
mod left_out;
mod list_order;
mod listed;
mod mistakes;
mod other_device;
mod panics;
mod planning;
mod random;
mod side_streams;
mod toy;
mod traps;
mod verify;
