//! The arguments of Megatron, in a launch script or in a list.

use std::ffi::OsString;

use common::{Mistakes, UserError};
use trainer::config::megatron::{Meaning, Takes, flags, meaning, same_value};
use trainer::config::options::options;
use trainer::config::other_names::Set;
use trainer::config::plan::data_ranks;

use super::page::{Imported, written};
use super::recognise;
use super::shell::{self, Word};
use crate::commands::args::{flag_values, numbers_of_values};

/// Options that scripts leave out, with Megatron's defaults (github.com/NVIDIA/Megatron-LM, `megatron/training/arguments.py`),
/// where ours differ.
const DEFAULTS: &[(&str, &str)] = &[
    ("model.hidden_dropout", "0.1"),
    ("model.attention_dropout", "0.1"),
    ("optimizer.schedule", "linear"),
    ("optimizer.min_lr", "0.0"),
    ("optimizer.warmup_steps", "0"),
    ("optimizer.betas", "[0.9, 0.999]"),
    ("optimizer.weight_decay", "0.01"),
    ("train.seed", "1234"),
    ("train.eval_interval", "1000"),
    ("train.eval_steps", "100"),
    ("logging.interval", "100"),
];

/// The same, for runs that save checkpoints.
const DEFAULTS_OF_CHECKPOINTS: &[(&str, &str)] = &[("checkpoint.interval", "0"), ("checkpoint.keep", "0")];

/// The most arguments of a run. Scripts have hundreds at most.
const MOST_ARGUMENTS: usize = 4096;

/// Options that Megatron has no defaults for.
const REQUIRED: &[&str] = &[
    "model.layers",
    "model.hidden",
    "model.heads",
    "model.seq_length",
    "train.micro_batch_size",
    "train.steps",
    "optimizer.lr",
];

/// The options that follow from a script on `ranks` ranks, and the number of ranks, if none is given the script's.
///
/// # Errors
/// A text without arguments of a training run.
pub(super) fn import(text: &str, file: &str, ranks: Option<usize>) -> Result<(Imported, usize), UserError> {
    let script = shell::read(text);
    let program = script.words.iter().position(|word| word.text().ends_with(".py"));
    let (launcher, arguments) = script.words.split_at(program.map_or(0, |at| at + 1));
    if arguments.is_empty() {
        let rule = "it is a script with the command of a training run, such as torchrun pretrain_gpt.py, or a list of its flags";
        return Err(UserError::new(format!("{file} has no arguments of Megatron"), rule, "name such a file"));
    }
    if arguments.len() > MOST_ARGUMENTS {
        let what = format!("{file} has {} arguments", arguments.len());
        return Err(UserError::new(what, format!("a run has at most {MOST_ARGUMENTS}"), "name the script of one run"));
    }
    let mut imported = Imported::default();
    script.left.iter().for_each(|line| imported.leave(line));
    let ranks = ranks.unwrap_or_else(|| launched(launcher, &mut imported));
    let line = known(arguments, &mut imported);
    check_names(arguments, file)?;
    let mut mistakes = Mistakes::default();
    if let (Some((given, _)), Some((sources, notices))) =
        (flag_values(&line, &[], &mut Mistakes::default()), flag_values(&line, DEFAULTS, &mut mistakes))
    {
        let given = given.given();
        for (key, value) in sources.given_values() {
            let how = if given.contains(key) { computed(key, &line) } else { "default of Megatron".into() };
            let value = value.as_str().map_or_else(|| written(&value), str::to_string);
            imported.set(&Set { key, value, how }, key);
        }
        notices.iter().for_each(|notice| imported.leave(notice));
    }
    mistakes.lines().iter().for_each(|line| imported.leave(line));
    set_warmup(&line, &mut imported);
    tell_the_rest(&line, &mut imported);
    complete(&mut imported, ranks);
    Ok((imported, ranks))
}

/// The ranks that a launcher starts.
fn launched(launcher: &[Word], imported: &mut Imported) -> usize {
    let texts: Vec<String> = launcher.iter().map(Word::text).collect();
    let words: Vec<&str> = texts.iter().flat_map(|text| text.split('=')).collect();
    let mut number = |flag: &str| {
        let at = words.iter().position(|word| word.trim_start_matches('-').replace('-', "_") == flag)?;
        let value = words.get(at + 1)?;
        let number = value.parse().ok();
        if number.is_none() {
            imported.leave(format!(
                "--{flag} {value}: the number of ranks is not known. Instead: trainer import --ranks N"
            ));
        }
        number
    };
    let of_node: usize = number("nproc_per_node").unwrap_or(1);
    of_node * number("nnodes").unwrap_or(1)
}

/// The command line of a run with the arguments that are known.
fn known(arguments: &[Word], imported: &mut Imported) -> Vec<OsString> {
    let mut line = vec![OsString::from("trainer")];
    let numbers = numbers_of_values();
    let mut at = 0;
    while at < arguments.len() {
        let flag = &arguments[at];
        at += 1;
        let name = flag.text();
        let most = match name.strip_prefix("--") {
            // Megatron's flag takes several words. So may an unknown flag, which has all words up to the next flag.
            Some("cuda-graph-scope") => usize::MAX,
            Some(name) if !name.contains('=') => numbers.get(&name.replace('_', "-")).copied().unwrap_or(usize::MAX),
            _ => 0,
        };
        let is_value = |word: &&Word| !word.text().starts_with("--");
        let values = arguments[at..].iter().take(most).take_while(is_value).count();
        let group = &arguments[at - 1..at + values];
        at += values;
        let is_known = group.iter().all(Word::is_known);
        if is_known && !name.starts_with("--") {
            imported.leave(format!("{name}: a word that is no value of the flag before it"));
        } else if is_known {
            line.extend(group.iter().map(|word| OsString::from(word.text())));
        } else {
            let shown = group.iter().map(Word::text).collect::<Vec<_>>().join(" ");
            imported.leave(format!("{shown}: not known, because the file does not set it"));
        }
    }
    line
}

/// Fails unless the flags of a script are Megatron's.
fn check_names(arguments: &[Word], file: &str) -> Result<(), UserError> {
    let numbers = numbers_of_values();
    let texts: Vec<String> = arguments.iter().map(Word::text).collect();
    let names = texts.iter().filter_map(|text| text.strip_prefix("--"));
    let names: Vec<String> = names.map(|name| name.split('=').next().unwrap_or_default().replace('_', "-")).collect();
    let is_known = |name: &&String| numbers.contains_key(*name) || meaning(name).is_some();
    recognise::check_known(names.iter().filter(is_known).count(), names.len(), "flags are Megatron's", file)
}

/// A share of warm-up is one of the decay in Megatron, which may be longer than the run.
fn set_warmup(line: &[OsString], imported: &mut Imported) {
    let number = |flag: &str| {
        let is = |word: &OsString| word.to_str().is_some_and(|word| word.replace('_', "-") == flag);
        line.get(line.iter().position(is)? + 1)?.to_str()?.parse::<f64>().ok()
    };
    let Some(share) = number("--lr-warmup-fraction") else { return };
    let batch = imported.sources().resolve().train.global_batch_size as f64;
    let decay = number("--lr-decay-iters").map(|steps| (steps, format!("--lr-decay-iters {steps}")));
    let in_samples = || number("--lr-decay-samples").map(|all| (all / batch, format!("--lr-decay-samples {all}")));
    if let Some((steps, named)) = decay.or_else(in_samples) {
        let (key, value) = ("optimizer.warmup_steps", (share * steps).floor().to_string());
        let how = format!("--lr-warmup-fraction {share} x {named}");
        imported.set(&Set { key, value, how }, "--lr-warmup-fraction");
    }
}

/// Names each flag that set nothing and that no comment names by now: another mistake hides what it means.
fn tell_the_rest(line: &[OsString], imported: &mut Imported) {
    let words: Vec<&str> = line.iter().filter_map(|word| word.to_str()).collect();
    for (at, word) in words.iter().enumerate() {
        let Some(name) = word.strip_prefix("--") else { continue };
        let (name, attached) = name.split_once('=').map_or((name, None), |(name, value)| (name, Some(value)));
        let flag = name.replace('_', "-");
        let value = attached.or_else(|| words.get(at + 1).copied().filter(|next| !next.starts_with("--")));
        let effect = meaning(&flag);
        let option = options().iter().find(|option| option.flag == flag || option.aliases.contains(&&*flag));
        let keys = option.map(|option| vec![option.key]).or_else(|| Some(effect?.keys())).unwrap_or_default();
        let config = imported.sources().resolve().by_key();
        let is_that =
            |key: &&str| config.get(*key).zip(value).is_some_and(|(is, given)| same_value(&is.to_string(), given));
        let told = match effect {
            Some(Meaning::Agrees(Takes::Nothing, key, _)) => !imported.has(key),
            Some(Meaning::Agrees(..)) => keys.iter().any(is_that),
            _ => keys.iter().any(|key| imported.has(key) || imported.names(key)),
        };
        if !told && !imported.names(&format!("--{name}")) {
            let beside = keys.first().map_or(String::new(), |key| format!(" beside {key}"));
            let value = value.map_or(String::new(), |value| format!(" {value}"));
            imported
                .leave(format!("--{name}{value}{beside}: not taken; correct the settings that are named here first"));
        }
    }
}

/// How an option's value was found, if a flag of Megatron's is converted.
fn computed(key: &str, line: &[OsString]) -> String {
    let converts = |meaning: &Meaning| {
        matches!(meaning, Meaning::Computes(..) | Meaning::Translates(..) | Meaning::SetsByValue(..))
    };
    let of = |meaning: &Meaning| converts(meaning) && meaning.keys().contains(&key);
    let converted = flags().filter(|(_, meaning)| of(meaning)).find_map(|(flag, _)| {
        let at = line
            .iter()
            .position(|word| word.to_str().is_some_and(|word| word.replace('_', "-") == format!("--{flag}")))?;
        Some(format!("--{flag} {}", line.get(at + 1)?.to_string_lossy()))
    });
    converted.unwrap_or_default()
}

/// Sets what follows from other options in Megatron, and names what a script must have.
fn complete(imported: &mut Imported, ranks: usize) {
    let add = |key: &'static str, value: &str, how: &str, imported: &mut Imported| {
        if !imported.has(key) {
            imported.set(&Set { key, value: value.into(), how: how.into() }, key);
        }
    };
    if imported.has("checkpoint.dir") {
        DEFAULTS_OF_CHECKPOINTS.iter().for_each(|(key, value)| add(key, value, "default of Megatron", imported));
    }
    if imported.has("data.path") && !imported.has("data.validation_path") {
        add("data.split", "0.969", "default of Megatron, whose test data are for validation here", imported);
    }
    let config = imported.sources().resolve();
    let (micro, data_ranks) = (config.train.micro_batch_size, data_ranks(&config, ranks));
    let how = format!("micro-batch-size {micro} x {data_ranks} data-parallel ranks");
    add("train.global_batch_size", &(micro * data_ranks).to_string(), &how, imported);
    for key in REQUIRED.iter().filter(|key| !imported.has(key)).copied().collect::<Vec<_>>() {
        imported.leave(format!("{key} is not set, and has the default of this trainer"));
    }
    if !imported.has("model.vocab") {
        imported.leave("model.vocab is not set: Megatron takes it from the tokenizer, whose number of tokens it is");
    }
}
