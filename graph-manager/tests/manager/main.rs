//! The manager on a toy model: order, slots, boundaries, side streams, and the mistakes it refuses.

mod by_hand;
mod capture;
mod examples;
mod external;
mod handover;
mod mistakes;
mod side_streams;
mod toy;
mod traps;
