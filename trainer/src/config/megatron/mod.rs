//! Megatron's command line in our terms. A Megatron flag that takes the same values as one of our options is an alias in the
//! option table. [`flags`] has the other flags that Megatron's users know.

mod absent_flags;
mod expert_flags;
mod general_flags;
mod layer_pattern;
mod meaning;
pub mod words;

use std::slice::from_ref;

use crate::config::options::{Kind, find};
use Meaning::{Refused, SetsByValue};
use absent_flags::ABSENT_FLAGS;
use expert_flags::EXPERT_FLAGS;
use general_flags::GENERAL_FLAGS;
pub use meaning::{Meaning, Takes};

/// The flags that have the same effect here, with that effect. A name that ends in `*` stands for all that begin so.
pub fn groups() -> impl Iterator<Item = (&'static [&'static str], &'static Meaning)> {
    let alone = GENERAL_FLAGS.iter().chain(EXPERT_FLAGS).map(|(flag, meaning)| (from_ref(flag), meaning));
    alone.chain(ABSENT_FLAGS.iter().map(|(meaning, flags)| (flags.as_slice(), meaning)))
}

/// Each flag with the flag's effect here.
pub fn flags() -> impl Iterator<Item = (&'static str, &'static Meaning)> {
    groups().flat_map(|(flags, meaning)| flags.iter().map(move |flag| (*flag, meaning)))
}

/// The effect of a flag. A name in full comes before one that stands for several.
pub fn meaning(flag: &str) -> Option<&'static Meaning> {
    let begins = |name: &str| name.strip_suffix('*').is_some_and(|prefix| flag.starts_with(prefix));
    let found = flags().find(|(name, _)| *name == flag).or_else(|| flags().find(|(name, _)| begins(name)));
    found.map(|(_, meaning)| meaning)
}

/// The rule and the fix for a flag that is not supported, or not with this value.
pub fn unsupported(flag: &str, value: Option<&str>) -> Option<(&'static str, &'static str)> {
    meaning(flag).and_then(|meaning| match meaning {
        SetsByValue(values, rule, fix) => {
            (!values.iter().any(|(known, _)| value == Some(known))).then_some((*rule, *fix))
        }
        Refused(words, rule, fix) | Meaning::IgnoredIf(words, _, rule, fix) => {
            let taken = value.is_some_and(|value| words.iter().any(|word| same_value(value, word)));
            (!taken).then_some((*rule, *fix))
        }
        _ => None,
    })
}

/// Whether two values are the same text or the same number.
pub fn same_value(one: &str, other: &str) -> bool {
    let number = |text: &str| text.trim().parse::<f64>().ok();
    one == other || number(one).zip(number(other)).is_some_and(|(one, other)| one == other)
}

/// The flag of ours that gives an option this value.
pub fn our_flag(key: &str, value: &str) -> String {
    match find(key) {
        Some(option) if option.kind == Kind::Bool => format!("--{}={value}", option.flag),
        option => format!("--{} {value}", option.map_or(key, |option| option.flag)),
    }
}

/// The trainer's flags that give options the given values.
pub fn our_flags(values: &[(&str, &str)]) -> String {
    values.iter().map(|(key, value)| our_flag(key, value)).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigSources;
    use crate::config::options::options;

    #[test]
    fn no_flag_is_an_options_own_and_all_name_flags_and_keys_that_exist() {
        let own = |flag: &str| options().iter().any(|option| option.flag == flag || option.aliases.contains(&flag));
        let mut seen = std::collections::HashSet::new();
        for (flag, meaning) in flags() {
            assert!(!own(flag) && seen.insert(flag), "--{flag} twice");
            let stands_for_several = flag.ends_with('*');
            assert!(!stands_for_several || matches!(meaning, Refused([], ..)), "--{flag}: a command has no such flag");
            match meaning {
                Meaning::Sets(key, value) | Meaning::SetsWhateverValue(key, value, _) => {
                    ConfigSources::default().set(key, value, flag).unwrap();
                }
                SetsByValue(values, ..) => {
                    for (key, value) in values.iter().flat_map(|(_, sets)| *sets) {
                        ConfigSources::default().set(key, value, flag).unwrap();
                    }
                }
                Meaning::SetsTelling((key, value), (other, _), _) => {
                    ConfigSources::default().set(key, value, flag).unwrap();
                    assert!(find(other).is_some());
                }
                Meaning::Computes(key, ..) => {
                    assert!(find(key).is_some_and(|option| matches!(option.kind, Kind::Integer | Kind::Float)));
                }
                Meaning::Translates(key, ..) => assert!(find(key).is_some(), "{key}"),
                Meaning::SetsUnless((key, value), (other, unless), _) => {
                    ConfigSources::default().set(key, value, flag).unwrap();
                    ConfigSources::default().set(other, unless, flag).unwrap();
                }
                Meaning::SetsItem(key, _) => assert!(find(key).is_some_and(|option| option.kind == Kind::Floats)),
                Meaning::Agrees(_, key, _) => assert!(find(key).is_some(), "{key}"),
                Meaning::Ignored(_, why) => assert!(!why.is_empty()),
                Refused(_, _, fix) | Meaning::IgnoredIf(.., fix) => {
                    let named = fix.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
                    for name in named.filter_map(|word| word.strip_prefix("--")) {
                        let is_setter = |meaning| matches!(meaning, &Meaning::Sets(..) | &SetsByValue(..));
                        let sets = flags().any(|(flag, meaning)| flag == name && is_setter(meaning));
                        assert!(sets || own(name) || name == "config", "--{flag}: there is no --{name}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_flag_of_one_value_is_taken_with_that_number_however_it_is_written() {
        for (flag, value, taken) in [
            ("fp8-interval", "1", true),
            ("fp8-interval", "2", false),
            ("rotary-percent", "1.0", true),
            ("rotary-percent", "0.5", false),
            ("attention-backend", "flash", true),
            ("tokenizer-type", "HuggingFaceTokenizer", true),
            ("tokenizer-type", "GPT2BPETokenizer", false),
            ("non-persistent-ckpt-type", "local", true),
            ("non-persistent-ckpt-type", "global", false),
            ("fp16", "", false),
            ("cuda-graph-impl", "local", true),
            ("cuda-graph-impl", "transformer_engine", true),
            ("rerun-mode", "disabled", true),
            ("rerun-mode", "validate_results", false),
            ("inference-rng-tracker", "", true),
            ("inference-max-requests", "8", false),
            ("moe-grouped-gemm", "", true),
            ("mtp-use-repeated-layer", "", false),
        ] {
            assert_eq!(unsupported(flag, Some(value)).is_none(), taken, "--{flag} {value}");
        }
    }
}
