//! What the command lines of several commands share: parsing, errors in our form, and the flags of a training run.

mod megatron_flags;
mod refusal;
mod run_flags;
mod unsupported_flags;

use std::ffi::OsString;

use clap::builder::{NonEmptyStringValueParser, PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Arg, ArgMatches, Command};
use common::{Choice, UserError};

use crate::config::DeviceChoice;
use crate::config::megatron::words;
pub(crate) use run_flags::{sets_option, train_request, training_run, with_run_flags};

/// A command line that was read.
pub(crate) enum Parsed {
    /// It asks for a command.
    Matches(ArgMatches),
    /// It asks for help or the version: the text.
    Help(String),
}

/// Reads a command line. `arguments` begin with the program's name.
///
/// # Errors
/// Everything that `command` does not accept. Unsupported and unknown flags are all named at once.
pub(crate) fn parse_line(command: Command, arguments: &[OsString]) -> Result<Parsed, UserError> {
    let arguments = &hyphenated(command.clone(), arguments)[..];
    let parsed = command.clone().try_get_matches_from(arguments);
    if let Err(error) = &parsed
        && !error.use_stderr()
    {
        return Ok(Parsed::Help(error.render().to_string()));
    }
    if let Some(error) = unsupported_flags::refuse(command, arguments) {
        return Err(error);
    }
    parsed.map(Parsed::Matches).map_err(|error| refusal::user_error(&error, arguments))
}

/// The arguments with hyphens in place of the underscores in the names of flags, where the command has such a flag.
fn hyphenated(mut command: Command, arguments: &[OsString]) -> Vec<OsString> {
    command.build();
    let (mut command, mut at) = (&command, 1);
    while let Some(of) = arguments.get(at).and_then(|name| command.find_subcommand(name)) {
        (command, at) = (of, at + 1);
    }
    let known = |name: &str| {
        command.get_arguments().any(|arg| {
            arg.get_long() == Some(name) || arg.get_all_aliases().into_iter().flatten().any(|alias| alias == name)
        })
    };
    let renamed = |argument: &OsString| {
        let text = argument.to_str()?.strip_prefix("--")?;
        let (name, value) = text.find('=').map_or((text, ""), |at| text.split_at(at));
        let name = name.replace('_', "-");
        known(&name).then(|| OsString::from(format!("--{name}{value}")))
    };
    let end = arguments.iter().position(|argument| argument == "--").unwrap_or(arguments.len());
    let (flags, rest) = arguments.split_at(end);
    let flags = flags.iter().map(|argument| renamed(argument).unwrap_or_else(|| argument.clone()));
    flags.chain(rest.iter().cloned()).collect()
}

/// A flag `--name VALUE` whose value is text that is not empty.
pub(crate) fn text_flag(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).value_parser(NonEmptyStringValueParser::new()).help(help)
}

/// A required argument without a flag whose value is text that is not empty.
pub(crate) fn positional(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).value_parser(NonEmptyStringValueParser::new()).required(true).help(help)
}

/// The flag `--device` of commands that do not train.
pub(crate) fn device_flag(help: &'static str) -> Arg {
    let key = "train.device";
    let word = |word: &&'static str| PossibleValue::new(*word).aliases(words::others(key, word));
    let parser = PossibleValuesParser::new(DeviceChoice::WORDS.iter().map(word));
    let parser = parser.try_map(move |word| DeviceChoice::from_word(&words::ours(key, &word)).ok_or("unknown word"));
    Arg::new("device").long("device").value_parser(parser).default_value(DeviceChoice::Auto.word()).help(help)
}

/// The value of a text argument.
pub(crate) fn text(matches: &ArgMatches, name: &str) -> Option<String> {
    matches.get_one::<String>(name).cloned()
}
