//! The manager on a toy model: order, slots, boundaries, side streams, and the mistakes it refuses.

// The examples are files that share a module; here each is a module with its own copy of it.
#![allow(clippy::duplicate_mod)]

mod capture;
mod examples;
mod external;
mod fronts;
mod memory;
mod named;
mod nvtx;
mod order;
mod passes;
mod random;
mod refused;
mod rehearsals;
mod toy;
mod training;
mod verify;
