//! Code shared by the command lines of several commands: parsing, errors in our form, and the flags of a training run.

mod followed;
mod megatron_flags;
mod refusal;
mod run_flags;
mod unsupported_flags;

use std::ffi::OsString;
use std::iter;
use std::ops::RangeBounds;
use std::path::PathBuf;

use clap::builder::{NonEmptyStringValueParser, PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{ArgMatches, Command, FromArgMatches, value_parser};
use common::{Choice, Mistakes, UserError};

pub(crate) use run_flags::{
    RunFlags, flag_values, numbers_of_values, request_from, sets_option, train_request, training_run,
};
use trainer::config::DeviceChoice;
use trainer::config::megatron::words;
use trainer::config::options::{OptionSpec, options};

/// A command line that was read.
pub(crate) enum Parsed {
    /// The line asks for a command.
    Matches(ArgMatches),
    /// The line asks for help or the version: the text.
    Help(String),
}

/// Reads a command line. `arguments` begin with the program's name.
///
/// # Errors
/// Everything that `command` does not accept.
pub(crate) fn parse_line(command: Command, arguments: &[OsString]) -> Result<Parsed, UserError> {
    let mut mistakes = Mistakes::default();
    let parsed = read_line(command, arguments, &mut mistakes);
    mistakes.end()?;
    parsed
        .ok_or_else(|| UserError::new("the command line", "it is read, or there is a mistake", "see `trainer --help`"))
}

/// The most mistakes of one kind that are looked for in a command line.
const MOST_MISTAKES: usize = 32;

/// Reads a command line with all that `command` does not accept added to `mistakes`. What it accepts is read all the same,
/// if it can be told apart. `arguments` begin with the program's name.
pub(crate) fn read_line(command: Command, arguments: &[OsString], mistakes: &mut Mistakes) -> Option<Parsed> {
    let arguments = &hyphenated(command.clone(), arguments)[..];
    let read = |arguments: &[OsString]| command.clone().try_get_matches_from(arguments);
    let mut parsed = read(arguments);
    if let Err(error) = &parsed
        && !error.use_stderr()
    {
        return Some(Parsed::Help(error.render().to_string()));
    }
    let divided = unsupported_flags::divide(command.clone(), arguments);
    let mut rest = arguments.to_vec();
    if let Some(error) = divided.error() {
        // The flag that was meant may be one of those in the answer.
        let keys = keys_in(&error.to_string());
        mistakes.add(error);
        mistakes.doubt(keys);
        rest = divided.rest?;
        parsed = read(&rest);
    }
    for _ in 0..MOST_MISTAKES {
        let error = match parsed {
            Ok(matches) => return Some(Parsed::Matches(matches)),
            Err(error) => error,
        };
        // An argument may be missing because it was wrong.
        if error.kind() == ErrorKind::MissingRequiredArgument && !mistakes.is_empty() {
            let lines = mistakes.lines();
            let is_told = |flag: &str| lines.iter().any(|line| line.contains(flag));
            let given = |flag: &str| rest.iter().any(|argument| argument.to_string_lossy().starts_with(flag));
            let flags = divided.required.iter().map(|name| format!("--{name}"));
            let missing: Vec<String> = flags.filter(|flag| !is_told(flag) && !given(flag)).collect();
            if !missing.is_empty() {
                let what = format!("missing: {}", missing.join(", "));
                mistakes.add(UserError::new(what, "the command needs these arguments", "add them"));
            }
            return None;
        }
        let (mistake, without) = refusal::mistake(&error, &rest);
        let keys = keys_in(&mistake.what);
        mistakes.add(mistake);
        mistakes.doubt(keys);
        rest = without.filter(|_| divided.reads_on)?;
        parsed = read(&rest);
    }
    None
}

/// The flags of a line that clap has read.
pub(crate) fn read<F: FromArgMatches>(matches: &ArgMatches) -> F {
    F::from_arg_matches(matches).unwrap_or_else(|error| unreachable!("clap has checked the line: {error}"))
}

/// The keys of the options that a text names, by key or by flag.
fn keys_in(text: &str) -> Vec<&'static str> {
    let words: Vec<&str> = text.split(|c: char| !(c.is_ascii_alphanumeric() || "_.-".contains(c))).collect();
    let is_named = |option: &&OptionSpec| {
        let flags = iter::once(&option.flag).chain(option.aliases);
        let mut names = flags.map(|flag| format!("--{flag}")).chain([option.key.to_string()]);
        names.any(|name| words.iter().any(|word| word.trim_end_matches(['.', '-']) == name))
    };
    options().iter().filter(is_named).map(|option| option.key).collect()
}

/// The arguments with hyphens in place of underscores, in names that are then flags of the command.
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
    let flags: Vec<OsString> =
        flags.iter().map(|argument| renamed(argument).unwrap_or_else(|| argument.clone())).collect();
    with_modules(flags).into_iter().chain(rest.iter().cloned()).collect()
}

/// The arguments, with the several scopes of graphs that Megatron's flag takes turned into modules.
fn with_modules(mut flags: Vec<OsString>) -> Vec<OsString> {
    if let Some(at) = flags.iter().position(|flag| flag == "--cuda-graph-scope") {
        let is_value = |word: &&OsString| !word.to_string_lossy().starts_with('-');
        if flags[at + 1..].iter().take_while(is_value).count() > 1 {
            flags[at] = "--cuda-graph-modules".into();
        }
    }
    flags
}

/// How commands take the model of a folder, for help.
pub(crate) const MODEL_FOLDER: &str = "A checkpoint, a folder of them (the newest is taken; DIR/best is \
                                        the best), a Hugging Face model, or adapters of PEFT";

/// Text that is not empty, as the value of a flag.
pub(crate) fn filled() -> NonEmptyStringValueParser {
    NonEmptyStringValueParser::new()
}

/// A path, as the value of a flag.
pub(crate) fn path() -> impl TypedValueParser<Value = PathBuf> {
    filled().map(PathBuf::from)
}

/// A whole number of a range, as the value of a flag.
pub(crate) fn whole(range: impl RangeBounds<i64>) -> impl TypedValueParser<Value = usize> {
    value_parser!(u32).range(range).map(|number| number as usize)
}

/// The value of the flag `--device` of commands that do not train.
pub(crate) fn device() -> impl TypedValueParser<Value = DeviceChoice> {
    let key = "train.device";
    let word = |word: &&'static str| PossibleValue::new(*word).aliases(words::others(key, word));
    let parser = PossibleValuesParser::new(DeviceChoice::WORDS.iter().map(word));
    parser.try_map(move |word| DeviceChoice::from_word(&words::ours(key, &word)).ok_or("unknown word"))
}
