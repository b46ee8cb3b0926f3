//! Reads the loads of experts in `metrics.jsonl`: of some steps only, as there may be many thousands of numbers in each.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;

use super::metrics::Metrics;

/// The most steps that are read.
pub(crate) const MOST_STEPS: usize = 60;

/// The load of each expert over the mean load of the expert's block. A missing number is `None`.
pub(crate) type Loads = Vec<Option<f64>>;

/// The loads of the experts of each block, by step.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ExpertLoads {
    /// The steps that were read, in order.
    pub(crate) steps: Vec<u64>,
    /// By block: the loads in each of the steps; none if the step has none of this block.
    pub(crate) blocks: BTreeMap<u64, Vec<Loads>>,
}

#[derive(Deserialize)]
struct Step {
    step: u64,
}

#[derive(Deserialize)]
struct StepLoads {
    expert_loads: Value,
}

impl ExpertLoads {
    /// The loads in a file's bytes, of steps that are spread over all that have loads. `metrics` is the same file. What
    /// is not as the trainer writes it is left out.
    pub(crate) fn read(bytes: &[u8], metrics: &Metrics) -> ExpertLoads {
        let with_loads: Vec<u64> =
            metrics.rows.values().filter(|row| row.expert_loads.is_some()).map(|row| row.step).collect();
        let wanted: BTreeSet<u64> = spread(&with_loads, MOST_STEPS).into_iter().copied().collect();
        let mut found: BTreeMap<u64, BTreeMap<u64, Loads>> = BTreeMap::new();
        if wanted.is_empty() {
            return ExpertLoads::default();
        }
        for line in bytes.split(|byte| *byte == b'\n') {
            let step = serde_json::from_slice(line).map(|Step { step }| step).ok().filter(|step| wanted.contains(step));
            let Some(step) = step else { continue };
            if let Ok(StepLoads { expert_loads }) = serde_json::from_slice(line) {
                // A step that was done again has its newer loads.
                found.insert(step, expert_loads.as_array().into_iter().flatten().filter_map(block_loads).collect());
            }
        }
        found.retain(|_, blocks| !blocks.is_empty());
        let blocks: BTreeSet<u64> = found.values().flat_map(|blocks| blocks.keys().copied()).collect();
        let of_block = |block| found.values().map(|blocks| blocks.get(&block).cloned().unwrap_or_default()).collect();
        ExpertLoads {
            steps: found.keys().copied().collect(),
            blocks: blocks.into_iter().map(|block| (block, of_block(block))).collect(),
        }
    }
}

/// A block's number and the loads of the block's experts.
fn block_loads(value: &Value) -> Option<(u64, Loads)> {
    let block = value["block"].as_u64()?;
    let tokens: Vec<Option<f64>> =
        value["tokens"].as_array()?.iter().map(|tokens| tokens.as_f64().filter(|tokens| *tokens >= 0.0)).collect();
    let known = tokens.iter().flatten().count() as f64;
    let mean = tokens.iter().flatten().sum::<f64>() / known;
    let is_known = mean > 0.0 && mean.is_finite();
    let over_mean = |tokens: Option<f64>| tokens.filter(|_| is_known).map(|tokens| tokens / mean);
    let loads: Loads = tokens.into_iter().map(over_mean).collect();
    (!loads.is_empty()).then_some((block, loads))
}

/// At most `most` items, evenly spread. The first and the last are among them.
pub(crate) fn spread<T>(all: &[T], most: usize) -> Vec<&T> {
    let few = all.len().min(most.max(2));
    (0..few).map(|at| &all[at * (all.len() - 1) / few.saturating_sub(1).max(1)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> ExpertLoads {
        ExpertLoads::read(text.as_bytes(), &Metrics::read(text.as_bytes()))
    }

    #[test]
    fn loads_are_over_the_mean_and_what_is_malformed_is_left_out() {
        let loads = read(
            "{\"step\":1}\n\
             {\"step\":2,\"expert_loads\":[{\"block\":1,\"tokens\":[1,3]},{\"block\":3,\"tokens\":[0,0]}]}\n\
             {\"step\":3,\"expert_loads\":[{\"block\":1,\"tokens\":[null,3,\"x\",-1,5]},{\"block\":-1,\"tokens\":[1]},7]}\n\
             {\"step\":4,\"expert_loads\":\"none\"}\n{\"step\":5,\"expert_loads\":[{\"block\":3}]}\n\
             {\"step\":6,\"expert_loads\":null}\n{\"step\":7,\"expert_loads\":[{\"block\":1,\"tokens\":[]}]}\n\
             {\"step\":8,\"expert_loads\":[{\"block\":1,\"tokens\":[1e308,1e308]}]}\n\
             no line\n{\"step\":9,\"expert_loads\":[{\"blo",
        );
        assert_eq!(loads.steps, [2, 3, 8]);
        let first = vec![vec![Some(0.5), Some(1.5)], vec![None, Some(0.75), None, None, Some(1.25)], vec![None, None]];
        let third = vec![vec![None, None], vec![], vec![]];
        assert_eq!(loads.blocks, BTreeMap::from([(1, first), (3, third)]));
    }

    #[test]
    fn a_step_that_was_done_again_has_its_newer_loads() {
        let line = |step: u64, tokens: &str| {
            format!("{{\"step\":{step},\"expert_loads\":[{{\"block\":0,\"tokens\":{tokens}}}]}}\n")
        };
        let loads = read(&(line(1, "[1,1]") + &line(2, "[2,0]") + &line(3, "[2,0]") + &line(2, "[0,2]")));
        assert_eq!(loads.steps, [1, 2]);
        assert_eq!(loads.blocks[&0], [[Some(1.0), Some(1.0)], [Some(0.0), Some(2.0)]]);
    }

    #[test]
    fn few_of_many_are_spread_from_the_first_to_the_last() {
        let all: Vec<u64> = (0..1000).collect();
        let few = spread(&all, 60);
        assert!(few.len() == 60 && *few[0] == 0 && *few[59] == 999 && few.is_sorted());
        assert!(few.windows(2).all(|pair| (16..=17).contains(&(pair[1] - pair[0]))));
        assert_eq!(spread(&all[..3], 60), [&0, &1, &2]);
        assert_eq!(spread(&all[..1], 0), [&0]);
        assert!(spread(&all[..0], 60).is_empty());
    }
}
