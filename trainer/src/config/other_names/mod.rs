//! Settings of other trainers, and the effect of each here: of nanoGPT's `train.py`, Hugging Face's `TrainingArguments`
//! with those of TRL and PEFT, and torchtitan's job configuration. A flag of one of these names is answered from the
//! tables, and `trainer import` makes our options of their files. Megatron's flags have a table of their own,
//! [`megatron`](crate::config::megatron).

mod hugging_face;
mod nanogpt;
mod settings;
mod torchtitan;
mod trl;

use std::sync::LazyLock;

use common::{Choice, choice};
use settings::names;
pub use settings::{Here, Made, OtherName, Set, Settings};

/// The flags of torchrun, the launcher of PyTorch. They stand before a script, not in a configuration.
static TORCHRUN: LazyLock<Vec<OtherName>> = LazyLock::new(|| names(include_str!("torchrun.txt"), &[]));

choice! {
    /// A trainer that users come from.
    pub enum Trainer {
        /// nanoGPT.
        NanoGpt = "nanoGPT",
        /// Hugging Face's transformers, TRL and PEFT.
        HuggingFace = "Hugging Face",
        /// torchtitan.
        Torchtitan = "torchtitan",
        /// torchrun, that starts the ranks of the others.
        Torchrun = "torchrun",
    }
}

impl Trainer {
    /// The trainer's settings.
    pub fn names(self) -> &'static [OtherName] {
        match self {
            Trainer::NanoGpt => &nanogpt::NAMES,
            Trainer::HuggingFace => &hugging_face::NAMES,
            Trainer::Torchtitan => &torchtitan::NAMES,
            Trainer::Torchrun => &TORCHRUN,
        }
    }

    /// The setting of that name. A name in full comes before one that stands for several.
    pub fn find(self, name: &str) -> Option<&'static OtherName> {
        let is = |of: &&OtherName| of.name == name;
        let begins = |of: &&OtherName| of.name.strip_suffix('*').is_some_and(|prefix| name.starts_with(prefix));
        self.names().iter().find(is).or_else(|| self.names().iter().find(begins))
    }
}

/// The rule and the fix for a flag that is a setting of other trainers, by its name in full or by the beginning of one that
/// stands for several. Hyphens in `flag` count as underscores.
pub fn answer(flag: &str, in_full: bool) -> Option<(String, String)> {
    let name = flag.replace('-', "_");
    let known = |trainer: &Trainer| {
        let found = trainer.find(&name)?;
        (!in_full || found.name == name).then(|| (trainer.word(), found.here.answer()))
    };
    let found: Vec<(&str, (Option<&str>, String))> = Trainer::ALL.iter().filter_map(known).collect();
    let (_, (reason, fix)) = found.first()?;
    let rule = |of: &str, reason: &Option<&str>| match reason {
        Some(reason) => format!("it is {of}'s name: {reason}"),
        None => format!("it is {of}'s name"),
    };
    if found.iter().all(|(_, (_, other))| other == fix) {
        let of: Vec<&str> = found.iter().map(|(of, _)| *of).collect();
        return Some((rule(&of.join(" and "), reason), fix.clone()));
    }
    let rules: Vec<String> = found.iter().map(|(of, (reason, _))| rule(of, reason)).collect();
    let fixes: Vec<String> = found.iter().map(|(of, (_, fix))| format!("{fix} (from {of})")).collect();
    Some((rules.join("; "), fixes.join("; ")))
}

/// As [`answer`], for a flag of torchrun alone.
pub fn torchruns(flag: &str) -> Option<(String, String)> {
    let (reason, fix) = Trainer::Torchrun.find(&flag.replace('-', "_"))?.here.answer();
    Some((format!("it is torchrun's name: {}", reason.unwrap_or_default()), fix))
}

/// The rule and the fix for a flag that is a setting of text generation elsewhere. Hyphens in `flag` count as underscores.
pub fn sampling(flag: &str) -> Option<(String, String)> {
    let name = flag.replace('-', "_");
    let line = include_str!("sampling.txt").lines().find_map(|line| line.strip_prefix(&name)?.strip_prefix(" | "))?;
    let (of, fix) = line.split_once(" | ")?;
    Some((format!("it is {of}'s name"), fix.into()))
}

#[cfg(test)]
mod tests {
    use super::Here::{Becomes, IfTrue, Same, With, Without};
    use super::*;
    use crate::config::megatron;
    use crate::config::options::{find, options};

    fn every_name() -> impl Iterator<Item = (Trainer, &'static OtherName)> {
        Trainer::ALL.iter().copied().flat_map(|trainer| trainer.names().iter().map(move |name| (trainer, name)))
    }

    fn is_ours(flag: &str) -> bool {
        options().iter().any(|option| option.flag == flag || option.aliases.contains(&flag))
    }

    #[test]
    fn every_name_is_there_once_and_its_answer_names_flags_that_exist() {
        for (trainer, name) in every_name() {
            let what = format!("{} of {}", name.name, trainer.word());
            assert_eq!(trainer.names().iter().filter(|other| other.name == name.name).count(), 1, "{what}");
            assert!(!name.name.contains('-'), "{what}");
            let fix = name.here.answer().1;
            assert!(!fix.is_empty(), "{what}");
            // A path or the name of another program's flag is in no answer, so every flag is one of ours.
            let flags = fix.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
            for flag in flags.filter_map(|word| word.strip_prefix("--")).filter(|flag| !flag.is_empty()) {
                let megatrons = megatron::flags().any(|(known, _)| known == flag);
                let others =
                    ["config", "dry-run", "hosts", "local-dir", "log", "nodes", "prompt", "repo-type", "to", "tokens"]
                        .contains(&flag);
                assert!(is_ours(flag) || megatrons || others, "{what}: there is no --{flag}");
            }
            if let With(other, _) = name.here {
                assert!(trainer.find(other).is_some_and(|other| matches!(other.here, Becomes(..))), "{what}: {other}");
            }
            if let Same(key) = name.here {
                assert!(find(key).is_some(), "{what}: {key}");
            }
        }
    }

    #[test]
    fn a_name_of_ours_is_never_another_option_elsewhere() {
        for (trainer, name) in every_name() {
            let flag = name.name.replace('_', "-");
            let Some(ours) = options().iter().find(|option| option.flag == flag || option.aliases.contains(&&*flag))
            else {
                continue;
            };
            let what = format!("--{flag} of {}", trainer.word());
            match name.here {
                Same(key) => assert_eq!(key, ours.key, "{what}"),
                // The value is converted when a file is imported; the option is the same.
                Becomes(fix, _) | IfTrue(fix, _) => assert!(fix.contains(&format!("--{}", ours.flag)), "{what}: {fix}"),
                With(..) | Without(..) => panic!("{what} is an option of ours, with another meaning"),
            }
        }
    }

    #[test]
    fn defaults_are_values_and_become_options_that_are_taken() {
        use crate::config::ConfigSources;
        for &trainer in Trainer::ALL {
            let settings = Settings::new(trainer.names(), toml::Table::new(), 4);
            for name in trainer.names().iter().filter(|name| !name.default.is_empty()) {
                let (value, given) = settings.value(name.name).unwrap_or_else(|| panic!("{}", name.name));
                assert!(!given);
                if let Ok(sets) = settings.made(name, value) {
                    for set in sets {
                        ConfigSources::default().set(set.key, &set.value, name.name).unwrap();
                    }
                }
            }
        }
    }

    #[test]
    fn a_flag_that_two_trainers_have_gets_both_answers_where_they_differ() {
        let answer_of = |flag| answer(flag, true);
        assert_eq!(answer_of("learning_rate"), Some(("it is nanoGPT and Hugging Face's name".into(), "--lr".into())));
        assert_eq!(answer_of("warmup-steps"), Some(("it is Hugging Face's name".into(), "--lr-warmup-steps".into())));
        let (rule, fix) = answer_of("gradient-accumulation-steps").unwrap();
        assert_eq!(rule, "it is nanoGPT's name; it is Hugging Face's name");
        assert!(fix.contains("(from nanoGPT); ") && fix.ends_with("(from Hugging Face)"), "{fix}");
        assert_eq!(answer_of("ddp_find_unused_parameters"), None);
        assert_eq!(answer("ddp_find_unused_parameters", false).unwrap().1, "leave it out");
        assert_eq!(answer("wombat", false), None);
    }
}
