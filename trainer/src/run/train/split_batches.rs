//! Runs that continue in the middle of a batch of conversations of like length.

use crate::config::plan::RunPlan;
use crate::process_group::ProcessGroup;
use crate::report::logs::tell;

/// Says so if the run continues in the middle of a batch of conversations of like length.
pub(super) fn tell_split_batches(plan: &RunPlan, samples: u64, group: &ProcessGroup) {
    let Some(batch) = plan.grouped_batch().filter(|batch| !samples.is_multiple_of(*batch as u64)) else { return };
    if group.rank == 0 {
        tell(&format!(
            "notice: data.group_by_length makes batches of train.global_batch_size = {batch} conversations, and the run \
             continues at sample {samples}, within one. So its steps have conversations of two batches, and are longer. \
             Fix: continue with the batch size of before, or from a checkpoint at a multiple of {batch} samples"
        ));
    }
}
