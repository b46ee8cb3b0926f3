//! All ranks train one model, so their settings and their data must be the same.

use std::collections::BTreeMap;

use common::UserError;
use data::{Identities, Paths, Source};

use crate::config::RunConfig;
use crate::error::RunError;
use crate::process_group::ProcessGroup;

/// Keys that may differ from rank to rank: no result depends on them, or they are compared by other means.
const MAY_DIFFER: &[&str] = &["train.threads", "data.path", "data.validation_path"];

/// The settings that must be the same on all ranks, one per line. `command` has those that are only on the command line:
/// names and values.
pub fn shared_settings(config: &RunConfig, command: &[(&str, String)]) -> String {
    let compared = |key: &str| !key.starts_with("logging.") && !MAY_DIFFER.contains(&key);
    let of_config = config.by_key().into_iter().filter(|(key, _)| compared(key));
    let mut values: BTreeMap<String, String> = of_config.map(|(key, value)| (key, value.to_string())).collect();
    // Nodes may have the same data at different paths. The data themselves are compared later.
    for (key, paths) in [("data.path", &config.data.path), ("data.validation_path", &config.data.validation_path)] {
        values.extend(paths.as_ref().map(|paths| (key.to_string(), describe_datasets(paths, key))));
    }
    values.extend(command.iter().map(|(name, value)| (name.to_string(), value.clone())));
    values.iter().map(|(key, value)| format!("{key} = {value}\n")).collect()
}

/// The number of datasets, and the datasets' weights.
fn describe_datasets(paths: &Paths, key: &str) -> String {
    let datasets = paths.datasets(key).unwrap_or_default();
    match &datasets[..] {
        [_] => "one dataset".into(),
        several => {
            let weights: Vec<String> = several.iter().map(|(weight, _)| weight.to_string()).collect();
            format!("datasets of weights {}", weights.join(", "))
        }
    }
}

/// Fails if the settings of this rank, `here`, are not those of rank 0, `first`. Both come from [`shared_settings`].
///
/// # Errors
/// The first setting that differs.
pub fn check_settings(rank: usize, here: &str, first: &str) -> Result<(), UserError> {
    let lines = |text: &str| -> Vec<String> { text.lines().map(str::to_string).collect() };
    let (here, first) = (lines(here), lines(first));
    let only = |of: &[String], other: &[String]| of.iter().find(|line| !other.contains(line)).cloned();
    let (mine, theirs) = (only(&here, &first), only(&first, &here));
    if mine.is_none() && theirs.is_none() {
        return Ok(());
    }
    let shown = |line: Option<String>| line.unwrap_or_else(|| "no such setting".into());
    Err(UserError::new(
        format!("rank {rank} has {}, rank 0 has {}", shown(mine), shown(theirs)),
        "all ranks have the same settings",
        "give all ranks the same flags, and all nodes the same configuration file",
    ))
}

/// The identities of this rank's data. All ranks call it together.
///
/// # Errors
/// Data that differ from those of rank 0, or that can no longer be read.
pub(crate) fn check_data(group: &ProcessGroup, source: &dyn Source) -> Result<Identities, RunError> {
    check_identities(group, source.identities()?)
}

/// The same identities. All ranks call it together.
///
/// # Errors
/// Data that differ from those of rank 0.
pub(crate) fn check_identities(group: &ProcessGroup, here: Identities) -> Result<Identities, RunError> {
    let first = group.control.broadcast_text(0, serde_json::to_string(&here).unwrap_or_default());
    match serde_json::from_str(&first).map(|first| data::changed(&first, &here)) {
        Ok(changed) if !changed.is_empty() => Err(UserError::new(
            format!("rank {} has other data: {}", group.rank(), changed.join(", ").replace("(was ", "(rank 0: ")),
            "all ranks read the same data",
            "put the data on a file system that all nodes share, or copy the same files to each node",
        )
        .into()),
        _ => Ok(here),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigSources;

    fn settings(key: &str, value: &str, bench: &str) -> String {
        let mut sources = ConfigSources::default();
        sources.set(key, value, "test").unwrap();
        shared_settings(&sources.resolve(), &[("bench", bench.into())])
    }

    #[test]
    fn ranks_may_differ_only_in_settings_that_no_result_depends_on() {
        let first = settings("train.seed", "42", "3");
        let differs = |here: &str| check_settings(2, here, &first).unwrap_err().what;
        assert_eq!(differs(&settings("train.seed", "5", "3")), "rank 2 has train.seed = 5, rank 0 has train.seed = 42");
        assert_eq!(differs(&settings("train.seed", "42", "4")), "rank 2 has bench = 4, rank 0 has bench = 3");
        let unset = "rank 2 has checkpoint.dir = \"ck\", rank 0 has no such setting";
        let saves = settings("train.seed", "42", "3") + "checkpoint.dir = \"ck\"\n";
        assert_eq!(differs(&saves), unset);
        for (key, value) in [("train.threads", "3"), ("logging.dir", "own")] {
            assert!(check_settings(1, &settings(key, value, "3"), &first).is_ok(), "{key}");
        }
    }

    #[test]
    fn nodes_may_have_the_data_at_other_paths_but_as_many_datasets_with_the_same_weights() {
        let data = |key: &str, paths: &str| settings(key, paths, "3");
        let first = data("data.path", "[0.9, \"/a\", 0.1, \"/b\"]");
        let differs = |here: &str| check_settings(1, here, &first).unwrap_err().what;
        assert!(check_settings(1, &data("data.path", "[0.9, \"/node/a\", 0.1, \"/node/b\"]"), &first).is_ok());
        let rank_0 = "rank 0 has data.path = datasets of weights 0.9, 0.1";
        let other = data("data.path", "[0.1, \"/a\", 0.9, \"/b\"]");
        assert_eq!(differs(&other), format!("rank 1 has data.path = datasets of weights 0.1, 0.9, {rank_0}"));
        assert_eq!(differs(&data("data.path", "/a")), format!("rank 1 has data.path = one dataset, {rank_0}"));
        let unset = format!("rank 1 has no such setting, {rank_0}");
        assert_eq!(differs(&settings("train.seed", "42", "3")), unset);
    }
}
