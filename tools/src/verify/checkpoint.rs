//! A checkpoint that all ranks of a layout save and one rank loads.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use device::ops::CollectiveKind;
use device::{DType, Device};
use engine::step::Stage;
use launch::watch::activity::Activity;
use parallel::ThreadRank;
use trainer::checkpoint::{Occasion, Origin, Progress, SaveRequest, Validated, Writers, load, save, verify};
use trainer::config::RunConfig;
use trainer::config::plan::RunPlan;
use trainer::error::RunError;
use trainer::process_group::ProcessGroup;
use trainer::run::set_up::recorded_stage;

use super::numbers::host;
use super::values::{Shard, kept};

/// Saves the state of all ranks in a folder, as a run does, and returns the checkpoint's own. All ranks call it together.
///
/// # Errors
/// See [`save`].
pub(super) fn save_in(
    folder: &Path,
    stage: &mut Stage,
    writers: Writers,
    rank: &ThreadRank,
) -> Result<PathBuf, RunError> {
    let sum = sum_over_all(stage.device(), rank)?;
    let any = sum.clone();
    let writers = Writers {
        // A rank that hears nothing of the others does not go on, either.
        any: Rc::new(move |here| any(here.into()).is_none_or(|ranks| ranks > 0)),
        sum: Rc::new(move |here| sum(here).unwrap_or(here)),
        ..writers
    };
    let request = SaveRequest {
        dir: folder,
        progress: Progress::default(),
        validated: Validated::default(),
        origin: &Arc::new(Origin::default()),
        metrics: b"",
        writers: &writers,
        occasion: Occasion::Interval,
        memory: None,
        make_room: &|| Ok(()),
    };
    Ok(save(stage, &request)?)
}

/// The sum of a number over all ranks, about; `None` if a rank has failed.
fn sum_over_all(device: &Device, rank: &ThreadRank) -> device::Result<Rc<dyn Fn(u64) -> Option<u64>>> {
    let (device, all, mut areas) = (device.clone(), rank.communicator("all"), Vec::new());
    let value = device.allocate_tensor(&mut areas, "sum", [1], DType::F32)?;
    let sum = move |here: f32| {
        let _areas = &areas;
        device.upload(&value, &[here])?;
        all.start(CollectiveKind::AllReduceSum, &value, &value)?.wait()?;
        device.download::<f32>(&value)
    };
    Ok(Rc::new(move |here| sum(here as f32).ok().map(|sum| sum[0] as u64)))
}

/// What one rank loads from a checkpoint: weights, states, and the magnitudes of delayed scales.
///
/// # Errors
/// A checkpoint that one rank cannot load.
pub(super) fn loaded(config: &RunConfig, checkpoint: &Path) -> Result<Vec<Shard>, RunError> {
    let plan = RunPlan::new(config.clone(), 1)?;
    let stage = recorded_stage(&plan, &host()?, &ProcessGroup::single(1), None)?;
    let activity = Activity::default();
    let fails = |problem: &dyn std::fmt::Display| {
        RunError::Layout(format!("the checkpoint of several ranks does not load on one: {problem}"))
    };
    let manifest = verify(checkpoint, &activity).map_err(|damage| fails(&damage))?;
    load(checkpoint, &manifest, &stage, &activity).map_err(|error| match error {
        RunError::User(error) => fails(&error.what),
        other => other,
    })?;
    kept(&stage)
}
