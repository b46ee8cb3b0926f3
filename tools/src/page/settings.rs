//! Reads `config.toml` as keys and values, and compares runs by them.

use std::collections::BTreeMap;

use toml::{Table, Value};

/// Every option of a run: its key and its value as TOML.
pub(crate) type Settings = BTreeMap<String, String>;

/// The options in a TOML text with sections. A text that is not TOML has none.
pub(crate) fn settings(text: &str) -> Settings {
    let sections = text.parse::<Table>().unwrap_or_default();
    let in_section = |(section, values): (String, Value)| match values {
        Value::Table(values) => values.into_iter().map(|(name, value)| (format!("{section}.{name}"), value)).collect(),
        value => vec![(section, value)],
    };
    sections.into_iter().flat_map(in_section).map(|(key, value)| (key, value.to_string())).collect()
}

/// The options that the runs do not share: each key with the value of each run, `None` if it is unset. The folder of
/// the logs is not among them: it names the run.
pub(crate) fn differences<'s>(runs: &[&'s Settings]) -> Vec<(&'s str, Vec<Option<&'s str>>)> {
    let mut keys: Vec<&str> = runs.iter().flat_map(|settings| settings.keys().map(String::as_str)).collect();
    keys.sort_unstable();
    keys.dedup();
    let values = |key: &str| runs.iter().map(|settings| settings.get(key).map(String::as_str)).collect();
    let all = keys.into_iter().filter(|key| *key != "logging.dir").map(|key| (key, values(key)));
    all.filter(|(_, values): &(&str, Vec<Option<&str>>)| values.iter().any(|value| *value != values[0])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_listed_and_an_option_that_a_run_lacks_is_unset() {
        let a = settings("[train]\nsteps = 5\nseed = 1\n[logging]\ndir = \"a\"\ntrace = \"t.json\"\n");
        let b = settings("[train]\nsteps = 7\nseed = 1\n[logging]\ndir = \"b\"\n");
        let expected = [("logging.trace", vec![Some("\"t.json\""), None]), ("train.steps", vec![Some("5"), Some("7")])];
        assert_eq!(differences(&[&a, &b]), expected);
        assert!(
            differences(&[&a, &a]).is_empty() && differences(&[&a]).is_empty() && settings("no = = toml").is_empty()
        );
    }
}
