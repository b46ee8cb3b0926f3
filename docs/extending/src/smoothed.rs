//! Cross-entropy with smoothed labels (Szegedy et al., 2016): a share of each target is spread over all tokens.

use std::sync::Arc;

use common::UserError;
use device::cuda::{CudaWork, GpuProperties};
use device::ops::{Accesses, Control, CustomOp};
use device::{DType, Float, HostTensors, Result, bf16};
use engine::model::{LossRows, OwnLoss};
use engine::step_policy::StepContext;
use trainer::config::RunConfig;

use crate::kernels::{self, of_type};

/// The loss of a run.
pub fn loss(config: &RunConfig) -> std::result::Result<Arc<dyn OwnLoss>, UserError> {
    let smoothing = config.own.float("smoothing").unwrap_or_default();
    if !(0.0..1.0).contains(&smoothing) {
        let what = format!("own.smoothing = {smoothing}");
        return Err(UserError::new(what, "a share is in [0, 1)", "leave it out: it is 0.1"));
    }
    Ok(Arc::new(Smoothed { smoothing: smoothing as f32 }))
}

#[derive(Debug)]
struct Smoothed {
    smoothing: f32,
}

impl OwnLoss for Smoothed {
    fn run(&self, cx: &mut StepContext<'_>, rows: LossRows) -> graph_manager::Result<()> {
        cx.run(SmoothedLosses { rows, smoothing: self.smoothing })
    }
}

/// The losses of rows; with a control block the gradient of the logits takes their place.
#[derive(Debug)]
struct SmoothedLosses {
    rows: LossRows,
    smoothing: f32,
}

impl CustomOp for SmoothedLosses {
    fn name(&self) -> &'static str {
        "smoothed_losses"
    }

    fn check(&self) -> Result<()> {
        kernels::check_alike("smoothed_losses", &[self.rows.logits])?;
        kernels::check_f32("smoothed_losses", &self.rows.losses)
    }

    fn accesses(&self) -> Accesses {
        let LossRows { logits, targets, losses, control, .. } = self.rows;
        let written = control.map(|_| logits);
        Accesses::new([logits, targets].into_iter().chain(control), [losses].into_iter().chain(written))
    }

    fn run_host(&self, tensors: &mut HostTensors<'_>) -> Result<()> {
        match self.rows.logits.dtype {
            DType::Bf16 => self.run::<bf16>(tensors),
            _ => self.run::<f32>(tensors),
        }
    }

    fn cuda_work(&self, _: &GpuProperties) -> Option<CudaWork<'_>> {
        let LossRows { logits, vocab, targets, losses, control } = self.rows;
        let name = of_type(logits.dtype, ["smoothed_f32", "smoothed_bf16"]);
        let sizes = [logits.shape.rows(), logits.shape.last(), vocab].map(|size| (size as u64).into());
        let control = control.map_or(0u64.into(), Into::into);
        let arguments = [logits.into(), targets.into(), losses.into(), control, self.smoothing.into()];
        Some(kernels::launch(name, logits.shape.rows(), arguments.into_iter().chain(sizes).collect()))
    }
}

impl SmoothedLosses {
    fn run<T: Float>(&self, tensors: &mut HostTensors<'_>) -> Result<()> {
        let LossRows { logits, vocab, targets, losses, control } = self.rows;
        let targets = tensors.read::<i32>(&targets)?;
        let losses = tensors.write::<f32>(&losses)?;
        let columns = logits.shape.last();
        let share = self.smoothing / vocab as f32;
        let Some(control) = control else {
            let logits = tensors.read::<T>(&logits)?;
            for ((loss, row), target) in losses.iter_mut().zip(logits.chunks(columns)).zip(targets) {
                *loss = Exponentials::of(&row[..vocab]).loss(row, *target, self.smoothing, share);
            }
            return Ok(());
        };
        let control: Control = bytemuck::pod_read_unaligned(tensors.read::<u8>(&control)?);
        let logits = tensors.write::<T>(&logits)?;
        for ((loss, row), target) in losses.iter_mut().zip(logits.chunks_mut(columns)).zip(targets) {
            let of = Exponentials::of(&row[..vocab]);
            *loss = of.loss(row, *target, self.smoothing, share);
            for (column, logit) in row.iter_mut().enumerate() {
                let wanted = share + if column as i32 == *target { 1.0 - self.smoothing } else { 0.0 };
                let gradient = (logit.to_f32() - of.highest - of.log_sum).exp() - wanted;
                let counts = *target >= 0 && column < vocab;
                *logit = T::from_f32(if counts { control.grad_scale * gradient } else { 0.0 });
            }
        }
        Ok(())
    }
}

/// Sums over the logits of a row, less the highest.
struct Exponentials {
    highest: f32,
    log_sum: f32,
    total: f32,
}

impl Exponentials {
    fn of<T: Float>(row: &[T]) -> Exponentials {
        let highest = row.iter().map(|logit| logit.to_f32()).fold(f32::NEG_INFINITY, f32::max);
        let less = || row.iter().map(|logit| logit.to_f32() - highest);
        Exponentials { highest, log_sum: less().map(f32::exp).sum::<f32>().ln(), total: less().sum() }
    }

    fn loss<T: Float>(&self, row: &[T], target: i32, smoothing: f32, share: f32) -> f32 {
        let Some(target) = usize::try_from(target).ok() else { return 0.0 };
        let at_target = row[target].to_f32() - self.highest;
        self.log_sum - (1.0 - smoothing) * at_target - share * self.total
    }
}
