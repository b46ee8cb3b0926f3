//! Passes decide on time alone.

mod beside;
mod left_out;
mod on_host;
mod overlap;
