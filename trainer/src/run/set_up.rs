//! From a plan to a stage that is ready to train.

use common::UserError;
use common::format::bytes;
use device::{DType, Device};
use engine::model::TensorParallel;
use engine::step::{Stage, StageGroups, StageOptions, StepSettings};
use parallel::Place;

use crate::config::plan::{ModelPlan, RunPlan};
use crate::error::RunError;
use crate::hf::Pretrained;
use crate::ranks::Ranks;
use crate::run::host_memory::fits_host;

/// Makes this rank's stage, with its first weights, and records its steps, so that its memory is known.
///
/// # Errors
/// Out of memory, or settings that do not go together.
pub fn stage(plan: &RunPlan, device: &Device, ranks: &Ranks) -> Result<Stage, RunError> {
    // A dry host device plans for another machine.
    if device.gpu().is_some() || !device.is_dry() {
        check_fits(plan, device, ranks)?;
    }
    let mut stage = recorded_stage(plan, device, ranks)?;
    if device.gpu().is_some() && !device.is_dry() && plan.grid.pipeline > 1 {
        stage.rehearse(&plan.batch_size.microbatches(), plan.eval_interval().is_some())?;
        device.synchronize()?;
    }
    Ok(stage)
}

/// Puts the weights that `model.init_from` names into a stage, if it is set; for a run that no checkpoint goes on with.
///
/// # Errors
/// Weights that are missing, broken, or do not fit.
pub fn load_start(plan: &RunPlan, device: &Device, stage: &Stage) -> Result<(), RunError> {
    if let (Some(folder), ModelPlan::Gpt(shape)) = (&plan.config.model.init_from, &plan.model)
        && !device.is_dry()
    {
        Pretrained::open(folder.as_ref())?.load(shape, stage.params(), device)?;
    }
    Ok(())
}

/// Fails where the run does not fit the memory of the GPU, or of the host, before anything is allocated: goes through
/// set-up without taking memory. Meanwhile the first rank of each stage in turn times how those matrix products that no
/// stage before has are best done on this GPU, and all ranks do as it found.
fn check_fits(plan: &RunPlan, device: &Device, ranks: &Ranks) -> Result<(), RunError> {
    let mut needed = None;
    for pipeline in 0..plan.grid.pipeline {
        let first = plan.grid.rank(Place { pipeline, tensor: 0, data: 0 });
        if ranks.rank == first {
            needed = Some(bytes_needed(plan, device, ranks));
            (ranks.text_of)(first, device.export_choices().unwrap_or_default());
        } else {
            device.import_choices(&(ranks.text_of)(first, String::new()))?;
        }
    }
    let needed = needed.unwrap_or_else(|| bytes_needed(plan, device, ranks))?;
    if device.gpu().is_none() {
        return Ok(fits_host(needed, device, ranks)?);
    }
    match device.gpu_memory()? {
        Some((free, total)) if needed > free => Err(UserError::new(
            format!(
                "a rank needs {} of GPU memory, {} of {} are free",
                bytes(needed),
                bytes(free),
                bytes(total)
            ),
            "weights, optimizer state and activations fit a rank's GPU",
            "set a smaller train.micro_batch_size, recompute.granularity, or a smaller model; `--dry-run` shows what takes how much",
        )
        .into()),
        _ => Ok(()),
    }
}

/// What a stage takes of the device's memory, found without taking it.
fn bytes_needed(plan: &RunPlan, device: &Device, ranks: &Ranks) -> Result<usize, RunError> {
    let dry = device.is_dry();
    device.set_dry(true);
    let needed = recorded_stage(plan, device, ranks).map(|stage| {
        let needed = device.allocated_bytes();
        drop(stage);
        needed
    });
    device.set_dry(dry);
    needed
}

fn recorded_stage(plan: &RunPlan, device: &Device, ranks: &Ranks) -> Result<Stage, RunError> {
    let sequence = plan.config.parallel.sequence_parallel;
    let tensor = TensorParallel { group: ranks.tensor.clone(), sequence };
    let options = StageOptions {
        seed: plan.config.train.seed,
        microbatches: plan.microbatches,
        optimizer: plan.optimizer.clone(),
        bucket_bytes: plan.config.parallel.bucket_mib << 20,
        distributed_optimizer: plan.config.parallel.distributed_optimizer,
        grad_reduce: if plan.config.parallel.grad_reduce == "bf16" { DType::Bf16 } else { DType::F32 },
        pipeline: plan.stage(ranks.rank),
        graphs: plan.graphs.clone(),
    };
    let architecture = plan.model.part(tensor, plan.layers(ranks.rank));
    let groups = StageGroups { data_parallel: ranks.group.clone(), pipeline: ranks.pipeline.clone() };
    let mut stage = Stage::new(device, &architecture, options, groups)?;
    for (at, microbatches) in plan.batch_size.microbatches().into_iter().enumerate() {
        stage.record(microbatches, at == 0 && plan.eval_interval().is_some())?;
    }
    stage.graphs().allocate()?;
    let barrier = ranks.barrier.clone();
    stage.graphs().before_capture(move || {
        barrier();
        Ok(())
    });
    Ok(stage)
}

/// What the host decides for a step of so many microbatches a rank that begins with sample `first` of all ranks.
pub fn settings(plan: &RunPlan, rank: usize, step: usize, first: u64, microbatches: usize) -> StepSettings {
    let samples = microbatches * plan.config.train.micro_batch_size;
    StepSettings {
        step: step as u32,
        microbatches,
        first_sample: first + (plan.grid.place(rank).data * samples) as u64,
        learning_rate: plan.schedule.at(step) as f32,
        clip: plan.config.optimizer.clip as f32,
    }
}
