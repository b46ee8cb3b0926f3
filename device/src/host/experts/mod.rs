//! Mixtures of experts.

mod counted;
mod exchange;
mod glu;
mod grouped_gemm;
mod limit;
mod load;
mod route;
mod rows;
mod rows_of_ranks;

pub(super) use exchange::{experts_of_slots, slots_of_pairs};
pub(super) use glu::{expert_glu, expert_glu_backward};
pub(super) use grouped_gemm::grouped_gemm;
pub(super) use limit::limit_load;
pub(super) use load::{count_load, update_selection_bias};
pub(super) use route::{route, route_backward};
pub(super) use rows::{combine_rows, gather_rows, sort_by_expert};
pub(super) use rows_of_ranks::place_rows;
pub(crate) use rows_of_ranks::start_rows;
