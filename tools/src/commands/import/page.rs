//! A configuration of ours as a page of TOML, with comments on everything that another trainer does otherwise.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;

use common::Mistakes;
use common::escape::one_line;
use trainer::config::options::OPTIONS;
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
        for option in OPTIONS {
            let (Some(value), Some((of, name))) = (values.get(option.key), option.key.split_once('.')) else {
                continue;
            };
            if of != section {
                section = of;
                let _ = write!(text, "\n[{section}]\n");
            }
            let how = self.how.get(option.key).filter(|how| !how.is_empty());
            let comment = how.map_or(String::new(), |how| format!("  # {}", one_line(how)));
            let _ = writeln!(text, "{name} = {value}{comment}");
        }
        if !self.left.is_empty() {
            text.push_str("\n# Without an equivalent, and left out:\n");
            text.push_str(&comments(&self.left));
        }
        // The sizes of a model that training starts from are in its folder.
        if !self.has("model.init_from")
            && let Some(mistakes) = mistakes_of(&self.sources.resolve(), ranks)
        {
            text.push_str("\n# To correct before it runs:\n");
            text.push_str(&comments(&mistakes));
        }
        text
    }
}

fn comments(lines: &[String]) -> String {
    lines.iter().map(|line| format!("# {}\n", one_line(line))).collect()
}

/// A line for each rule that a configuration breaks on `ranks` ranks.
fn mistakes_of(config: &RunConfig, ranks: usize) -> Option<Vec<String>> {
    let mut mistakes = Mistakes::default();
    RunPlan::check(config.clone(), ranks, &mut mistakes);
    Some(mistakes.lines()).filter(|lines| !lines.is_empty())
}
