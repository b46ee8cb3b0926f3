//! What kernels of experts take: their limits, and the places of tokens.

use crate::cuda::kernel_struct;
use crate::ops::SampleTokens;
use crate::{Error, Result};

/// Experts that kernels have shared memory or registers for; `EXPERTS` in `kernels/experts/expert_sort.cu`,
/// `kernels/experts/expert_load.cu`, `kernels/experts/grouped_gemm.cu` and `kernels/experts/grouped_hopper.cu`.
pub(super) const EXPERTS: usize = 512;

/// Choices of a token, one for each thread of a warp.
const CHOICES: usize = 32;

kernel_struct! {
    /// `Places` of `kernels/headers/places.cuh`.
    PlacesArgs {
        u32: length, part, first_shift, second_shift, whole;
    }
}

impl PlacesArgs {
    pub(super) fn new(of: SampleTokens, tokens: usize) -> PlacesArgs {
        let length = tokens / of.samples;
        let [part, first_shift, second_shift] = of.share.shifts(length);
        let whole = (length * of.share.ranks) as u32;
        PlacesArgs { length: length as u32, part, first_shift, second_shift, whole }
    }
}

/// Fails if an operation has more experts, or more choices of a token, than kernels take.
///
/// # Errors
/// An operation with the numbers.
pub(super) fn at_most(op: &'static str, experts: usize, choices: usize) -> Result<()> {
    let refused = |problem| Err(Error::operation(op, problem));
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
