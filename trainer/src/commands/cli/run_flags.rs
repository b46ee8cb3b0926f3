//! The flags of a training run, which other subcommands take too, and what they come to.

use std::iter;
use std::path::{Path, PathBuf};

use clap::builder::NonEmptyStringValueParser;
use clap::{Arg, ArgAction, ArgMatches, Command};
use common::UserError;

use crate::checkpoint::{at_a_glance, changed_meaning};
use crate::commands::bench::preset;
use crate::config::options::{Kind, OPTIONS, OptionSpec};
use crate::config::request::TrainRequest;
use crate::config::{Layers, megatron, recipes};
use crate::hf::Pretrained;

/// Adds the flags of a training run.
pub(super) fn with_run_flags(mut command: Command) -> Command {
    command = command
        .arg(
            Arg::new("config")
                .long("config")
                .value_name("FILE")
                .value_parser(NonEmptyStringValueParser::new())
                .help("TOML file, or the name of a recipe (`trainer configs list`). Flags override it"),
        )
        .arg(
            Arg::new("set")
                .long("set")
                .value_name("KEY=VALUE")
                .action(ArgAction::Append)
                .help("Sets any option by its TOML key, over everything else"),
        )
        .arg(
            Arg::new("dry-run")
                .long("dry-run")
                .action(ArgAction::SetTrue)
                .help("Prints the plan and stops; takes no memory"),
        )
        .arg(
            Arg::new("check-graphs")
                .long("check-graphs")
                .action(ArgAction::SetTrue)
                .help("Checks every operation and graph launch for races, stale reads and use after free"),
        )
        .arg(
            Arg::new("graph-report")
                .long("graph-report")
                .value_name("FILE")
                .value_parser(NonEmptyStringValueParser::new())
                .help("Writes all graphs to FILE as JSON, and as Graphviz to the file beside it that ends in .dot"),
        )
        .arg(
            Arg::new("log")
                .long("log")
                .value_name("FILTER")
                .default_value("warn")
                .help("Log messages to show: a level, or target=level pairs"),
        )
        .arg(
            Arg::new("distributed-timeout-minutes")
                .long("distributed-timeout-minutes")
                .value_name("VALUE")
                .help_heading("parallel")
                .help("Sets parallel.distributed_timeout_seconds, in minutes"),
        );
    command = megatron::with_flags(command);
    for option in OPTIONS {
        let section = option.key.split('.').next().unwrap_or_default();
        let default = if option.default.is_empty() { String::new() } else { format!(" [default: {}]", option.default) };
        let mut arg = Arg::new(option.key)
            .long(option.flag)
            .visible_aliases(option.aliases.to_vec())
            .help_heading(section)
            // The choices of some options are long, and would push all help far to the right.
            .next_line_help(true)
            .help(format!("{}{default}", option.doc));
        arg = match option.kind {
            Kind::Bool => arg.num_args(0..=1).require_equals(true).default_missing_value("true").value_name("BOOL"),
            // Megatron's form: --data-path 0.3 A 0.7 B.
            Kind::Paths => arg.num_args(1..).value_name("PATHS"),
            // And --rampup-batch-size 16 16 100000.
            Kind::Integers | Kind::Floats => arg.num_args(1..).value_name("VALUES").allow_negative_numbers(true),
            Kind::Choice(words) => arg.value_name(words.join("|")).allow_hyphen_values(true),
            _ => arg.value_name("VALUE").allow_hyphen_values(true),
        };
        command = command.arg(arg);
    }
    command
}

pub(super) fn train_request(matches: &ArgMatches) -> Result<TrainRequest, UserError> {
    let (mut layers, mut notices) = (layers(matches)?, megatron::notices(matches));
    if let Some(folder) = layers.init_from() {
        // A run that goes on has the model in its checkpoint: what it began with may be gone.
        let folder = at_a_glance(&layers.resolve().checkpoint).unwrap_or_else(|| folder.into());
        let (pretrained, mut theirs) = (Pretrained::open(&folder)?, Layers::default());
        layers.start_from(pretrained.options());
        theirs.start_from(pretrained.options());
        let differ = changed_meaning(&theirs.resolve().model, &layers.resolve().model).join(", ");
        if !differ.is_empty() {
            notices.push(format!("its weights are from {}, but the model is another: {differ}", folder.display()));
        }
    }
    let config = layers.resolve();
    megatron::compare(matches, &config)?;
    let graph_report = matches.get_one::<String>("graph-report").map(PathBuf::from);
    if let Some(path) = graph_report.as_ref().filter(|path| path.extension().is_some_and(|end| end == "dot")) {
        return Err(UserError::new(
            format!("--graph-report {}", path.display()),
            "the file is JSON; Graphviz goes to one of the same name that ends in .dot",
            format!("--graph-report {}", path.with_extension("json").display()),
        ));
    }
    Ok(TrainRequest {
        config,
        dry_run: matches.get_flag("dry-run"),
        check_graphs: matches.get_flag("check-graphs"),
        graph_report,
        log: matches.get_one::<String>("log").cloned().unwrap_or_default(),
        notices,
    })
}

fn layers(matches: &ArgMatches) -> Result<Layers, UserError> {
    let mut layers = Layers::default();
    let case = matches.try_get_one::<String>("case").ok().flatten();
    for (key, value) in case.and_then(|case| preset(case)).into_iter().flatten() {
        layers.set(key, value, "bench")?;
    }
    if let Some(path) = matches.get_one::<String>("config") {
        match recipes::recipe(path).filter(|_| !Path::new(path).exists()) {
            Some(text) => layers.read_text(text, &format!("recipe {path}"))?,
            // A name without a path's marks was meant for a recipe's.
            None if !Path::new(path).exists() && !path.contains(['/', '\\']) && !path.ends_with(".toml") => {
                recipes::show(path)?;
            }
            None => layers.read_file(path.as_ref())?,
        }
    }
    megatron::set(matches, &mut layers)?;
    if let Some(minutes) = matches.get_one::<String>("distributed-timeout-minutes") {
        let seconds = minutes.parse::<f64>().map_or(minutes.clone(), |minutes| (minutes * 60.0).to_string());
        layers.set("parallel.distributed_timeout_seconds", &seconds, "--distributed-timeout-minutes")?;
    }
    for option in OPTIONS {
        let texts: Vec<&String> = matches.get_many(option.key).into_iter().flatten().collect();
        refuse_flag_as_value(option, &texts)?;
        match texts[..] {
            [] => {}
            [text] => layers.set(option.key, text, &format!("--{}", option.flag))?,
            _ if option.kind != Kind::Paths => {
                let list = texts.iter().map(|text| text.as_str()).collect::<Vec<_>>().join(", ");
                layers.set(option.key, &format!("[{list}]"), &format!("--{}", option.flag))?;
            }
            _ => layers.set(option.key, &format!("{texts:?}"), &format!("--{}", option.flag))?,
        }
    }
    for pair in matches.get_many::<String>("set").into_iter().flatten() {
        if !pair.contains('=') {
            return Err(UserError::new(
                format!("--set {pair}"),
                "it is a key, an equals sign and a value",
                "for example --set train.steps=100",
            ));
        }
    }
    for (key, value) in sets(matches) {
        layers.set(key, value, "--set")?;
    }
    Ok(layers)
}

/// Fails where a flag was taken for the value of the one before it, as where a script's variable is empty.
fn refuse_flag_as_value(option: &OptionSpec, texts: &[&String]) -> Result<(), UserError> {
    let Some(text) = texts.iter().find(|text| text.starts_with("--")) else { return Ok(()) };
    let names: Vec<String> = iter::once(&option.flag).chain(option.aliases).map(|flag| format!("--{flag}")).collect();
    let name = names.join(" or ");
    Err(UserError::new(
        format!("{name} has {text} for its value"),
        "a value does not begin with --",
        format!("give {name} a value before {text} (is a variable empty?), or leave it out"),
    ))
}

/// Keys and values of `--set`.
pub(super) fn sets(matches: &ArgMatches) -> impl Iterator<Item = (&str, &str)> {
    let pairs = matches.get_many::<String>("set").into_iter().flatten();
    pairs.filter_map(|pair| pair.split_once('=')).map(|(key, value)| (key.trim(), value.trim()))
}
