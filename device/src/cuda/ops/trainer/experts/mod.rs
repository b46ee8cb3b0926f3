//! Mixtures of experts.

mod exchange;
mod glu;
mod grouped_gemm;
mod grouped_hopper;
mod limit;
mod load;
mod route;
mod rows;
mod sort;

use crate::{Error, Result};

/// Experts that kernels have shared memory or registers for; `EXPERTS` in `kernels/expert_sort.cu`,
/// `kernels/expert_load.cu`, `kernels/grouped_gemm.cu` and `kernels/grouped_hopper.cu`.
const EXPERTS: usize = 512;

/// Choices of a token, one for each thread of a warp.
const CHOICES: usize = 32;

/// Fails if an operation has more experts, or more choices of a token, than kernels take.
///
/// # Errors
/// An operation with the numbers.
fn at_most(op: &'static str, experts: usize, choices: usize) -> Result<()> {
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
