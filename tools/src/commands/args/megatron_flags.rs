//! Megatron's flags on the command line of a training run.

use clap::{Arg, ArgAction, ArgMatches, Command};
use common::{Mistakes, UserError};
use toml::Value;

use trainer::config::megatron::{Meaning, Takes, flags, our_flag, our_flags, same_value};
use trainer::config::options::{Kind, find};
use trainer::config::{ConfigSources, RunConfig};

/// Keys of options, each with a value to set.
type Sets = Vec<(&'static str, &'static str)>;

/// Adds the flags that are accepted to a command.
pub(super) fn with_megatron_flags(mut command: Command) -> Command {
    for (flag, meaning) in flags() {
        let alone = Arg::new(flag).long(flag).action(ArgAction::SetTrue).hide_short_help(true);
        let text = Arg::new(flag).long(flag).value_name("VALUE").hide_short_help(true);
        let number = text.clone().allow_negative_numbers(true);
        let section = |key: &'static str| key.split('.').next().unwrap_or_default();
        command = match meaning {
            Meaning::Sets(key, value) | Meaning::SetsTelling((key, value), ..) => {
                let help = format!("Same as {}", our_flag(key, value));
                command.arg(alone.help_heading(section(key)).help(help))
            }
            Meaning::SetsByValue(values, ..) => {
                let words: Vec<&str> = values.iter().map(|(word, _)| *word).collect();
                let each = values.iter().map(|(word, sets)| format!("{word}: {}", our_flags(sets)));
                let help = each.collect::<Vec<_>>().join(". ");
                let heading = values.first().and_then(|(_, sets)| sets.first()).map_or("", |(key, _)| section(key));
                command.arg(text.value_name(words.join("|")).help_heading(heading).help(help))
            }
            Meaning::SetsWhateverValue(key, value, why) => {
                let help = format!("Same as {}: {why}", our_flag(key, value));
                command.arg(text.help_heading(section(key)).help(help))
            }
            Meaning::Computes(key, formula, _) => {
                command.arg(number.help_heading(section(key)).help(format!("Sets {key} to {formula}")))
            }
            Meaning::Translates(key, words, ..) => {
                command.arg(number.help_heading(section(key)).help(format!("Sets {key} to {words}")))
            }
            Meaning::SetsUnless((key, value), (other, unless), _) => {
                let help = format!("Same as {}, but not with {}", our_flag(key, value), our_flag(other, unless));
                command.arg(alone.help_heading(section(key)).help(help))
            }
            Meaning::SetsItem(key, at) => {
                command.arg(number.help_heading(section(key)).help(format!("Sets item {} of {key}", at + 1)))
            }
            Meaning::Agrees(Takes::Nothing, _, why) | Meaning::Ignored(Takes::Nothing, why) => {
                command.arg(alone.hide(true).help(*why))
            }
            Meaning::Refused([], ..) => command,
            Meaning::Ignored(Takes::Values, _) => command.arg(number.num_args(1..).hide(true)),
            Meaning::Agrees(..) | Meaning::Ignored(..) | Meaning::IgnoredIf(..) | Meaning::Refused(..) => {
                command.arg(number.hide(true))
            }
        };
    }
    command
}

/// Sets the options that the given flags stand for. A value that an option refuses is a mistake.
pub(super) fn set_options(matches: &ArgMatches, sources: &mut ConfigSources, mistakes: &mut Mistakes) {
    for (flag, meaning) in flags() {
        if let Meaning::SetsItem(key, at) = meaning
            && let Some(text) = matches.get_one::<String>(flag)
        {
            let mut items = sources.resolve().by_key().remove(*key);
            let items = items.as_mut().and_then(Value::as_array_mut);
            let mut words: Vec<String> = items.into_iter().flatten().map(|item| item.to_string()).collect();
            if let Some(word) = words.get_mut(*at) {
                word.clone_from(text);
            }
            let set = sources.set(key, &format!("[{}]", words.join(", ")), &format!("--{flag}"));
            if mistakes.keep(set).is_none() {
                mistakes.doubt([*key]);
            }
        }
        for (key, value) in sets(matches, flag, meaning).1 {
            mistakes.keep(sources.set(key, value, &format!("--{flag}")));
        }
    }
}

/// Sets the options with values that follow from the given flags and from all other options. `is_set` tells whether the
/// command line sets an option itself. A value that does not give one that the option takes is a mistake, and so is an option
/// that is set too.
pub(super) fn set_computed(
    matches: &ArgMatches,
    sources: &mut ConfigSources,
    is_set: impl Fn(&str) -> bool,
    mistakes: &mut Mistakes,
) {
    for (flag, meaning) in flags() {
        let given = match meaning {
            Meaning::Computes(..) | Meaning::Translates(..) => matches.get_one::<String>(flag).map(String::as_str),
            Meaning::SetsUnless(..) => matches.get_flag(flag).then_some(""),
            _ => None,
        };
        let Some(text) = given else { continue };
        let named = format!("--{flag} {text}").trim_end().to_string();
        let config = sources.resolve();
        let sets = |key: &str, to: &str| format!("it sets {key} to {to}");
        let (key, rule, value) = match meaning {
            Meaning::Computes(key, formula, compute) => {
                (*key, sets(key, formula), computed(key, text, |number| compute(number, &config)))
            }
            Meaning::Translates(key, words, example, translate) => {
                let value = translate(text, &config).ok_or_else(|| ("", format!("for example {example}")));
                (*key, sets(key, words), value)
            }
            Meaning::SetsUnless((key, value), (other, unless), _) if !is_word(&config, other, unless) => {
                (*key, sets(key, value), Ok(value.to_string()))
            }
            _ => continue,
        };
        if is_set(key) {
            mistakes.add(UserError::new(format!("{named} with {key}"), rule, "give one of them"));
            continue;
        }
        let value = value.map_err(|(problem, fix)| UserError::new(format!("{named}{problem}"), rule, fix));
        if mistakes.keep(value.and_then(|value| sources.set(key, &value, &named))).is_none() {
            mistakes.doubt([key]);
        }
    }
}

/// The value of the option `key` that follows from a number. If there is none: the end of the error's first part, and the fix.
fn computed(key: &str, text: &str, compute: impl Fn(f64) -> Option<f64>) -> Result<String, (&'static str, String)> {
    let number = text.parse::<f64>().map_err(|_| ("", "write a number".to_string()))?;
    let value = compute(number).ok_or_else(|| (", whose number is not known", format!("set {key} itself")))?;
    let is_integer = find(key).is_some_and(|option| option.kind == Kind::Integer);
    Ok(if is_integer { value.floor() } else { value }.to_string())
}

/// Whether the value of an option is the given word.
fn is_word(config: &RunConfig, key: &str, word: &str) -> bool {
    config.by_key().get(key).and_then(Value::as_str) == Some(word)
}

/// A flag as errors name flags, and the options that the flag sets, if given.
fn sets(matches: &ArgMatches, flag: &str, meaning: &Meaning) -> (String, Sets) {
    let given = || matches.get_one::<String>(flag);
    let one = |is_given: bool, key, value| if is_given { vec![(key, value)] } else { Vec::new() };
    let sets = match *meaning {
        Meaning::Sets(key, value) | Meaning::SetsTelling((key, value), ..) => one(matches.get_flag(flag), key, value),
        Meaning::SetsWhateverValue(key, value, _) => one(given().is_some(), key, value),
        Meaning::SetsByValue(values, ..) => {
            let known = values.iter().find(|(word, _)| given().is_some_and(|given| given == word));
            return known.map_or_else(Default::default, |(word, sets)| (format!("--{flag} {word}"), sets.to_vec()));
        }
        _ => Vec::new(),
    };
    (format!("--{flag}"), sets)
}

/// Adds each flag that contradicts an option to `mistakes`.
pub(super) fn check_agreement(matches: &ArgMatches, config: &RunConfig, mistakes: &mut Mistakes) {
    let values = config.by_key();
    let value_of = |key: &str| values.get(key);
    // The option itself has another value on the same command line.
    let other_than = |key: &str, value: &str| {
        let text = value_of(key).map(|value| value.as_str().map_or(value.to_string(), str::to_string));
        text.filter(|other| other != value).map(|other| format!("{key} = {other}"))
    };
    for (flag, meaning) in flags() {
        let one = "give one of them".to_string();
        let given = || matches.get_one::<String>(flag);
        let against = match meaning {
            Meaning::Agrees(Takes::Value, key, _) => value_of(key).zip(given()).and_then(|(value, given)| {
                let fix = format!("leave it out, or set {key} = {given}");
                (!same_value(&value.to_string(), given))
                    .then(|| (format!("--{flag} {given} with {key} = {value}"), fix))
            }),
            Meaning::SetsItem(key, at) => value_of(key).zip(given()).and_then(|(value, given)| {
                let item = value.as_array().and_then(|items| items.get(*at));
                let same = item.is_some_and(|item| same_value(&item.to_string(), given));
                (!same).then(|| (format!("--{flag} {given} with {key} = {value}"), one))
            }),
            Meaning::Agrees(Takes::Nothing, key, _) if matches.get_flag(flag) => {
                value_of(key).map(|value: &Value| (format!("--{flag} with {key} = {value}"), one))
            }
            _ => {
                let (named, sets) = sets(matches, flag, meaning);
                let other = sets.iter().find_map(|(key, value)| other_than(key, value));
                other.map(|other| (format!("{named} with {other}"), one))
            }
        };
        if let Some((what, fix)) = against {
            mistakes.add(UserError::new(what, "a flag agrees with the option that it stands for", fix));
        }
    }
}

/// A notice for each given flag that has no effect, or another than in Megatron.
pub(super) fn notices(matches: &ArgMatches, config: &RunConfig) -> Vec<String> {
    let given = flags().filter_map(|(flag, meaning)| match meaning {
        Meaning::Ignored(takes, why) => {
            let given = if *takes == Takes::Nothing { matches.get_flag(flag) } else { matches.contains_id(flag) };
            given.then(|| format!("--{flag} has no effect: {why}"))
        }
        Meaning::SetsWhateverValue(_, _, why) | Meaning::IgnoredIf(_, why, ..) => {
            matches.get_one::<String>(flag).map(|text| format!("--{flag} {text}: {why}"))
        }
        Meaning::SetsTelling(_, (key, value), why) if matches.get_flag(flag) && is_word(config, key, value) => {
            Some(format!("--{flag}: {why}"))
        }
        Meaning::SetsUnless(_, (key, value), why) if matches.get_flag(flag) && is_word(config, key, value) => {
            Some(format!("--{flag} has no effect: {why}"))
        }
        _ => None,
    });
    given.collect()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use trainer::config::request::TrainRequest;
    use trainer::config::{BalanceGroup, RouterScore};

    use crate::commands::cli::{Request, parse};

    fn request(line: &str) -> Result<TrainRequest, String> {
        match parse(format!("trainer {line}").split_whitespace().map(OsString::from)) {
            Ok(Request::Train(request)) => Ok(*request),
            Err(error) => Err(error.to_string()),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn a_mixtral_of_megatron_and_a_deepseek_set_our_options() {
        let mixtral = "--num-layers 4 --num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 64 \
                       --moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-2 --moe-grouped-gemm \
                       --moe-token-dispatcher-type alltoall --expert-model-parallel-size 1 --moe-layer-freq 2";
        let TrainRequest { config, notices, .. } = request(mixtral).unwrap();
        let (model, train) = (&config.model, &config.train);
        assert_eq!((model.experts, model.experts_per_token, model.expert_ffn), (8, 2, Some(64)));
        assert_eq!((train.balance_loss_multiplier, train.balance_loss_over), (0.01, BalanceGroup::Microbatch));
        assert_eq!((&model.expert_pattern[..], model.router_normalise), (&[1, 0][..], true));
        assert_eq!(notices.len(), 2, "{notices:?}");

        let deepseek = "--num-layers 3 --num-experts 8 --moe-layer-freq ([0]*1+[1]*2) --moe-router-score-function sigmoid \
                        --moe-router-pre-softmax --moe-router-topk-scaling-factor 2.5 --moe-router-num-groups 4 \
                        --moe-router-topk 4 --moe-router-group-topk 2 \
                        --moe-router-load-balancing-type seq_aux_loss --moe-router-dtype fp32 \
                        --moe-shared-expert-intermediate-size 32 --kv-lora-rank 64 --q-lora-rank 96 --qk-head-dim 32 \
                        --qk-pos-emb-head-dim 16 --v-head-dim 32";
        let TrainRequest { config, notices, .. } = request(deepseek).unwrap();
        let model = &config.model;
        assert_eq!((model.router_score, model.router_normalise, model.router_scale), (RouterScore::Sigmoid, true, 2.5));
        assert_eq!((model.expert_groups, model.expert_groups_per_token), (4, 2));
        assert_eq!((model.kv_latent, model.query_latent, model.value_head_dim), (Some(64), Some(96), Some(32)));
        assert_eq!((model.head_dim, model.rotary_head_dim), (Some(48), 16));
        assert_eq!((&model.expert_pattern[..], model.shared_expert_ffn), (&[0, 1, 1][..], 32));
        assert_eq!(config.train.balance_loss_over, BalanceGroup::Sequence);
        assert!(notices.len() == 1 && notices[0].starts_with("--moe-router-pre-softmax has no effect"), "{notices:?}");

        let config = request("--num-experts 8 --moe-router-pre-softmax").unwrap().config;
        assert!(!config.model.router_normalise);
        let config = request("--num-experts 8 --moe-router-load-balancing-type global_aux_loss").unwrap().config;
        assert_eq!(config.train.balance_loss_over, BalanceGroup::GlobalBatch);
        let config = request("--num-experts 8 --moe-router-load-balancing-type none").unwrap().config;
        assert_eq!(config.train.balance_loss_multiplier, 0.0);
    }

    #[test]
    fn flags_about_experts_that_are_not_there_are_refused_with_the_rule_and_the_fix() {
        for (line, parts) in [
            ("--moe-layer-freq every", ["--moe-layer-freq every", "every VALUE-th block", "([0]*1+[1]*3)"]),
            ("--num-layers 4 --moe-layer-freq [0,1]", ["--moe-layer-freq [0,1]", "each block", "for example"]),
            ("--moe-layer-freq 2 --expert-pattern 0 1", ["with model.expert_pattern", "sets", "give one of them"]),
            ("--moe-router-load-balancing-type sinkhorn", ["type sinkhorn", "of each sequence", "aux_loss"]),
            (
                "--moe-router-load-balancing-type none --moe-aux-loss-coeff 0.1",
                ["type none with", "agrees", "give one of them"],
            ),
            (
                "--moe-router-pre-softmax --router-normalise=true",
                ["--moe-router-pre-softmax with", "sets model.router_normalise", "give one of them"],
            ),
            (
                "--moe-router-quantile-balancing-ema 0.9",
                ["quantile", "steps of one size", "--moe-router-bias-update-rate"],
            ),
            ("--moe-router-dtype fp64", ["fp64", "compute in f32", "leave it out"]),
            ("--moe-router-num-groups 4 --moe-router-group-topk 2", ["group-topk 2", "two highest", "for example"]),
        ] {
            let error = request(line).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{line}: {error}");
        }
    }
}
