//! The settings that a run changed when it went on.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use toml::Value;

use crate::config::by_key;

/// Sections that change no number.
const WITHOUT_EFFECT: [&str; 5] = ["checkpoint.", "logging.", "cuda_graph.", "parallel.", "recompute."];

/// Settings of other sections that change no number.
const ALSO_WITHOUT_EFFECT: [&str; 7] = [
    "train.device",
    "train.threads",
    "train.eval_interval",
    "train.eval_steps",
    "train.early_stop_patience",
    "train.exit_interval",
    "train.exit_duration_minutes",
];

/// A setting before and after. `None` is unset.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// In the run that wrote the checkpoint.
    pub was: Option<Value>,
    /// In the run that goes on from it.
    pub now: Option<Value>,
}

/// Changed settings by key, such as `optimizer.lr`.
pub type ChangedSettings = BTreeMap<String, Change>;

/// The settings that differ between two configurations, texts of TOML, of those that numbers depend on.
pub(super) fn changed_settings(before: &str, now: &str) -> ChangedSettings {
    let values = |config: &str| {
        let mut values = by_key(config.parse().unwrap_or_default());
        values.retain(|key, _| {
            let section = WITHOUT_EFFECT.iter().any(|section| key.starts_with(section));
            let alike = section || ALSO_WITHOUT_EFFECT.contains(&key.as_str());
            !alike || key == "parallel.grad_reduce"
        });
        values
    };
    let (before, now) = (values(before), values(now));
    let keys: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    keys.into_iter()
        .map(|key| (key.clone(), Change { was: before.get(key).cloned(), now: now.get(key).cloned() }))
        .filter(|(_, change)| change.was != change.now)
        .collect()
}

/// Each change in words, such as `optimizer.lr = 0.2 (was 0.1)`.
pub(super) fn in_words(changed: &ChangedSettings) -> Vec<String> {
    let shown = |value: &Option<Value>| value.as_ref().map_or("unset".into(), Value::to_string);
    changed.iter().map(|(key, Change { was, now })| format!("{key} = {} (was {})", shown(now), shown(was))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_settings_that_numbers_depend_on_count_as_changes() {
        let before = "[train]\nseed = 1\nthreads = 2\n[optimizer]\nlr = 0.1\n[logging]\ndir = \"a\"\n\
                      [recompute]\ngranularity = \"none\"\n[parallel]\ntensor = 1\ngrad_reduce = \"f32\"\n";
        let now = "[train]\nseed = 1\nthreads = 4\n[optimizer]\nlr = 0.2\nclip = 1.0\n[logging]\ndir = \"b\"\n\
                   [recompute]\ngranularity = \"full\"\n[parallel]\ntensor = 2\ngrad_reduce = \"bf16\"\n";
        assert_eq!(
            in_words(&changed_settings(before, now)),
            [
                "optimizer.clip = 1.0 (was unset)",
                "optimizer.lr = 0.2 (was 0.1)",
                "parallel.grad_reduce = \"bf16\" (was \"f32\")",
            ]
        );
        assert!(changed_settings(now, now).is_empty());
    }
}
