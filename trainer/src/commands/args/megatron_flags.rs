//! Megatron's flags on the command line of a training run.

use clap::{Arg, ArgAction, ArgMatches, Command};
use common::UserError;
use toml::Value;

use crate::config::megatron::{FLAGS, Meaning, our_flag, same_value};
use crate::config::{Layers, RunConfig};

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
            Meaning::Equals(_) | Meaning::EqualsRatio(..) | Meaning::OnlyValue(..) => {
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
        if let Meaning::Sets(key, value) = meaning
            && matches.get_flag(flag)
        {
            layers.set(key, value, &format!("--{flag}"))?;
        }
    }
    Ok(())
}

/// Fails on a flag that contradicts an option.
///
/// # Errors
/// The first such flag.
pub(super) fn check_agreement(matches: &ArgMatches, config: &RunConfig) -> Result<(), UserError> {
    let values = config.by_key();
    let value_of = |key: &str| values.get(key);
    for (flag, meaning) in FLAGS {
        let given = || matches.get_one::<String>(flag);
        let against = match meaning {
            Meaning::Equals(key) => value_of(key).zip(given()).and_then(|(value, given)| {
                let fix = format!("leave it out, or set {key} = {given}");
                (!same_value(&value.to_string(), given))
                    .then(|| (format!("--{flag} {given} with {key} = {value}"), fix))
            }),
            Meaning::EqualsRatio(whole, parts) => {
                let number = |key| value_of(key)?.as_integer();
                number(whole).zip(number(parts)).zip(given()).and_then(|((of, by), given)| {
                    let what = format!("--{flag} {given} with {whole} / {parts} = {of} / {by}");
                    let fix = format!("leave it out, or set another {parts}");
                    (!same_value(given, &(of as f64 / by as f64).to_string())).then_some((what, fix))
                })
            }
            // The option itself has another value on the same command line.
            Meaning::Sets(key, value) if matches.get_flag(flag) => value_of(key)
                .map(|value| value.as_str().map_or(value.to_string(), str::to_string))
                .filter(|other| other != value)
                .map(|other| (format!("--{flag} with {key} = {other}"), "give one of them".to_string())),
            Meaning::OnlyWithout(key, _) if matches.get_flag(flag) => value_of(key)
                .map(|value: &Value| (format!("--{flag} with {key} = {value}"), "give one of them".to_string())),
            _ => None,
        };
        if let Some((what, fix)) = against {
            return Err(UserError::new(what, "a flag agrees with the option that it stands for", fix));
        }
    }
    Ok(())
}

/// A notice for each given flag that has no effect.
pub(super) fn notices(matches: &ArgMatches) -> Vec<String> {
    let given = FLAGS.iter().filter_map(|(flag, meaning)| match meaning {
        Meaning::NotNeeded(why) if matches.get_flag(flag) => Some(format!("--{flag} is not needed: {why}")),
        _ => None,
    });
    given.collect()
}
