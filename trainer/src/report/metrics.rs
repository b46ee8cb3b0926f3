//! The numbers of a step: a line for people, and a JSON object in `metrics.jsonl`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;

use common::files::{create_file, open_file, open_to_change, replace_file};
use common::fit::width;
use common::format::count;
use engine::fp8::Fp8Losses;
use engine::step::BlockLoad;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::checkpoint::ChangedSettings;
use crate::report::fp8_losses;
use crate::report::step_file::StepFile;
use crate::told::tell;

/// The numbers of a step, as in `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepMetrics {
    /// The number of steps done after this step, as in checkpoints: the first step is 1.
    pub step: usize,
    /// Settings that changed with this step: in the first step after a run went on with others.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub changed_settings: ChangedSettings,
    /// Samples trained on after this step, over all ranks.
    pub samples: u64,
    /// Tokens of each sample of the step, in a run with several lengths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seq_length: Option<usize>,
    /// Mean loss over the global batch, nats.
    #[serde(deserialize_with = "or_nan")]
    pub loss: f64,
    /// Mean terms of the loss beside `loss`, nats, by name. They are not part of `loss`. Of pairs of answers the means that
    /// TRL tells, by its names, such as `rewards/margins`.
    #[serde(flatten)]
    pub added: BTreeMap<String, f64>,
    /// The largest load of an expert over the mean load of the block's experts, in the block with the largest such
    /// number; left out for a model without experts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expert_imbalance: Option<f64>,
    /// The largest load of a rank over the mean load of the ranks that divide a block's experts, in the block with the
    /// largest such number; left out if no ranks divide experts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank_imbalance: Option<f64>,
    /// Choices that were dropped because of experts' loads, over all blocks; left out if loads are not limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropped_choices: Option<f64>,
    /// Whether the step ran a second time, as rows of experts had no room in the budget; left out if not.
    #[serde(default, skip_serializing_if = "is_false")]
    pub ran_again: bool,
    /// The tokens of each expert, by block, in steps that have a line of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expert_loads: Vec<BlockLoad>,
    /// Gradient norm before clipping.
    #[serde(deserialize_with = "or_nan")]
    pub grad_norm: f32,
    /// Updates skipped up to this step, because of gradients that were not finite or of spikes; left out while there are none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skipped: u32,
    /// Learning rate.
    pub lr: f64,
    /// Tokens (or rows) per second over all ranks.
    pub tokens_per_s: f64,
    /// Model TFLOP/s over all ranks.
    pub tflops: f64,
    /// Share of the devices' peak, if that is known.
    pub mfu: Option<f64>,
    /// Wall time of the step, milliseconds.
    pub step_ms: f64,
    /// The host's time to prepare and submit the step, milliseconds.
    pub host_ms: f64,
    /// The step's wait for the batch, milliseconds. It is near 0 if reading data keeps up.
    pub data_wait_ms: f64,
    /// Planned device memory of this rank.
    pub memory_bytes: usize,
    /// Mean validation loss, if an evaluation followed this step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_loss: Option<f64>,
    /// The perplexity of that loss, for a model of tokens: its exponential.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_perplexity: Option<f64>,
    /// The means of pairs of answers on the validation data, if an evaluation followed this step.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub validation_pairs: BTreeMap<String, f64>,
    /// Mean losses on the further validation data, by name, if an evaluation followed this step.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub validation_sets: BTreeMap<String, f64>,
    /// The losses of 8-bit copies, if measured in the step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fp8: Option<Fp8Losses>,
}

/// For serde: a number that is not finite is null in JSON.
fn or_nan<'d, D: Deserializer<'d>, T: Deserialize<'d> + From<f32>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_else(|| f32::NAN.into()))
}

/// Whether a number is 0, for serde, which passes a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_false(flag: &bool) -> bool {
    !flag
}

impl StepMetrics {
    /// A line for people, of a run with so many steps, with the time left if known. If it may have `columns` only, some
    /// numbers are left out, and those of an evaluation follow on a second line.
    pub fn line(&self, steps: usize, left: Option<&str>, columns: Option<usize>) -> String {
        let digits = steps.to_string().len();
        let columns = columns.unwrap_or(usize::MAX);
        // Numbers with a rank may be left out, the highest rank first.
        let mut numbers = vec![
            (0, format!("step {:>digits$}/{steps}", self.step)),
            (0, format!("loss {:.4}", self.loss)),
            (1, format!("norm {:.3}", self.grad_norm)),
            (2, format!("lr {:.2e}", self.lr)),
            (0, format!("{:.1} ms", self.step_ms)),
            (0, format!("{:.0} tok/s", self.tokens_per_s)),
            (3, format!("{}FLOP/s", count(self.tflops * 1e12))),
        ];
        numbers.extend(self.mfu.map(|mfu| (0, format!("MFU {:.1} %", mfu * 100.0))));
        numbers.extend(left.map(|left| (0, format!("{left} left"))));
        let of_pairs = |all: &BTreeMap<String, f64>, what: &str| {
            let shown = [("rewards/margins", "margin"), ("rewards/accuracies", "accuracy")];
            let shown =
                shown.into_iter().filter_map(|(name, word)| Some(format!("{what}{word} {:.3}", all.get(name)?)));
            shown.collect::<Vec<String>>()
        };
        let added = self.added.iter().filter(|(name, _)| !name.contains('/'));
        let added = added.map(|(name, loss)| format!("{} {loss:.2e}", name.replace('_', "-")));
        let added = added.chain(of_pairs(&self.added, ""));
        let others = [
            self.expert_imbalance.map(|imbalance| format!("largest load {imbalance:.2} x mean")),
            self.rank_imbalance.map(|imbalance| format!("of a rank {imbalance:.2} x mean")),
            self.dropped_choices.filter(|dropped| *dropped > 0.0).map(|dropped| format!("dropped choices {dropped}")),
            self.ran_again.then(|| "run again with more room for rows".into()),
            self.validation_loss.map(|loss| format!("validation {loss:.4}")),
            self.validation_perplexity.map(|value| format!("perplexity {value:.2}")),
            Some(of_pairs(&self.validation_pairs, "validation ").join("  ")).filter(|words| !words.is_empty()),
            self.fp8.map(|shares| fp8_losses::words(&shares)),
        ];
        let others = added.chain(others.into_iter().flatten()).collect::<Vec<String>>().join("  ");
        let joined = |numbers: &[(u8, String)]| {
            numbers.iter().map(|(_, number)| number.as_str()).collect::<Vec<&str>>().join("  ")
        };
        for rank in [3, 2, 1] {
            if width(&joined(&numbers)) > columns {
                numbers.retain(|(of, _)| *of != rank);
            }
        }
        let line = joined(&numbers);
        match others.as_str() {
            "" => line,
            _ if width(&line) + 2 + width(&others) <= columns => format!("{line}  {others}"),
            _ => format!("{line}\n  {others}"),
        }
    }
}

/// The file with a line for each step.
pub const METRICS: &str = "metrics.jsonl";

/// Creates the file in `folder`.
///
/// # Errors
/// Operating system errors.
pub(crate) fn created(folder: &Path) -> std::io::Result<StepFile> {
    let path = folder.join(METRICS);
    let file = create_file(&path)?;
    StepFile::new(path, file)
}

/// Continues the file in `folder` after `step` steps. Lines of later steps, and an incomplete last line, are removed, so that
/// each step appears once. `carried` has lines from the checkpoint; those of missing steps are added.
///
/// # Errors
/// Operating system errors.
pub(crate) fn resumed(folder: &Path, step: usize, carried: &[u8]) -> std::io::Result<StepFile> {
    let path = folder.join(METRICS);
    let (mut file, _) = continued(&path, "step", step)?;
    if !carried.is_empty() {
        file = merged(&path, file, carried, step)?;
    }
    StepFile::new(path, file)
}

/// The metrics of a folder after the first of `steps`, up to the last. Damaged lines are left out.
///
/// # Errors
/// Operating system errors.
pub(crate) fn between(folder: &Path, steps: Range<u64>) -> std::io::Result<Vec<StepMetrics>> {
    let mut all = Vec::new();
    for line in BufReader::new(open_file(&folder.join(METRICS))?).split(b'\n') {
        all.extend(serde_json::from_slice::<StepMetrics>(&line?).ok());
    }
    all.retain(|metrics| (steps.start + 1..=steps.end).contains(&(metrics.step as u64)));
    Ok(all)
}

/// The last step of a metrics file; 0 for a file without steps.
///
/// # Errors
/// Operating system errors.
pub(crate) fn last_step(path: &Path) -> std::io::Result<u64> {
    let mut last = 0;
    for line in BufReader::new(open_file(path)?).split(b'\n') {
        let value: Option<Value> = serde_json::from_slice(&line?).ok();
        last = value.and_then(|value| value["step"].as_u64()).unwrap_or(last);
    }
    Ok(last)
}

/// Adds to a file of whole lines those of `carried` up to `step` that it lacks, each in its place.
fn merged(path: &Path, mut file: File, carried: &[u8], step: usize) -> std::io::Result<File> {
    let mut content = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut content)?;
    let mut steps: BTreeMap<u64, &[u8]> = BTreeMap::new();
    for line in content.split_inclusive(|byte| *byte == b'\n').chain(carried.split_inclusive(|byte| *byte == b'\n')) {
        let value: Option<Value> = serde_json::from_slice(line).ok();
        let of = value.and_then(|value| value["step"].as_u64()).filter(|of| *of <= step as u64);
        if let Some(of) = of.filter(|_| line.ends_with(b"\n")) {
            steps.entry(of).or_insert(line);
        }
    }
    replaced(path, |copy| steps.values().try_for_each(|line| copy.write_all(line)))
}

/// Opens a file of one JSON object per line, to continue after `step` steps. Lines with a later step in `key`, and an
/// incomplete last line, are removed. Damaged lines are removed too, with a warning. Also returns the last line that
/// stays.
pub(crate) fn continued(path: &Path, key: &str, step: usize) -> std::io::Result<(File, Option<Value>)> {
    let mut file = open_to_change(path)?;
    let Lines { ranges, last, damaged } = lines_up_to(&file, key, step)?;
    if let [first, more @ ..] = &damaged[..] {
        let more = if more.is_empty() { String::new() } else { format!(", and {} more", more.len()) };
        tell(&format!("WARNING: {} is damaged: line {first}{more} was removed", path.display()));
    }
    match &ranges[..] {
        [] => file.set_len(0)?,
        [start] if start.start == 0 => file.set_len(start.end)?,
        parts => file = copied(path, &mut file, parts)?,
    }
    file.seek(SeekFrom::End(0))?;
    Ok((file, last))
}

/// The lines of a continued file.
#[derive(Default)]
struct Lines {
    /// The bytes that stay. Adjacent lines are one range.
    ranges: Vec<Range<u64>>,
    /// The last line that stays.
    last: Option<Value>,
    /// Numbers of damaged lines, from 1.
    damaged: Vec<usize>,
}

fn lines_up_to(file: &File, key: &str, step: usize) -> std::io::Result<Lines> {
    let (mut reader, mut line) = (BufReader::new(file), Vec::new());
    let (mut lines, mut at, mut before) = (Lines::default(), 0, 0);
    for number in 1.. {
        line.clear();
        let end = at + reader.read_until(b'\n', &mut line)? as u64;
        if line.last() != Some(&b'\n') {
            break; // the end, or an incomplete last line
        }
        let value: Option<Value> = serde_json::from_slice(&line).ok();
        match value.as_ref().and_then(|value| value[key].as_u64()) {
            Some(of) if of > before && of <= step as u64 => {
                match lines.ranges.last_mut().filter(|range| range.end == at) {
                    Some(range) => range.end = end,
                    None => lines.ranges.push(at..end),
                }
                (lines.last, before) = (value, of);
            }
            Some(_) => {}
            None => lines.damaged.push(number),
        }
        at = end;
    }
    Ok(lines)
}

/// Replaces the file at `path` by the given parts of the file.
fn copied(path: &Path, file: &mut File, parts: &[Range<u64>]) -> std::io::Result<File> {
    replaced(path, |copy| {
        for part in parts {
            file.seek(SeekFrom::Start(part.start))?;
            std::io::copy(&mut file.take(part.end - part.start), copy)?;
        }
        Ok(())
    })
}

/// Replaces the file at `path` by the output of `write`, on disk.
fn replaced(path: &Path, write: impl FnOnce(&mut File) -> std::io::Result<()>) -> std::io::Result<File> {
    replace_file(path, |copy| {
        write(copy)?;
        copy.sync_all()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(step: usize) -> String {
        format!("{{\"step\":{step},\"samples\":{}}}\n", step * 8)
    }

    fn lines(steps: impl IntoIterator<Item = usize>) -> String {
        steps.into_iter().map(line).collect()
    }

    #[test]
    fn a_continued_file_keeps_whole_lines_of_earlier_steps_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(METRICS);
        let all = lines(1..6);
        for (text, step, kept) in
            [(all.clone(), 3, 3), (all.clone() + "{\"ste", 9, 5), (all, 0, 0), (String::new(), 2, 0)]
        {
            std::fs::write(&path, text).unwrap();
            resumed(folder.path(), step, b"").unwrap().sync().unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), lines(1..=kept), "continued after {step}");
        }
    }

    #[test]
    fn a_damaged_line_costs_a_continued_file_that_line_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(METRICS);
        let line = |step: usize| line(step).into_bytes();
        for damaged in [vec![0, 0, 0, b'\n'], vec![b'{', 0xff, b'\n'], b"[]\n".into(), line(1)] {
            for at in [0, 3, 11] {
                // One of the damaged lines is that of step 1. At the first place it is the right one.
                let mut lines: Vec<Vec<u8>> = (1..15).map(line).collect();
                lines[at] = damaged.clone();
                std::fs::write(&path, lines.concat()).unwrap();
                let (mut file, last) = continued(&path, "step", 12).unwrap();
                file.write_all(&line(13)).unwrap();
                let stays = |step: &usize| *step != at + 1 || (at == 0 && damaged == line(1));
                let expected: Vec<u8> = (1..=13).filter(stays).flat_map(line).collect();
                assert_eq!(std::fs::read(&path).unwrap(), expected, "line {at} is {damaged:?}");
                assert_eq!(last.unwrap()["step"], if at == 11 { 11 } else { 12 });
            }
        }
    }

    #[test]
    fn lines_that_a_checkpoint_carried_take_their_places_and_steps_appear_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(METRICS);
        let line = |step: usize, loss: usize| format!("{{\"step\":{step},\"samples\":8,\"loss\":{loss}}}\n");
        let lines = |steps: &[usize], loss| steps.iter().map(|step| line(*step, loss)).collect::<String>();
        for (there, carried, all) in [
            (lines(&[1, 2], 1), lines(&[3, 4], 2), lines(&[1, 2], 1) + &lines(&[3, 4], 2)),
            (lines(&[1, 2, 3], 1) + "{\"st", lines(&[3, 4, 5], 2), lines(&[1, 2, 3], 1) + &lines(&[4], 2)),
            (lines(&[1, 4], 1), lines(&[2, 3, 4], 2) + "no line", line(1, 1) + &lines(&[2, 3], 2) + &line(4, 1)),
            (String::new(), lines(&[1, 2, 3, 4], 2), lines(&[1, 2, 3, 4], 2)),
        ] {
            std::fs::write(&path, there).unwrap();
            resumed(folder.path(), 4, carried.as_bytes()).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), all);
        }
    }

    #[test]
    fn a_line_fits_its_columns_and_says_what_is_most_important() {
        let step = StepMetrics {
            step: 200,
            changed_settings: BTreeMap::new(),
            samples: 3200,
            seq_length: None,
            loss: 2.4814,
            added: BTreeMap::new(),
            expert_imbalance: None,
            rank_imbalance: None,
            dropped_choices: None,
            ran_again: false,
            expert_loads: Vec::new(),
            grad_norm: 0.721,
            skipped: 0,
            lr: 1.99e-3,
            tokens_per_s: 1_500_002.0,
            tflops: 80.26,
            mfu: Some(0.412),
            step_ms: 1136.5,
            host_ms: 1.0,
            data_wait_ms: 0.0,
            memory_bytes: 1,
            validation_loss: Some(2.6141),
            validation_pairs: BTreeMap::new(),
            validation_sets: BTreeMap::new(),
            validation_perplexity: Some(13.66),
            fp8: None,
        };
        let whole = "step  200/2000  loss 2.4814  norm 0.721  lr 1.99e-3  1136.5 ms  1500002 tok/s  80.26 TFLOP/s  \
                     MFU 41.2 %  6 min left  validation 2.6141  perplexity 13.66";
        assert_eq!(step.line(2000, Some("6 min"), Some(200)), whole);
        for columns in [60, 70, 80, 90, 100, 120, 140] {
            let line = step.line(2000, Some("6 min"), Some(columns));
            assert!(columns < 80 || line.lines().all(|line| width(line) <= columns), "{columns}: {line}");
            assert!(line.starts_with("step  200/2000  loss 2.4814") && line.contains("6 min left"), "{line}");
            assert!(line.ends_with("validation 2.6141  perplexity 13.66"), "{line}");
        }
        let narrow = "step  200/2000  loss 2.4814  1136.5 ms  1500002 tok/s  MFU 41.2 %  6 min left\n  validation 2.6141  \
                      perplexity 13.66";
        assert_eq!(step.line(2000, Some("6 min"), Some(80)), narrow);
    }
}
