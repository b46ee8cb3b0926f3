//! Ranks train one model together: what each was told must be the same, or their numbers mean nothing.

use std::collections::BTreeMap;

use common::UserError;
use data::Paths;

use crate::config::RunConfig;

/// Keys that may differ from rank to rank: nothing is computed by them, or they are compared in another form.
const OWN: &[&str] = &["train.threads", "data.path", "data.validation_path"];

/// What all ranks must have been told alike, as text: settings, and what else of the command line says what is done.
pub fn settings(config: &RunConfig, command: &[(&str, String)]) -> String {
    let compared = |key: &str| !key.starts_with("logging.") && !OWN.contains(&key);
    let of_config = config.by_key().into_iter().filter(|(key, _)| compared(key));
    let mut values: BTreeMap<String, String> = of_config.map(|(key, value)| (key, value.to_string())).collect();
    // Nodes may have the same data at other paths; what they are is compared itself.
    for (key, paths) in [("data.path", &config.data.path), ("data.validation_path", &config.data.validation_path)] {
        values.extend(paths.as_ref().map(|paths| (key.to_string(), form(paths, key))));
    }
    values.extend(command.iter().map(|(name, value)| (name.to_string(), value.clone())));
    values.iter().map(|(key, value)| format!("{key} = {value}\n")).collect()
}

/// What paths say beside where the data are: how many datasets, and their weights.
fn form(paths: &Paths, key: &str) -> String {
    let datasets = paths.datasets(key).unwrap_or_default();
    match &datasets[..] {
        [_] => "one dataset".into(),
        several => {
            let weights: Vec<String> = several.iter().map(|(weight, _)| weight.to_string()).collect();
            format!("datasets of weights {}", weights.join(", "))
        }
    }
}

/// Fails where this rank's settings are not those of rank 0.
///
/// # Errors
/// The first that differs.
pub fn compare(rank: usize, here: &str, first: &str) -> Result<(), UserError> {
    let lines = |text: &str| -> Vec<String> { text.lines().map(str::to_string).collect() };
    let (here, first) = (lines(here), lines(first));
    let only = |of: &[String], other: &[String]| of.iter().find(|line| !other.contains(line)).cloned();
    let (mine, theirs) = (only(&here, &first), only(&first, &here));
    if mine.is_none() && theirs.is_none() {
        return Ok(());
    }
    let said = |line: Option<String>| line.unwrap_or_else(|| "it not".into());
    Err(UserError::new(
        format!("rank {rank} has {}, rank 0 has {}", said(mine), said(theirs)),
        "all ranks have the same settings",
        "give all ranks the same flags, and nodes the same configuration file",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Layers;

    fn told(key: &str, value: &str, bench: &str) -> String {
        let mut layers = Layers::default();
        layers.set(key, value, "test").unwrap();
        settings(&layers.resolve(), &[("bench", bench.into())])
    }

    #[test]
    fn ranks_may_differ_in_what_no_number_depends_on_and_in_nothing_else() {
        let first = told("train.seed", "42", "3");
        let differs = |here: &str| compare(2, here, &first).unwrap_err().what;
        assert_eq!(differs(&told("train.seed", "5", "3")), "rank 2 has train.seed = 5, rank 0 has train.seed = 42");
        assert_eq!(differs(&told("train.seed", "42", "4")), "rank 2 has bench = 4, rank 0 has bench = 3");
        let unset = "rank 2 has checkpoint.dir = \"ck\", rank 0 has it not";
        let saves = told("train.seed", "42", "3") + "checkpoint.dir = \"ck\"\n";
        assert_eq!(differs(&saves), unset);
        let seeded = |key: &str, value: &str| told(key, value, "3").replace("train.seed = 1\n", "train.seed = 42\n");
        for (key, value) in [("train.threads", "3"), ("logging.dir", "own")] {
            assert!(compare(1, &seeded(key, value), &first).is_ok(), "{key}");
        }
    }

    #[test]
    fn data_may_lie_elsewhere_on_each_node_but_are_as_many_with_the_same_weights() {
        let data = |key: &str, paths: &str| told(key, paths, "3");
        let first = data("data.path", "[0.9, \"/a\", 0.1, \"/b\"]");
        let differs = |here: &str| compare(1, here, &first).unwrap_err().what;
        assert!(compare(1, &data("data.path", "[0.9, \"/node/a\", 0.1, \"/node/b\"]"), &first).is_ok());
        let rank_0 = "rank 0 has data.path = datasets of weights 0.9, 0.1";
        let other = data("data.path", "[0.1, \"/a\", 0.9, \"/b\"]");
        assert_eq!(differs(&other), format!("rank 1 has data.path = datasets of weights 0.1, 0.9, {rank_0}"));
        assert_eq!(differs(&data("data.path", "/a")), format!("rank 1 has data.path = one dataset, {rank_0}"));
        assert_eq!(differs(&told("train.seed", "42", "3")), format!("rank 1 has it not, {rank_0}"));
    }
}
