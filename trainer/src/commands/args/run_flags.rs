//! The flags of a training run. Several commands take them.

use std::ffi::OsString;
use std::iter;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Command};
use common::UserError;

use super::{Parsed, megatron_flags, parse_line, text_flag};
use crate::checkpoint::{changed_meaning, start_folder};
use crate::config::megatron::{our_flag, words};
use crate::config::options::{Kind, OPTIONS, OptionSpec, find};
use crate::config::request::TrainRequest;
use crate::config::{Layers, recipes};
use crate::hf::Pretrained;
use crate::report::graph_report::beside;

/// Adds the flags of a training run to a command.
pub(crate) fn with_run_flags(mut command: Command) -> Command {
    let switch =
        |name: &'static str, help: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue).help(help);
    command = command
        .arg(text_flag(
            "config",
            "FILE",
            "TOML file, or the name of a recipe (`trainer configs list`). Flags override it",
        ))
        .arg(
            Arg::new("set")
                .long("set")
                .value_name("KEY=VALUE")
                .action(ArgAction::Append)
                .help("Sets any option by its TOML key, over everything else"),
        )
        .arg(switch("dry-run", "Prints the plan and stops; takes no memory"))
        .arg(
            text_flag("gpu", "GPU", "With --dry-run: fails unless the plan fits this GPU, one of `trainer plan`")
                .requires("dry-run"),
        )
        .arg(switch(
            "check-graphs",
            "Checks every operation and graph launch for races, stale reads and use after free",
        ))
        .arg(text_flag(
            "graph-report",
            "FILE",
            "Writes all graphs to FILE as JSON; beside it, ending in .dot, .svg and .txt, Graphviz, a picture and the step as a list",
        ))
        .arg(
            Arg::new("log")
                .long("log")
                .value_name("FILTER")
                .default_value("warn")
                .help("Log messages to show: a level, or target=level pairs"),
        );
    command = megatron_flags::with_megatron_flags(command);
    for option in OPTIONS {
        let section = option.key.split('.').next().unwrap_or_default();
        let default = if option.default.is_empty() { String::new() } else { format!(" [default: {}]", option.default) };
        let mut arg = Arg::new(option.key)
            .long(option.flag)
            .visible_aliases(option.aliases.to_vec())
            .help_heading(section)
            // The words of some choices are long. In one column with them, all help texts would begin far to the right.
            .next_line_help(true)
            .help(format!("{}{default}", option.doc));
        arg = match option.kind {
            Kind::Bool => arg.num_args(0..=1).require_equals(true).default_missing_value("true").value_name("BOOL"),
            // As in Megatron: --data-path 0.3 A 0.7 B.
            Kind::Paths => arg.num_args(1..).value_name("PATHS"),
            Kind::Texts => arg.num_args(1..).value_name("PATTERNS"),
            // As in Megatron: --rampup-batch-size 16 16 100000.
            Kind::Integers | Kind::Floats => arg.num_args(1..).value_name("VALUES").allow_negative_numbers(true),
            // As in Megatron: --cuda-graph-modules attn mlp.
            Kind::Choices(words) => arg.num_args(1..).value_name(words.join("|")),
            Kind::Choice(words) => arg.value_name(words.join("|")).allow_hyphen_values(true),
            _ => arg.value_name("VALUE").allow_hyphen_values(true),
        };
        command = command.arg(arg);
    }
    command
}

/// The training run that the flags ask for. Flags override the `preset` of a command, which overrides a config file.
///
/// # Errors
/// Everything that is wrong with the flags and the files that they name.
pub(crate) fn train_request(matches: &ArgMatches, preset: &[(&str, &str)]) -> Result<TrainRequest, UserError> {
    let mut layers = layers(matches, preset)?;
    let mut notices = megatron_flags::notices(matches, &layers.resolve());
    if let Some(folder) = layers.init_from() {
        // A resumed run has its model in the checkpoint. The folder that it started from may be gone.
        let resumed = start_folder(&layers.resolve().checkpoint);
        let pretrained = match &resumed {
            Some(checkpoint) => Pretrained::open_checked(checkpoint)?, // the run compares its hashes when it resumes
            None => Pretrained::open(folder.as_ref())
                .map_err(|error| UserError { what: format!("model.init_from = {}", error.what), ..error })?,
        };
        let (folder, mut theirs) = (resumed.unwrap_or_else(|| folder.into()), Layers::default());
        layers.start_from(pretrained.options());
        theirs.start_from(pretrained.options());
        let differ = changed_meaning(&theirs.resolve().model, &layers.resolve().model).join(", ");
        if !differ.is_empty() {
            let folder = folder.display();
            notices.push(format!("the weights are those of {folder}, but the model differs: {differ}"));
        }
    }
    let config = layers.resolve();
    megatron_flags::check_agreement(matches, &config)?;
    let graph_report = matches.get_one::<String>("graph-report").map(PathBuf::from);
    if let Some(path) = graph_report.as_ref().filter(|path| beside(path).contains(path)) {
        return Err(UserError::new(
            format!("--graph-report {}", path.display()),
            "the file is JSON; the same name ending in .dot, .svg and .txt is for other forms",
            format!("--graph-report {}", path.with_extension("json").display()),
        ));
    }
    Ok(TrainRequest {
        config,
        dry_run: matches.get_flag("dry-run"),
        check_graphs: matches.get_flag("check-graphs"),
        graph_report,
        log: matches.get_one::<String>("log").cloned().unwrap_or_default(),
        given: layers.given(),
        gpu: matches.get_one::<String>("gpu").cloned(),
        notices,
    })
}

/// The training run that a command line of the trainer asks for. `arguments` begin with the program's name.
///
/// # Errors
/// Everything that is wrong with it; a command line that does not train.
pub(crate) fn training_run(arguments: impl IntoIterator<Item = OsString>) -> Result<TrainRequest, UserError> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let does_not_train = || {
        let rule = "the trainer's flags are those of a training run, which ends with its last step";
        UserError::new("these flags do not train", rule, "leave out the subcommand, --help or --dry-run")
    };
    // Without a flag in front it is a subcommand.
    if arguments.get(1).and_then(|first| first.to_str()).is_some_and(|first| !first.starts_with('-')) {
        return Err(does_not_train());
    }
    match parse_line(with_run_flags(Command::new("trainer")), &arguments)? {
        Parsed::Matches(matches) => Some(train_request(&matches, &[])?).filter(|run| !run.dry_run),
        Parsed::Help(_) => None,
    }
    .ok_or_else(does_not_train)
}

/// The values of the command line in layers.
fn layers(matches: &ArgMatches, preset: &[(&str, &str)]) -> Result<Layers, UserError> {
    let mut layers = Layers::default();
    for (key, value) in preset {
        layers.set(key, value, "preset")?;
    }
    if let Some(path) = matches.get_one::<String>("config") {
        match recipes::recipe(path).filter(|_| !Path::new(path).exists()) {
            Some(text) => layers.read_text(text, &format!("recipe {path}"))?,
            // A name that does not look like a path was probably meant to be a recipe.
            None if !Path::new(path).exists() && !path.contains(['/', '\\']) && !path.ends_with(".toml") => {
                recipes::named(path)?;
            }
            None => layers.read_file(path.as_ref())?,
        }
    }
    megatron_flags::set_options(matches, &mut layers)?;
    for option in OPTIONS {
        let texts: Vec<&String> = matches.get_many(option.key).into_iter().flatten().collect();
        refuse_flag_as_value(option, &texts)?;
        refuse_second_name(matches, option, &texts)?;
        match texts[..] {
            [] => {}
            [text] => layers.set(option.key, text, &format!("--{}", option.flag))?,
            _ if !matches!(option.kind, Kind::Paths | Kind::Texts) => {
                let list = texts.iter().map(|text| text.as_str()).collect::<Vec<_>>().join(", ");
                layers.set(option.key, &format!("[{list}]"), &format!("--{}", option.flag))?;
            }
            _ => layers.set(option.key, &format!("{texts:?}"), &format!("--{}", option.flag))?,
        }
    }
    for pair in matches.get_many::<String>("set").into_iter().flatten() {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(UserError::new(
                format!("--set {pair}"),
                "--set takes a key, an equals sign and a value",
                "for example --set train.steps=100",
            ));
        };
        layers.set(key.trim(), value.trim(), "--set")?;
    }
    megatron_flags::set_computed(matches, &mut layers, |key| sets_option(matches, key))?;
    Ok(layers)
}

/// Fails if a flag was taken for the value of the flag before it, as happens if a script's variable is empty.
fn refuse_flag_as_value(option: &OptionSpec, texts: &[&String]) -> Result<(), UserError> {
    let Some(text) = texts.iter().find(|text| text.starts_with("--")) else { return Ok(()) };
    let names: Vec<String> = iter::once(&option.flag).chain(option.aliases).map(|flag| format!("--{flag}")).collect();
    let name = names.join(" or ");
    Err(UserError::new(
        format!("{name} has {text} as its value"),
        "a value does not begin with --",
        format!("give {name} a value before {text} (is a variable empty?), or leave it out"),
    ))
}

/// Fails if a value sets another option too, whose own flag is given.
fn refuse_second_name(matches: &ArgMatches, option: &OptionSpec, texts: &[&String]) -> Result<(), UserError> {
    let also = texts.iter().find_map(|text| Some((text, words::also_sets(option.key, text)?)));
    let Some((text, (key, value))) = also.filter(|(_, (key, _))| matches.contains_id(key)) else { return Ok(()) };
    Err(UserError::new(
        format!(
            "--{} {text} with {}",
            option.flag,
            find(key).map_or(key.into(), |option| format!("--{}", option.flag))
        ),
        format!("it is an older form of {}", our_flag(key, value)),
        format!("leave out --{} {text}", option.flag),
    ))
}

/// Whether the command line sets an option, by its flag or by `--set`.
pub(crate) fn sets_option(matches: &ArgMatches, key: &str) -> bool {
    let mut set = matches.get_many::<String>("set").into_iter().flatten();
    matches.contains_id(key) || set.any(|pair| pair.split_once('=').is_some_and(|(set, _)| set.trim() == key))
}
