//! Megatron's command line: what each flag and word is here. Flags of Megatron's that take the same values as an option of
//! ours are aliases in the option table; these are the others that its users know.

mod flags;

use std::borrow::Cow;

use clap::{Arg, ArgAction, ArgMatches, Command};
use common::UserError;

use crate::config::options::{Kind, find};
use crate::config::{Layers, RunConfig};
use Meaning::{Instead, Is, IsShare, NotNeeded, Only, Sets, Without};
pub use flags::{FLAGS, Meaning};

/// Words for values of an option that mean the same as ours.
const WORDS: &[(&str, &str, &str)] = &[
    ("model.norm", "LayerNorm", "layernorm"),
    ("model.norm", "RMSNorm", "rmsnorm"),
    ("model.position", "learned_absolute", "learned"),
    ("model.position", "rope", "rotary"),
];

const LAYERS: &str = "set cuda_graph.scope = \"per_layer\": a graph has all of a layer, attention and feed-forward";

/// Words that mean something else than ours, or nothing: what to give instead.
const OTHER_WORDS: &[(&str, &str, &str)] = &[
    ("cuda_graph.scope", "attn", LAYERS),
    ("cuda_graph.scope", "mlp", LAYERS),
    ("cuda_graph.scope", "full", LAYERS),
    ("optimizer.schedule", "WSD", "set optimizer.schedule = \"wsd\", whose decay is linear"),
    (
        "optimizer.schedule",
        "linear",
        "set optimizer.schedule = \"wsd\" and optimizer.decay_steps = train.steps - optimizer.warmup_steps",
    ),
];

/// Our word for a value of the option.
pub fn word<'w>(key: &str, word: &'w str) -> Cow<'w, str> {
    if key == "data.split"
        && let Some((share, 0.0)) = split(word)
    {
        return share.to_string().into();
    }
    WORDS.iter().find(|known| (known.0, known.1) == (key, word)).map_or(word, |known| known.2).into()
}

/// Of Megatron's two or three shares to train, validate and test on: the first, and the last, of their sum.
fn split(text: &str) -> Option<(f64, f64)> {
    let parts: Vec<f64> = text.split(',').map(|part| part.trim().parse().ok()).collect::<Option<_>>()?;
    let share = |part: f64| (part / parts.iter().sum::<f64>() * 1e6).round() / 1e6;
    let known = (2..=3).contains(&parts.len()) && parts.iter().all(|&part| part >= 0.0) && share(parts[0]) > 0.0;
    known.then(|| (share(parts[0]), parts.get(2).map_or(0.0, |&part| share(part))))
}

/// What to give for a value that the option does not take, if it is one of Megatron's.
pub fn fix(key: &str, text: &str) -> Option<String> {
    if key == "data.split" {
        let (share, _) = split(text)?;
        return Some(format!("set data.split = {share}: the rest validates, and nothing is kept for a test"));
    }
    OTHER_WORDS.iter().find(|known| (known.0, known.1) == (key, text)).map(|known| known.2.to_string())
}

/// The rule and the fix for a flag that is not taken, or not with this value.
pub fn instead(flag: &str, value: Option<&str>) -> Option<(&'static str, &'static str)> {
    FLAGS.iter().find(|(name, _)| *name == flag).and_then(|(_, meaning)| match meaning {
        Instead(rule, fix) => Some((*rule, *fix)),
        Only(word, rule, fix) => (!value.is_some_and(|value| same_value(value, word))).then_some((*rule, *fix)),
        _ => None,
    })
}

/// Whether two values are the same text or number.
fn same_value(one: &str, other: &str) -> bool {
    let number = |text: &str| text.trim().parse::<f64>().ok();
    one == other || number(one).zip(number(other)).is_some_and(|(one, other)| one == other)
}

/// What a flag that sets an option is the same as.
fn same(key: &str, value: &str) -> String {
    match find(key) {
        Some(option) if option.kind == Kind::Bool => format!("--{}={value}", option.flag),
        option => format!("--{} {value}", option.map_or(key, |option| option.flag)),
    }
}

/// Adds those that are taken to a command with the flags of a training run.
pub fn with_flags(mut command: Command) -> Command {
    for (flag, meaning) in FLAGS {
        let arg = Arg::new(*flag).long(*flag);
        let section = |key: &'static str| key.split('.').next().unwrap_or_default();
        command = match meaning {
            Sets(key, value) => {
                let help = format!("Same as {}", same(key, value));
                command.arg(arg.action(ArgAction::SetTrue).help_heading(section(key)).help(help))
            }
            Is(_) | IsShare(..) | Only(..) => {
                command.arg(arg.value_name("VALUE").allow_negative_numbers(true).hide(true))
            }
            NotNeeded(why) | Without(_, why) => command.arg(arg.action(ArgAction::SetTrue).hide(true).help(*why)),
            Instead(..) => command,
        };
    }
    command
}

/// Sets what the flags that were given stand for.
///
/// # Errors
/// None, as long as the table is right.
pub fn set(matches: &ArgMatches, layers: &mut Layers) -> Result<(), UserError> {
    for (flag, meaning) in FLAGS {
        if let Sets(key, value) = meaning
            && matches.get_flag(flag)
        {
            layers.set(key, value, &format!("--{flag}"))?;
        }
    }
    Ok(())
}

/// Fails on a flag that goes against another option.
///
/// # Errors
/// The first.
pub fn compare(matches: &ArgMatches, config: &RunConfig) -> Result<(), UserError> {
    let values = config.by_key();
    let value_of = |key: &str| values.get(key);
    for (flag, meaning) in FLAGS {
        let against = match meaning {
            Is(key) => value_of(key).zip(matches.get_one::<String>(flag)).and_then(|(value, given)| {
                let fix = format!("leave it out, or set {key} = {given}");
                (!same_value(&value.to_string(), given))
                    .then(|| (format!("--{flag} {given} with {key} = {value}"), fix))
            }),
            IsShare(whole, parts) => {
                let number = |key| value_of(key)?.as_integer();
                let given = matches.get_one::<String>(flag);
                number(whole).zip(number(parts)).zip(given).and_then(|((of, by), given)| {
                    let what = format!("--{flag} {given} with {whole} / {parts} = {of} / {by}");
                    let fix = format!("leave it out, or set another {parts}");
                    (!same_value(given, &(of as f64 / by as f64).to_string())).then_some((what, fix))
                })
            }
            // Its own option, on the same command line, says otherwise.
            Sets(key, means) if matches.get_flag(flag) => value_of(key)
                .map(|value| value.as_str().map_or(value.to_string(), str::to_string))
                .filter(|value| value != means)
                .map(|value| (format!("--{flag} with {key} = {value}"), "give one of them".to_string())),
            Without(key, _) if matches.get_flag(flag) => {
                value_of(key).map(|value| (format!("--{flag} with {key} = {value}"), "give one of them".to_string()))
            }
            _ => None,
        };
        if let Some((what, fix)) = against {
            return Err(UserError::new(what, "a flag and the option that it stands for agree", fix));
        }
    }
    Ok(())
}

/// What to tell of flags that were given and are not needed.
pub fn notices(matches: &ArgMatches) -> Vec<String> {
    let given = FLAGS.iter().filter_map(|(flag, meaning)| match meaning {
        NotNeeded(why) if matches.get_flag(flag) => Some(format!("--{flag} is not needed: {why}")),
        _ => None,
    });
    given.collect()
}

/// The flags as Markdown.
pub fn reference() -> String {
    let mut text = String::from("\n## Megatron's flags\n\n| flag | here |\n|---|---|\n");
    for (flag, meaning) in FLAGS {
        let here = match meaning {
            Sets(key, value) => format!("`{}`", same(key, value)),
            Is(key) => format!("taken if it is `{key}`"),
            IsShare(whole, parts) => format!("taken if it is `{whole}` / `{parts}`"),
            Only(word, rule, fix) => format!("taken if it is `{word}`: {rule}. Instead: {fix}"),
            Without(key, why) => format!("taken without `{key}`: {why}"),
            NotNeeded(why) => format!("not needed: {why}"),
            Instead(rule, fix) => format!("not taken: {rule}. Instead: {fix}"),
        };
        text += &format!("| `--{flag}` | {here} |\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::options::OPTIONS;

    #[test]
    fn no_flag_is_an_options_own_and_all_set_or_name_flags_and_keys_that_are() {
        let own = |flag: &str| OPTIONS.iter().any(|option| option.flag == flag || option.aliases.contains(&flag));
        let mut seen = std::collections::HashSet::new();
        for (flag, meaning) in FLAGS {
            assert!(!own(flag) && seen.insert(flag), "--{flag} twice");
            match meaning {
                Sets(key, value) => Layers::default().set(key, value, flag).unwrap(),
                Is(key) => assert!(find(key).is_some(), "{key}"),
                IsShare(whole, parts) => assert!(find(whole).is_some() && find(parts).is_some()),
                Without(key, why) => assert!(find(key).is_some() && !why.is_empty(), "{key}"),
                NotNeeded(why) => assert!(!why.is_empty()),
                Instead(_, fix) | Only(_, _, fix) => {
                    let named = fix.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
                    for name in named.filter_map(|word| word.strip_prefix("--")) {
                        let sets = FLAGS.iter().any(|(flag, meaning)| *flag == name && matches!(meaning, Sets(..)));
                        assert!(sets || own(name) || name == "config", "--{flag}: there is no --{name}");
                    }
                }
            }
        }
        for (key, _, ours) in WORDS {
            Layers::default().set(key, ours, "test").unwrap();
        }
        assert!(OTHER_WORDS.iter().all(|(key, ..)| find(key).is_some()));
    }

    #[test]
    fn a_split_is_its_first_share_and_is_taken_where_nothing_is_kept_for_a_test() {
        for (text, taken) in
            [("99,1,0", "0.99"), ("99, 1", "0.99"), ("100,0,0", "1"), ("949,50,1", "949,50,1"), ("0.9", "0.9")]
        {
            assert_eq!(word("data.split", text), taken);
        }
        assert!(fix("data.split", "949,50,1").unwrap().starts_with("set data.split = 0.949:"));
        for none in ["most", "0.9", "0,0", "-1,2", "0,1,0", "1,2,3,4", "nan,1"] {
            assert_eq!(fix("data.split", none), None, "{none}");
            assert_eq!(word("data.split", none), none);
        }
    }

    #[test]
    fn a_flag_of_one_value_is_taken_with_that_number_however_it_is_written() {
        for (flag, value, taken) in [
            ("context-parallel-size", "1", true),
            ("context-parallel-size", "2", false),
            ("rotary-percent", "1.0", true),
            ("rotary-percent", "0.5", false),
            ("attention-backend", "auto", true),
            ("attention-backend", "flash", false),
            ("fp16", "", false),
            ("kv-channels", "16", true),
        ] {
            assert_eq!(instead(flag, Some(value)).is_none(), taken, "--{flag} {value}");
        }
    }
}
