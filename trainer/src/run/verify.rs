//! Steps that are verified: with graphs and eagerly, from the same state, they must leave the same bits.

use common::UserError;
use common::format::{bytes, counted};
use device::{Device, HostValues};
use engine::regions::Mode;
use engine::step::{Stage, StepSettings};
use graph_manager::{EagerMemory, Verification, VerificationBytes, Verified};
use launch::watch::activity::Doing;

use crate::config::VerifyMemory;
use crate::config::plan::RunPlan;
use crate::error::RunError;
use crate::process_group::ProcessGroup;

/// The tensors and bytes verified so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct VerifiedSteps {
    steps: usize,
    tensors: usize,
    bytes: usize,
}

impl VerifiedSteps {
    /// Verifies a step that is about to run. All ranks call it together.
    ///
    /// # Errors
    /// [`RunError::Graphs`] if the bits differ on this rank; errors of the device.
    pub(crate) fn verify(
        &mut self,
        plan: &RunPlan,
        group: &ProcessGroup,
        stage: &mut Stage,
        (mode, settings, batch): (Mode, StepSettings, Option<&HostValues>),
    ) -> Result<(), RunError> {
        let any = |differs| group.control.any(differs);
        let how = Verification { memory: eager_memory(plan), any: &any, ..Verification::default() };
        let found = group.activity.during(Doing::Verifies, || stage.verify_step(mode, settings, batch, &how))?;
        let step = settings.step as usize + 1;
        match found {
            Verified::NotYet => {}
            Verified::Same { tensors, bytes } => {
                *self = VerifiedSteps { steps: self.steps + 1, tensors, bytes };
                tracing::info!(step, tensors, bytes, "verified: the same bits with graphs and without");
            }
            Verified::Differs(difference) => return Err(RunError::Graphs { step, difference }),
        }
        Ok(())
    }

    /// The verified steps, tensors and bytes in words. `None` if nothing was verified.
    pub(crate) fn words(&self) -> Option<String> {
        let VerifiedSteps { steps, tensors, bytes: size } = *self;
        let what = format!("{} of rank 0, {}", counted(tensors, "tensor"), bytes(size));
        (steps > 0).then(|| {
            format!("verified: {} with the same bits with graphs and without ({what})", counted(steps, "step"))
        })
    }
}

fn eager_memory(plan: &RunPlan) -> EagerMemory {
    match plan.config.cuda_graph.verify_memory {
        VerifyMemory::Apart => EagerMemory::Apart,
        VerifyMemory::Shared => EagerMemory::Shared,
    }
}

/// Fails if the memory is not there that verified steps need, beside all that the run has allocated. All ranks call it
/// together.
///
/// # Errors
/// A [`UserError`] with the numbers.
pub(crate) fn check_memory(
    plan: &RunPlan,
    device: &Device,
    group: &ProcessGroup,
    stage: &Stage,
) -> Result<(), RunError> {
    if !plan.verifies() {
        return Ok(());
    }
    let most = plan.batch.microbatch_counts().into_iter().max().unwrap_or(1);
    let VerificationBytes { mut host, device: mut apart } = stage.verification_bytes(most);
    if eager_memory(plan) == EagerMemory::Shared {
        apart = 0;
    }
    if device.gpu().is_none() {
        (host, apart) = (host + apart, 0);
    }
    let free = device::available_memory();
    group.control.barrier(); // all ranks read the free memory before any rank takes some
    let needed = host.saturating_mul(group.local_size);
    if let Some(free) = free.filter(|free| needed > *free) {
        return Err(UserError::new(
            format!(
                "cuda_graph.verify = {} needs {} of the host's memory for {}, {} are free",
                plan.config.cuda_graph.verify,
                bytes(needed),
                counted(group.local_size, "rank"),
                bytes(free)
            ),
            "a step that is verified has its weights, gradients and optimizer state put aside on the host",
            "leave --verify-cuda-graph out, or verify a smaller model with the same layers",
        )
        .into());
    }
    match device.gpu_memory()? {
        Some((free, total)) if apart > free => Err(UserError::new(
            format!(
                "cuda_graph.verify_memory = \"apart\" needs {} of GPU memory, {} of {} are free",
                bytes(apart),
                bytes(free),
                bytes(total)
            ),
            "the eager step has memory of its own, in which no two buffers share bytes",
            "set --verify-cuda-graph-memory shared, or a smaller train.micro_batch_size or train.global_batch_size",
        )
        .into()),
        _ => Ok(()),
    }
}
