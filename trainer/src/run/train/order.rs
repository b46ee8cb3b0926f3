//! Notices about the order of samples, for a run that continues in the middle of the order.

use common::format::counted;
use data::Source;

use crate::checkpoint::Session;
use crate::config::RunConfig;
use crate::config::plan::RunPlan;
use crate::error::RunError;
use crate::told::tell;

/// Says so if the position of the checkpoint counts in another order than that of this run, or lies in the middle of a batch
/// of conversations of like length. Only rank 0 calls it.
///
/// # Errors
/// Settings of the checkpoint that give no order.
pub(super) fn tell_order(plan: &RunPlan, session: &Session<'_>, source: &dyn Source) -> Result<(), RunError> {
    let samples = session.progress().samples;
    tell_split_batches(plan, samples);
    let Some((before, other_data)) = session.before().filter(|_| samples > 0) else { return Ok(()) };
    let now = &plan.config;
    let others = [other_data, changed(&before, now, &SAMPLES)].concat();
    if !others.is_empty() {
        let begun = source.begun(samples);
        if begun > 0 {
            tell(&format!(
                "notice: samples are other ones than before the checkpoint ({}). The run continues at sample {samples} of \
                 them, so this pass leaves out the first {begun} of its samples. Fix: to read each once, continue with what \
                 the checkpoint has, or begin a new run with --init-from",
                others.join(", ")
            ));
        }
        return Ok(());
    }
    let orders = changed(&before, now, &ORDER);
    if orders.is_empty() {
        return Ok(());
    }
    let displaced = source.displaced(&before.data, before.grouped_batch(), samples)?.unwrap_or_default();
    if displaced.again + displaced.left_out > 0 {
        tell(&format!(
            "notice: the order of samples is another than before the checkpoint ({}), and the run continues at sample \
             {samples} of it. So this pass reads {} again, and leaves out {}. Fix: to read each once, continue with what the \
             checkpoint has",
            orders.join(", "),
            counted(displaced.again as usize, "sample"),
            counted(displaced.left_out as usize, "sample")
        ));
    }
    Ok(())
}

/// A setting, and the setting's value as text.
type Setting = (&'static str, fn(&RunConfig) -> String);

/// The settings that decide which samples the same data have.
const SAMPLES: [Setting; 4] = [
    ("model.seq_length", |config| config.model.seq_length.to_string()),
    ("data.sft_packing", |config| config.data.sft_packing.to_string()),
    ("data.split", |config| if config.data.validation_path.is_some() { 1.0 } else { config.data.split }.to_string()),
    ("data.raw_tokens", |config| config.data.raw_tokens.to_string()),
];

/// The settings that decide the order of the same samples.
const ORDER: [Setting; 3] = [
    ("data.seed", |config| config.data.seed.to_string()),
    ("weights of data.path", |config| {
        let datasets = config.data.path.iter().flat_map(|paths| paths.datasets("data.path").unwrap_or_default());
        format!("{:?}", datasets.map(|(weight, _)| weight).collect::<Vec<_>>())
    }),
    ("data.group_by_length", |config| match config.grouped_batch() {
        Some(batch) => format!("true in batches of {batch}"),
        None => "false".into(),
    }),
];

/// The given settings that differ, as `data.seed = 2 (was 1)`.
fn changed(before: &RunConfig, now: &RunConfig, settings: &[Setting]) -> Vec<String> {
    let values = settings.iter().map(|(key, value)| (key, value(before), value(now)));
    let differ = values.filter(|(_, before, now)| before != now);
    differ.map(|(key, before, now)| format!("{key} = {now} (was {before})")).collect()
}

/// Says so if the run continues in the middle of a batch of conversations of like length.
fn tell_split_batches(plan: &RunPlan, samples: u64) {
    let Some(batch) = plan.config.grouped_batch().filter(|batch| !samples.is_multiple_of(*batch as u64)) else {
        return;
    };
    tell(&format!(
        "notice: data.group_by_length makes batches of train.global_batch_size = {batch} conversations, and the run \
         continues at sample {samples}, within one. So its steps have conversations of two batches, and are longer. \
         Fix: continue with the batch size of before, or from a checkpoint at a multiple of {batch} samples"
    ));
}
