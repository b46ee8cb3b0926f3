//! What the command lines of several commands share: parsing, errors in our form, and the flags of a training run.

mod megatron_flags;
mod refusal;
mod run_flags;
mod unsupported_flags;

use std::ffi::OsString;

use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser, TypedValueParser};
use clap::{Arg, ArgMatches, Command};
use common::{Choice, UserError};

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

/// A flag `--name VALUE` whose value is text that is not empty.
pub(crate) fn text_flag(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).value_parser(NonEmptyStringValueParser::new()).help(help)
}

/// A required argument without a flag whose value is text that is not empty.
pub(crate) fn positional(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).value_parser(NonEmptyStringValueParser::new()).required(true).help(help)
}

/// A parser for the words of a [`Choice`].
pub(crate) fn one_of<C: Choice + Send + Sync>() -> impl TypedValueParser<Value = C> {
    PossibleValuesParser::new(C::WORDS).try_map(|word| C::from_word(&word).ok_or("unknown word"))
}

/// The value of a text argument.
pub(crate) fn text(matches: &ArgMatches, name: &str) -> Option<String> {
    matches.get_one::<String>(name).cloned()
}
