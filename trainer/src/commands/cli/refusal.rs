//! What is wrong with a command line, in words of ours.

use std::ffi::OsString;

use clap::error::ErrorKind;
use common::UserError;

use crate::config::options::{Kind, OPTIONS};

/// What is wrong with the command line, in our form.
pub(super) fn refusal(error: &clap::Error, arguments: &[OsString]) -> UserError {
    if let Some(error) = apart(error, arguments) {
        return error;
    }
    let text = error.render().to_string();
    let mut lines = text.trim_start_matches("error: ").lines();
    let mut what = lines.next().unwrap_or_default().to_string();
    let tip = text.lines().find_map(|line| line.trim().strip_prefix("tip: ")).map(str::to_string);
    let known = text.lines().find_map(|line| line.trim().strip_prefix("[")?.strip_suffix("]")).map(str::to_string);
    let (rule, fix) = match error.kind() {
        ErrorKind::UnknownArgument => ("only what `trainer --help` lists is known", "see `trainer --help`"),
        ErrorKind::InvalidSubcommand => {
            ("only what `trainer --help` lists is known", "see `trainer --help`; without a subcommand it trains")
        }
        ErrorKind::MissingRequiredArgument => {
            what = format!("{what} {}", listed(lines));
            ("it cannot do without", "give them")
        }
        ErrorKind::MissingSubcommand => ("it does one of several things", "say which"),
        ErrorKind::ArgumentConflict if what.contains("multiple times") => ("a flag is given once", "leave one out"),
        ErrorKind::ArgumentConflict if what.contains("subcommand") => {
            // One is named in the line, several below it.
            what = format!("{what} {}", listed(lines)).trim_end().into();
            ("a subcommand comes first, and its flags after it", "move or leave out what is before it")
        }
        ErrorKind::ArgumentConflict => ("one excludes the other", "leave one out"),
        _ => ("a flag has a value as `trainer --help` shows for it", "see `trainer --help`"),
    };
    UserError::new(what, known.unwrap_or_else(|| rule.into()), tip.unwrap_or_else(|| fix.into()))
}

/// What clap lists below the first line of an error, up to an empty line.
fn listed<'t>(lines: impl Iterator<Item = &'t str>) -> String {
    let listed: Vec<&str> = lines.map(str::trim).take_while(|line| !line.is_empty()).collect();
    listed.join(", ")
}

/// A switch and its value with a space between them, where the value is taken for something else.
fn apart(error: &clap::Error, arguments: &[OsString]) -> Option<UserError> {
    let text = error.render().to_string();
    let mut pairs =
        arguments.windows(2).filter_map(|pair| Some((pair[0].to_str()?.strip_prefix("--")?, pair[1].to_str()?)));
    let (flag, word) = pairs.find(|(flag, word)| {
        let option = OPTIONS.iter().find(|option| option.flag == *flag || option.aliases.contains(flag));
        let switch = option.is_none_or(|option| option.kind == Kind::Bool) && !flag.contains('=');
        switch && ["true", "false"].contains(word) && text.contains(&format!("'{word}'"))
    })?;
    let option = OPTIONS.iter().any(|option| option.flag == flag || option.aliases.contains(&flag));
    let fix = match (option, word) {
        (true, _) => format!("write --{flag}={word}"),
        (false, "true") => format!("write --{flag}"),
        (false, _) => format!("leave --{flag} out"),
    };
    Some(UserError::new(format!("--{flag} {word}"), "a switch has its value, if any, after an equals sign", fix))
}
