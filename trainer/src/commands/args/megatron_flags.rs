//! Megatron's flags on the command line of a training run.

use clap::{Arg, ArgAction, ArgMatches, Command};
use common::UserError;
use toml::Value;

use crate::config::megatron::{FLAGS, Meaning, our_flag, our_flags, same_value};
use crate::config::options::{Kind, find};
use crate::config::{Layers, RunConfig};

/// Keys, each with the value that it is set to.
type Sets = &'static [(&'static str, &'static str)];
/// The values of a flag, each with what it sets.
type Values = &'static [(&'static str, Sets)];

/// Adds the flags that are accepted to a command.
pub(super) fn with_megatron_flags(mut command: Command) -> Command {
    for (flag, meaning) in FLAGS {
        let arg = Arg::new(*flag).long(*flag);
        let section = |key: &'static str| key.split('.').next().unwrap_or_default();
        command = match meaning {
            Meaning::Sets(key, value) => {
                let help = format!("Same as {}", our_flag(key, value));
                command.arg(arg.action(ArgAction::SetTrue).help_heading(section(key)).help(help))
            }
            Meaning::SetsByValue(values, ..) => {
                let words: Vec<&str> = values.iter().map(|(word, _)| *word).collect();
                let each = values.iter().map(|(word, sets)| format!("{word}: {}", our_flags(sets)));
                let help = each.collect::<Vec<_>>().join(". ");
                let heading = values.first().and_then(|(_, sets)| sets.first()).map_or("", |(key, _)| section(key));
                command.arg(arg.value_name(words.join("|")).help_heading(heading).help(help))
            }
            Meaning::SetsTelling((key, value), ..) => {
                let help = format!("Same as {}", our_flag(key, value));
                command.arg(arg.action(ArgAction::SetTrue).help_heading(section(key)).help(help))
            }
            Meaning::SetsWhateverValue(key, value, why) => {
                let help = format!("Same as {}: {why}", our_flag(key, value));
                command.arg(arg.value_name("VALUE").help_heading(section(key)).help(help))
            }
            Meaning::Computes(key, formula, _) => {
                let help = format!("Sets {key} to {formula}");
                command.arg(arg.value_name("VALUE").allow_negative_numbers(true).help_heading(section(key)).help(help))
            }
            Meaning::SetsItem(key, at) => {
                let help = format!("Sets item {} of {key}", at + 1);
                command.arg(arg.value_name("VALUE").allow_negative_numbers(true).help_heading(section(key)).help(help))
            }
            Meaning::Equals(_) | Meaning::OnlyValues(..) | Meaning::IgnoresValue(_) => {
                command.arg(arg.value_name("VALUE").allow_negative_numbers(true).hide(true))
            }
            Meaning::NotNeeded(why) | Meaning::OnlyWithout(_, why) => {
                command.arg(arg.action(ArgAction::SetTrue).hide(true).help(*why))
            }
            Meaning::Unsupported(..) => command,
        };
    }
    command
}

/// Sets the options that the given flags stand for.
///
/// # Errors
/// A value in the table of flags that the option refuses, which would be a bug.
pub(super) fn set_options(matches: &ArgMatches, layers: &mut Layers) -> Result<(), UserError> {
    for (flag, meaning) in FLAGS {
        if let Meaning::SetsItem(key, at) = meaning
            && let Some(text) = matches.get_one::<String>(flag)
        {
            let mut items = layers.resolve().by_key().remove(*key);
            let items = items.as_mut().and_then(Value::as_array_mut);
            let mut words: Vec<String> = items.into_iter().flatten().map(|item| item.to_string()).collect();
            if let Some(word) = words.get_mut(*at) {
                word.clone_from(text);
            }
            layers.set(key, &format!("[{}]", words.join(", ")), &format!("--{flag}"))?;
        }
        let sets: &[(&str, &str)] = match meaning {
            Meaning::Sets(key, value) if matches.get_flag(flag) => &[(key, value)],
            Meaning::SetsTelling((key, value), ..) if matches.get_flag(flag) => &[(key, value)],
            Meaning::SetsWhateverValue(key, value, _) if matches.contains_id(flag) => &[(key, value)],
            Meaning::SetsByValue(values, ..) => given(matches, flag, values).map_or(&[], |(_, sets)| sets),
            _ => &[],
        };
        for (key, value) in sets {
            layers.set(key, value, &format!("--{flag}"))?;
        }
    }
    Ok(())
}

/// Sets the options whose values follow from the given flags and from all other options. `is_set` says whether the command
/// line sets an option itself.
///
/// # Errors
/// A value that is no number, or does not give one that the option takes; an option that is set too.
pub(super) fn set_computed(
    matches: &ArgMatches,
    layers: &mut Layers,
    is_set: impl Fn(&str) -> bool,
) -> Result<(), UserError> {
    for (flag, meaning) in FLAGS {
        let Meaning::Computes(key, formula, compute) = meaning else { continue };
        let Some(text) = matches.get_one::<String>(flag) else { continue };
        let rule = format!("it sets {key} to {formula}");
        let wrong = |what: String, fix: String| Err(UserError::new(what, rule.clone(), fix));
        if is_set(key) {
            return wrong(format!("--{flag} {text} with {key}"), "give one of them".into());
        }
        let Ok(value) = text.parse::<f64>() else {
            return wrong(format!("--{flag} {text}"), "write a number".into());
        };
        let Some(value) = compute(value, &layers.resolve()) else {
            return wrong(format!("--{flag} {text}, whose number is not known"), format!("set {key} itself"));
        };
        let is_integer = find(key).is_some_and(|option| option.kind == Kind::Integer);
        let value = if is_integer { value.floor() } else { value };
        layers.set(key, &value.to_string(), &format!("--{flag} {text}"))?;
    }
    Ok(())
}

/// The value that a flag was given, and what it sets.
fn given(matches: &ArgMatches, flag: &str, values: Values) -> Option<(&'static str, Sets)> {
    let given = matches.get_one::<String>(flag)?;
    values.iter().find(|(word, _)| word == given).copied()
}

/// Fails on a flag that contradicts an option.
///
/// # Errors
/// The first such flag.
pub(super) fn check_agreement(matches: &ArgMatches, config: &RunConfig) -> Result<(), UserError> {
    let values = config.by_key();
    let value_of = |key: &str| values.get(key);
    // The option itself has another value on the same command line.
    let other_than = |key: &str, value: &str| {
        let text = value_of(key).map(|value| value.as_str().map_or(value.to_string(), str::to_string));
        text.filter(|other| other != value).map(|other| format!("{key} = {other}"))
    };
    for (flag, meaning) in FLAGS {
        let one = "give one of them".to_string();
        let given = || matches.get_one::<String>(flag);
        let against = match meaning {
            Meaning::Equals(key) => value_of(key).zip(given()).and_then(|(value, given)| {
                let fix = format!("leave it out, or set {key} = {given}");
                (!same_value(&value.to_string(), given))
                    .then(|| (format!("--{flag} {given} with {key} = {value}"), fix))
            }),
            Meaning::SetsItem(key, at) => value_of(key).zip(given()).and_then(|(value, given)| {
                let item = value.as_array().and_then(|items| items.get(*at));
                let same = item.is_some_and(|item| same_value(&item.to_string(), given));
                (!same).then(|| (format!("--{flag} {given} with {key} = {value}"), one))
            }),
            Meaning::Sets(key, value) | Meaning::SetsTelling((key, value), ..) if matches.get_flag(flag) => {
                other_than(key, value).map(|other| (format!("--{flag} with {other}"), one))
            }
            Meaning::SetsWhateverValue(key, value, _) if given().is_some() => {
                other_than(key, value).map(|other| (format!("--{flag} with {other}"), one))
            }
            Meaning::SetsByValue(values, ..) => self::given(matches, flag, values).and_then(|(word, sets)| {
                let other = sets.iter().find_map(|(key, value)| other_than(key, value))?;
                Some((format!("--{flag} {word} with {other}"), one))
            }),
            Meaning::OnlyWithout(key, _) if matches.get_flag(flag) => {
                value_of(key).map(|value: &Value| (format!("--{flag} with {key} = {value}"), one))
            }
            _ => None,
        };
        if let Some((what, fix)) = against {
            return Err(UserError::new(what, "a flag agrees with the option that it stands for", fix));
        }
    }
    Ok(())
}

/// A notice for each given flag that has no effect, or another than in Megatron.
pub(super) fn notices(matches: &ArgMatches, config: &RunConfig) -> Vec<String> {
    let values = config.by_key();
    let is = |key: &str, value: &str| values.get(key).and_then(Value::as_str) == Some(value);
    let given = FLAGS.iter().filter_map(|(flag, meaning)| match meaning {
        Meaning::NotNeeded(why) if matches.get_flag(flag) => Some(format!("--{flag} has no effect: {why}")),
        Meaning::IgnoresValue(why) if matches.contains_id(flag) => Some(format!("--{flag} has no effect: {why}")),
        Meaning::SetsWhateverValue(_, _, why) => {
            matches.get_one::<String>(flag).map(|text| format!("--{flag} {text}: {why}"))
        }
        Meaning::SetsTelling(_, (key, value), why) if matches.get_flag(flag) && is(key, value) => {
            Some(format!("--{flag}: {why}"))
        }
        _ => None,
    });
    given.collect()
}
