//! A command line that clap refuses, as an error in our form.

use std::error::Error;
use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use common::UserError;

use trainer::config::options::{Kind, options};

/// The mistake that clap refuses, as an error in our form, and the command line without the mistake. The latter is `None`
/// if it is not known which arguments belong to the mistake.
pub(super) fn mistake(error: &clap::Error, arguments: &[OsString]) -> (UserError, Option<Vec<OsString>>) {
    (user_error(error, arguments), without(error, arguments))
}

/// The command line without the arguments that clap refuses.
fn without(error: &clap::Error, arguments: &[OsString]) -> Option<Vec<OsString>> {
    let one = |kind| texts(error, kind).into_iter().next();
    let (argument, value) = (one(ContextKind::InvalidArg), one(ContextKind::InvalidValue));
    let mut rest = arguments.to_vec();
    // A word that is no flag: one that is not expected, or that follows a switch.
    let word = match error.kind() {
        ErrorKind::UnknownArgument => argument.clone().filter(|word| !word.starts_with('-')),
        ErrorKind::TooManyValues => value.clone(),
        _ => None,
    };
    if let Some(word) = word {
        let at = arguments.iter().rposition(|argument| argument == word.as_str()).filter(|&at| at > 0)?;
        rest.remove(at);
        return Some(rest);
    }
    let is_of_flag =
        matches!(error.kind(), ErrorKind::InvalidValue | ErrorKind::ValueValidation | ErrorKind::ArgumentConflict);
    let flag = argument.filter(|_| is_of_flag)?;
    // It is shown as `--steps <VALUE>`, by the first of its names.
    let shown = flag.split([' ', '=', '[']).next()?.strip_prefix("--")?.to_string();
    let option = options().iter().find(|option| option.flag == shown);
    let is = |argument: &OsString| {
        let name = argument.to_str().and_then(|text| text.strip_prefix("--")).unwrap_or_default();
        let name = name.split('=').next().unwrap_or_default();
        name == shown || option.is_some_and(|option| option.aliases.contains(&name))
    };
    let at = arguments.iter().rposition(is)?;
    let is_value = |argument: &&OsString| !argument.to_string_lossy().starts_with("--");
    let attached = arguments[at].to_string_lossy().contains('=');
    // Only flags of a run take several values. Behind another one the next word may be an argument of its own.
    let most = if option.is_some() { usize::MAX } else { 1 };
    let values = if attached { 0 } else { arguments[at + 1..].iter().take_while(is_value).take(most).count() };
    rest.drain(at..=at + values);
    Some(rest)
}

/// The mistake in the command line, as an error in our form.
fn user_error(error: &clap::Error, arguments: &[OsString]) -> UserError {
    if let Some(error) = switch_with_value(error, arguments) {
        return error;
    }
    let one = |kind| texts(error, kind).join(", ");
    let (argument, value) = (one(ContextKind::InvalidArg), one(ContextKind::InvalidValue));
    let subcommand = one(ContextKind::InvalidSubcommand);
    let did_you_mean = |kind| texts(error, kind).first().map(|near| format!("did you mean `{near}`?"));
    let help = "see `trainer --help`";
    match error.kind() {
        ErrorKind::UnknownArgument => UserError::new(
            format!("`{argument}` is not expected"),
            "`trainer --help` lists all arguments",
            did_you_mean(ContextKind::SuggestedArg).unwrap_or(help.into()),
        ),
        ErrorKind::InvalidSubcommand => UserError::new(
            format!("`{subcommand}` is not a subcommand"),
            "`trainer --help` lists all subcommands",
            elsewhere(&subcommand).map(str::to_string).unwrap_or_else(|| {
                // The nearest is the last.
                let near = texts(error, ContextKind::SuggestedSubcommand).pop();
                near.map_or(format!("{help}; without a subcommand the trainer trains"), |near| {
                    format!("did you mean `{near}`?")
                })
            }),
        ),
        ErrorKind::MissingRequiredArgument if argument.contains("--dry-run") => UserError::new(
            "--gpu without --dry-run",
            "--gpu names the GPU that a plan is for; a run and a job have the GPUs of their machines",
            "leave --gpu out, or check the plan first: trainer --dry-run --gpu GPU FLAGS",
        ),
        ErrorKind::MissingRequiredArgument => {
            UserError::new(format!("missing: {argument}"), "the command needs these arguments", "add them")
        }
        ErrorKind::MissingSubcommand => UserError::new(
            format!("`{subcommand}` without a subcommand"),
            format!("it is followed by one of: {}", one(ContextKind::ValidSubcommand)),
            "add one",
        ),
        ErrorKind::ArgumentConflict => conflict(&argument, &subcommand, &one(ContextKind::PriorArg)),
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
            let known = texts(error, ContextKind::ValidValue);
            let rule = match (&known[..], error.source()) {
                ([], Some(source)) => source.to_string(),
                ([], None) => "the flag has a value, which is not empty".into(),
                (known, _) => format!("the value is one of {}", known.join(", ")),
            };
            let what =
                if value.is_empty() { format!("{argument} has no value") } else { format!("`{value}` for {argument}") };
            let is_empty = value.is_empty() && known.is_empty();
            let fix = if is_empty {
                format!("give one (is a variable empty, is a comma too many?); {help}")
            } else {
                help.into()
            };
            UserError::new(what, rule, did_you_mean(ContextKind::SuggestedValue).unwrap_or(fix))
        }
        ErrorKind::TooManyValues => UserError::new(
            format!("`{value}` for {argument}"),
            "it is given without a value, or with no more than its help shows",
            "leave the value out; `--set key=false` turns a setting off",
        ),
        // Such as text that is not UTF-8.
        other => UserError::new(other.to_string(), "`trainer --help` shows what arguments look like", help),
    }
}

/// The fix for a subcommand of other programs.
fn elsewhere(subcommand: &str) -> Option<&'static str> {
    Some(match subcommand {
        "export" => "trainer convert --to hf CHECKPOINT FOLDER",
        "merge" => "trainer convert --to hf CHECKPOINT FOLDER, which adds adapters to the weights",
        "serve" => {
            "trainer convert --to hf CHECKPOINT FOLDER for a server such as vLLM; trainer chat and trainer sample here"
        }
        "sft" => "leave it out, and add --sft: without a subcommand the trainer trains",
        "train" | "pretrain" => "leave it out: without a subcommand the trainer trains",
        "finetune" => "leave it out, and add --init-from: without a subcommand the trainer trains",
        _ => return None,
    })
}

/// Arguments that exclude each other.
fn conflict(argument: &str, subcommand: &str, prior: &str) -> UserError {
    if !subcommand.is_empty() {
        return UserError::new(
            format!("{prior} before `{subcommand}`"),
            "a subcommand comes first, and its flags follow it; a flag has as many values as its help shows",
            format!("move or leave out what stands before it, or leave out `{subcommand}` if it is a value too many"),
        );
    }
    if argument == prior {
        let shown = argument.split([' ', '=', '[']).next().unwrap_or_default().trim_start_matches("--");
        let key = options().iter().find(|option| option.flag == shown).map_or("KEY", |option| option.key);
        let fix = format!("leave one out, or set it over all flags, as behind \"$@\" in a script: --set {key}=VALUE");
        return UserError::new(format!("{argument} is given twice"), "a flag is given once", fix);
    }
    UserError::new(format!("{argument} with {prior}"), "one excludes the other", "leave one out")
}

/// The texts that an error names in this role.
fn texts(error: &clap::Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    }
}

/// The error for a switch that is followed by a space and a value (`--flag false`), if clap refuses that value.
fn switch_with_value(error: &clap::Error, arguments: &[OsString]) -> Option<UserError> {
    let roles = [ContextKind::InvalidArg, ContextKind::InvalidSubcommand, ContextKind::InvalidValue];
    let refused: Vec<String> = roles.into_iter().flat_map(|role| texts(error, role)).collect();
    let option = |flag: &str| options().iter().find(|option| option.flag == flag || option.aliases.contains(&flag));
    let mut pairs =
        arguments.windows(2).filter_map(|pair| Some((pair[0].to_str()?.strip_prefix("--")?, pair[1].to_str()?)));
    let (flag, word) = pairs.find(|(flag, word)| {
        let is_switch = option(flag).is_none_or(|option| option.kind == Kind::Bool) && !flag.contains('=');
        // Python writes them with a capital letter.
        is_switch && ["true", "false", "True", "False"].contains(word) && refused.iter().any(|refused| refused == word)
    })?;
    let fix = match (option(flag), &*word.to_lowercase()) {
        (Some(_), word) => format!("write --{flag}={word}"),
        (None, "true") => format!("write --{flag}"),
        (None, _) => format!("leave --{flag} out"),
    };
    Some(UserError::new(format!("--{flag} {word}"), "the value of a switch follows an equals sign", fix))
}
