//! Mixtures of experts.

mod exchange;
mod glu;
mod grouped_gemm;
mod grouped_hopper;
mod limit;
mod load;
mod route;
mod rows;
mod rows_of_ranks;
mod sort;

pub(super) use exchange::{experts_of_slots, slots_of_pairs};
pub(super) use glu::{expert_glu, expert_glu_backward};
pub(super) use grouped_gemm::grouped_gemm;
pub(super) use limit::limit_load;
pub(super) use load::{count_load, count_load_scratch, update_selection_bias};
pub(super) use route::{route, route_backward};
pub(super) use rows::{combine_rows, gather_rows};
pub(super) use rows_of_ranks::{exchange_rows, place_rows};
pub(super) use sort::{sort_by_expert, sort_scratch};

use super::capability::accept_on_hopper;
use crate::cuda::GpuProperties;
use crate::ops::GroupedGemm;
use crate::{Error, Op, Result};

/// Experts that kernels have shared memory or registers for; `EXPERTS` in `kernels/expert_sort.cu`,
/// `kernels/expert_load.cu`, `kernels/grouped_gemm.cu` and `kernels/grouped_hopper.cu`.
const EXPERTS: usize = 512;

/// Choices of a token, one for each thread of a warp.
const CHOICES: usize = 32;

/// Fails if an operation has more experts, or more choices of a token, than its kernel takes; on factors in 8 bits if the GPU
/// has no kernel for them.
///
/// # Errors
/// An operation with the numbers or the GPU.
pub(super) fn accept(op: &Op, gpu: &GpuProperties) -> Result<()> {
    if let Op::GroupedGemm(GroupedGemm { scales: Some(_), .. }) = op {
        accept_on_hopper(op.name(), gpu, "products of experts in 8 bits", "bf16")?;
    }
    let (experts, choices) = match op {
        Op::Route(op) => (op.logits.shape.last(), op.chosen.shape.last()),
        Op::RouteBackward(op) => (op.logits.shape.last(), op.chosen.shape.last()),
        Op::SortByExpert(op) => (op.order.offsets.elements() - 1, 1),
        // A column may be for dropped pairs.
        Op::CountLoad(op) => (op.load.shape.last().saturating_sub(1), 1),
        Op::LimitLoad(op) => (op.experts, 1),
        Op::GroupedGemm(op) => (op.experts(), 1),
        _ => return Ok(()),
    };
    let refused = |problem| Err(Error::operation(op.name(), problem));
    if experts > EXPERTS {
        return refused(format!("a GPU takes at most {EXPERTS} experts, not {experts}. Fix: fewer, or --device host"));
    }
    if choices > CHOICES {
        let problem =
            format!("on a GPU a token chooses at most {CHOICES} experts, not {choices}. Fix: fewer, or --device host");
        return refused(problem);
    }
    Ok(())
}
