//! Reads `metrics.jsonl`.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use trainer::checkpoint::ChangedSettings;

/// The numbers of a step that the page shows. A missing one, or one that is not finite (null in the file), is `None`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Row {
    /// Steps done, this step included.
    pub(crate) step: u64,
    /// Options that the run changed on going on with this step.
    #[serde(default)]
    pub(crate) changed_settings: ChangedSettings,
    /// Nats.
    pub(crate) loss: Option<f64>,
    /// Nats.
    pub(crate) validation_loss: Option<f64>,
    /// The largest load of an expert over the mean load of the expert's block.
    pub(crate) expert_imbalance: Option<f64>,
    pub(crate) dropped_choices: Option<f64>,
    /// Whether the step has any loads of experts; `ExpertLoads` reads the loads.
    pub(crate) expert_loads: Option<IgnoredAny>,
    pub(crate) grad_norm: Option<f64>,
    pub(crate) lr: Option<f64>,
    pub(crate) tokens_per_s: Option<f64>,
    /// Samples trained on after this step, over all ranks.
    pub(crate) samples: Option<f64>,
    /// Tokens of each sample of the step, in a run with several lengths.
    pub(crate) seq_length: Option<f64>,
    pub(crate) step_ms: Option<f64>,
    /// Planned device memory of rank 0.
    pub(crate) memory_bytes: Option<f64>,
    /// The terms of the loss beside `loss`, nats, by name: all numbers whose names end in `_loss`.
    #[serde(flatten, deserialize_with = "terms")]
    pub(crate) terms: BTreeMap<String, f64>,
}

fn terms<'d, D: Deserializer<'d>>(others: D) -> Result<BTreeMap<String, f64>, D::Error> {
    let others = BTreeMap::<String, Value>::deserialize(others)?;
    let term = |(name, value): (String, Value)| name.ends_with("_loss").then_some((name, value.as_f64()?));
    Ok(others.into_iter().filter_map(term).collect())
}

/// The steps of a run.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// By step.
    pub(crate) rows: BTreeMap<u64, Row>,
    /// Lines that could not be read.
    pub(crate) damaged: usize,
}

impl Metrics {
    /// The steps in a file's bytes. Lines that cannot be read are counted, but a last line without its end is one that
    /// the run is writing. If a run went back to an earlier step, the later steps that it wrote before do not count.
    pub(crate) fn read(bytes: &[u8]) -> Metrics {
        let mut metrics = Metrics::default();
        metrics.add(bytes);
        metrics
    }

    /// As [`Metrics::read`], of more bytes of the file. Returns how many of them are whole lines.
    pub(crate) fn add(&mut self, bytes: &[u8]) -> usize {
        let mut whole = 0;
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            let is_whole = line.ends_with(b"\n");
            whole += if is_whole { line.len() } else { 0 };
            match (serde_json::from_slice::<Row>(line), is_whole) {
                (Ok(row), _) => {
                    self.rows.split_off(&row.step);
                    self.rows.insert(row.step, row);
                }
                (Err(_), true) if !line.trim_ascii().is_empty() => self.damaged += 1,
                (Err(_), _) => {}
            }
        }
        whole
    }

    /// The last step's number; 0 without any.
    pub(crate) fn last_step(&self) -> u64 {
        self.rows.keys().next_back().copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn losses(text: &str) -> Vec<(u64, Option<f64>)> {
        Metrics::read(text.as_bytes()).rows.values().map(|row| (row.step, row.loss)).collect()
    }

    #[test]
    fn numbers_that_are_null_or_missing_are_gaps() {
        let text =
            "{\"step\":1,\"loss\":2.5,\"mfu\":null,\"fp8\":{\"a\":1}}\n{\"step\":2,\"loss\":null}\n{\"step\":3}\n";
        assert_eq!(losses(text), [(1, Some(2.5)), (2, None), (3, None)]);
        assert_eq!(Metrics::read(text.as_bytes()).damaged, 0);
    }

    #[test]
    fn a_term_of_the_loss_is_a_number_whose_name_ends_so() {
        let text = r#"{"step":1,"loss":2.5,"validation_loss":2.4,"mtp_1_loss":6.8,"fp8":{"a":1},"own_loss":null}"#;
        let metrics = Metrics::read(text.as_bytes());
        assert_eq!(metrics.rows[&1].terms, BTreeMap::from([("mtp_1_loss".to_string(), 6.8)]));
    }

    #[test]
    fn damaged_lines_are_counted_and_an_unfinished_last_line_is_not() {
        let bytes =
            b"{\"step\":1,\"loss\":1.0}\n\xff\xfe\n{\"step\":\"x\"}\n\n{\"step\":2,\"loss\":2.0}\n{\"step\":3,\"lo";
        let metrics = Metrics::read(bytes);
        assert_eq!((metrics.rows.len(), metrics.damaged, metrics.last_step()), (2, 2, 2));
    }

    #[test]
    fn a_resumed_run_continues_from_the_step_that_it_went_back_to() {
        let line = |step: u64, loss: f64| format!("{{\"step\":{step},\"loss\":{loss}}}\n");
        let first: String = (1..=5).map(|step| line(step, 1.0)).collect();
        let text = first + &line(3, 2.0) + &line(4, 2.0);
        assert_eq!(losses(&text), [(1, Some(1.0)), (2, Some(1.0)), (3, Some(2.0)), (4, Some(2.0))]);
    }
}
