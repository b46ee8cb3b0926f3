//! The texts that the model wrote while it trained.

use std::collections::BTreeMap;

use trainer::report::samples::StepSamples;

use super::html::{of_runs, section, table};
use super::run::Run;

/// The most texts of a prompt that are shown: the last ones.
const MOST_TEXTS: usize = 20;

/// The texts in a file of lines. Lines that cannot be read are left out.
pub(crate) fn read(lines: &[u8]) -> Vec<StepSamples> {
    lines.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

/// The section; `None` if no run has such texts.
pub(crate) fn samples(runs: &[Run]) -> Option<String> {
    let with: Vec<&Run> = runs.iter().filter(|run| !run.samples.is_empty()).collect();
    let parts = with.iter().map(|run| (run.name.as_str(), Ok(of_run(&run.samples))));
    (!with.is_empty()).then(|| section("samples", "Samples", &of_runs(parts)))
}

/// A table for each prompt, with the newest text first.
fn of_run(samples: &[StepSamples]) -> String {
    let mut prompts: BTreeMap<&str, Vec<Vec<String>>> = BTreeMap::new();
    for step in samples.iter().rev() {
        for sample in &step.samples {
            let texts = prompts.entry(&sample.prompt).or_default();
            if texts.len() < MOST_TEXTS {
                texts.push(vec![step.step.to_string(), sample.text.clone()]);
            }
        }
    }
    let table =
        |(prompt, rows): (&str, Vec<Vec<String>>)| table(&format!("After {prompt:?}"), &["step", "text"], &rows);
    prompts.into_iter().map(table).collect()
}
