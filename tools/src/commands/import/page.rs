//! A configuration of ours as a page of TOML, with comments on everything that another trainer does otherwise.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;

use common::Mistakes;
use common::escape::{one_line, toml_string, toml_strings};
use toml::Value;
use trainer::config::options::options;
use trainer::config::other_names::Set;
use trainer::config::plan::RunPlan;
use trainer::config::{ConfigSources, RunConfig};

/// What became of the settings of another trainer.
#[derive(Default)]
pub(super) struct Imported {
    sources: ConfigSources,
    /// How the value of a key was found.
    how: BTreeMap<&'static str, String>,
    /// A line for each setting that has no equivalent.
    left: Vec<String>,
    /// The same lines, to find one again.
    seen: HashSet<String>,
}

impl Imported {
    /// Sets an option. `from` is the setting that it comes from.
    pub(super) fn set(&mut self, set: &Set, from: &str) {
        match self.sources.set(set.key, &set.value, from) {
            Ok(()) => {
                self.how.insert(set.key, set.how.clone());
            }
            Err(error) => self.leave(format!("{}. Instead: {}", error.what, error.fix)),
        }
    }

    /// Names a setting that has no equivalent, with the reason.
    pub(super) fn leave(&mut self, line: impl Into<String>) {
        let line = line.into();
        if self.seen.insert(line.clone()) {
            self.left.push(line);
        }
    }

    /// Whether the page names a setting, or has the setting's value.
    pub(super) fn mentions(&self, name: &str, value: &Value) -> bool {
        let has_value = |text: &str| {
            let mut words = text.split(|c: char| c.is_whitespace() || ",:".contains(c));
            value.as_bool().is_none() && words.any(|word| word == value.as_str().unwrap_or(&value.to_string()))
        };
        let mut comments = self.how.values().chain(&self.left);
        comments.any(|text| text.contains(name) || has_value(text))
            || self.sources.given_values().values().any(|set| set == value && value.as_bool().is_none())
    }

    /// Whether a comment has this word.
    pub(super) fn names(&self, word: &str) -> bool {
        let has_word =
            |text: &String| text.split(|c: char| c.is_whitespace() || ",:=".contains(c)).any(|of| of == word);
        self.how.values().chain(&self.left).any(has_word)
    }

    /// The values of the options that are set.
    pub(super) fn sources(&self) -> &ConfigSources {
        &self.sources
    }

    /// Whether an option is set.
    pub(super) fn has(&self, key: &str) -> bool {
        self.sources.given().contains(key)
    }

    /// The number of settings that have no equivalent.
    pub(super) fn left(&self) -> usize {
        self.left.len()
    }

    /// The configuration of a run on `ranks` ranks. `title` is its first line.
    pub(super) fn page(&self, title: &str, ranks: usize) -> String {
        let mut text = format!("# {}\n", one_line(title));
        let mut section = "";
        let values = self.sources.given_values();
        for option in options() {
            let (Some(value), Some((of, name))) = (values.get(option.key), option.key.split_once('.')) else {
                continue;
            };
            if of != section {
                section = of;
                let _ = write!(text, "\n[{section}]\n");
            }
            let how = self.how.get(option.key).filter(|how| !how.is_empty());
            let comment = how.map_or(String::new(), |how| format!("  # {}", one_line(how)));
            let _ = writeln!(text, "{name} = {}{comment}", written(value));
        }
        if !self.left.is_empty() {
            text.push_str("\n# Without an equivalent, and left out:\n");
            // What changes nothing comes last.
            let (idle, other): (Vec<&String>, Vec<&String>) = self.left.iter().partition(|line| is_idle(line));
            text.push_str(&comments(other.into_iter().chain(idle)));
        }
        // The sizes of a model that training starts from are in its folder.
        if !self.has("model.init_from")
            && let Some(mistakes) = mistakes_of(&self.sources.resolve(), ranks)
        {
            text.push_str("\n# To correct before it runs:\n");
            text.push_str(&comments(mistakes.iter()));
        }
        text
    }
}

/// A value of an option, as TOML.
pub(super) fn written(value: &Value) -> String {
    match value {
        Value::String(text) => toml_string(text),
        Value::Array(items) if items.iter().all(Value::is_str) => toml_strings(items.iter().filter_map(Value::as_str)),
        other => other.to_string(),
    }
}

/// Whether a line is about a setting that changes nothing.
fn is_idle(line: &str) -> bool {
    line.contains(" has no effect") || line.ends_with("Instead: leave it out")
}

fn comments<'l>(lines: impl Iterator<Item = &'l String>) -> String {
    lines.map(|line| format!("# {}\n", one_line(line))).collect()
}

/// A line for each rule that a configuration breaks on `ranks` ranks.
fn mistakes_of(config: &RunConfig, ranks: usize) -> Option<Vec<String>> {
    let mut mistakes = Mistakes::default();
    RunPlan::check(config.clone(), ranks, &mut mistakes);
    Some(mistakes.lines()).filter(|lines| !lines.is_empty())
}
