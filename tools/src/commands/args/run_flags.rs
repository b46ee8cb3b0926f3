//! The flags of a training run. Several commands take them.

use std::collections::HashMap;
use std::ffi::OsString;
use std::iter;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use common::escape::toml_strings;
use common::{Mistakes, UserError};

use super::followed::follow;
use super::{Parsed, filled, keys_in, megatron_flags, path, read, read_line};
use trainer::checkpoint::{changed_meaning, named_tokenizer, start_folder};
use trainer::config::megatron::{our_flag, words};
use trainer::config::options::{Kind, OptionSpec, find, options};
use trainer::config::request::TrainRequest;
use trainer::config::{ConfigSources, recipes};
use trainer::hf::Pretrained;
use trainer::report::graph_report::beside;

/// The options that `-h` shows. `--help` shows all.
const COMMON: &str = "model.preset model.init_from model.seq_length model.lora_rank data.path data.validation_path \
    data.tokenizer data.sft train.device train.steps train.epochs train.global_batch_size train.micro_batch_size \
    train.eval_interval optimizer.kind optimizer.lr optimizer.warmup_steps optimizer.schedule optimizer.weight_decay \
    precision.compute precision.fp8 parallel.tensor parallel.pipeline parallel.distributed_optimizer \
    recompute.granularity cuda_graph.enable cuda_graph.scope checkpoint.dir checkpoint.interval checkpoint.resume \
    logging.dir logging.interval";

/// The flags of a training run that are no options.
#[derive(Args, Debug)]
#[group(skip)]
struct Beside {
    /// TOML file, or the name of a recipe (`trainer configs list`). Flags override it.
    #[arg(long, value_name = "FILE", value_parser = filled())]
    config: Option<String>,
    /// Sets any option by its TOML key, over everything else.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Prints the plan and stops; takes no memory.
    #[arg(long)]
    dry_run: bool,
    /// With --dry-run: fails unless the plan fits this GPU, one of `trainer plan`.
    #[arg(long, value_name = "GPU", value_parser = filled(), requires = "dry_run")]
    gpu: Option<String>,
    /// Checks every operation and graph launch for races, stale reads and use after free.
    #[arg(long)]
    check_graphs: bool,
    /// Writes all graphs to FILE as JSON; beside it, ending in .dot, .svg and .txt, Graphviz, a picture and the step as a
    /// list.
    #[arg(long, value_name = "FILE", value_parser = path())]
    graph_report: Option<PathBuf>,
    /// Log messages to show: a level, or target=level pairs.
    #[arg(long, value_name = "FILTER", default_value = "warn")]
    log: String,
}

/// The flags of a training run on a command line.
#[derive(Debug)]
pub(crate) struct RunFlags {
    beside: Beside,
    /// The flags of options, and Megatron's flags.
    matches: ArgMatches,
}

impl FromArgMatches for RunFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<RunFlags, clap::Error> {
        Ok(RunFlags { beside: Beside::from_arg_matches(matches)?, matches: matches.clone() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = RunFlags::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for RunFlags {
    fn augment_args(command: Command) -> Command {
        with_run_flags(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        with_run_flags(command)
    }
}

/// Adds the flags of a training run to a command.
fn with_run_flags(command: Command) -> Command {
    let mut command = megatron_flags::with_megatron_flags(Beside::augment_args(command));
    for option in options() {
        let section = option.key.split('.').next().unwrap_or_default();
        let default = if option.default.is_empty() { String::new() } else { format!(" [default: {}]", option.default) };
        let is_common = COMMON.split(' ').any(|key| key == option.key);
        let mut arg = Arg::new(option.key)
            .long(option.flag)
            .visible_aliases(option.aliases.to_vec())
            .help_heading(section)
            .hide_short_help(!is_common)
            // The words of some choices are long. In one column with them, all help texts would begin far to the right.
            // `--help` has them on lines of their own anyway, and a hidden one with this setting would be shown.
            .next_line_help(is_common)
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

/// The training run that the flags ask for. Flags override the `preset` of a command. The preset overrides a config
/// file. Every mistake in the flags and in the files that they name is added to `mistakes`; the run is then without what is
/// wrong.
pub(crate) fn train_request(flags: &RunFlags, preset: &[(&str, &str)], mistakes: &mut Mistakes) -> TrainRequest {
    request_from(flags, preset, None, mistakes)
}

/// As [`train_request`], from a model that is open already.
pub(crate) fn request_from(
    flags: &RunFlags,
    preset: &[(&str, &str)],
    opened: Option<Pretrained>,
    mistakes: &mut Mistakes,
) -> TrainRequest {
    let RunFlags { beside: Beside { dry_run, check_graphs, graph_report, log, gpu, .. }, matches } = flags;
    let mut sources = option_values(flags, preset, mistakes);
    mistakes.keep(sources.ensure_one_length());
    let mut notices = megatron_flags::notices(matches, &sources.resolve());
    notices.extend(sources.notices());
    let mut folders: Vec<PathBuf> = Vec::new();
    mistakes.keep(find_tokenizer(&mut sources));
    if let Some(folder) = sources.init_from().map(PathBuf::from) {
        match start_from(&mut sources, &folder, opened) {
            Ok((found, lines)) => {
                notices.extend(lines);
                folders = found;
            }
            Err(error) => {
                mistakes.add(error);
                mistakes.doubt(options().iter().map(|option| option.key).filter(|key| key.starts_with("model.")));
            }
        }
    }
    let folders: Vec<&Path> = folders.iter().map(PathBuf::as_path).collect();
    notices.extend(mistakes.keep(follow(&mut sources, &folders)).unwrap_or_default());
    let config = sources.resolve();
    megatron_flags::check_agreement(matches, &config, mistakes);
    if let Some(path) = graph_report.as_ref().filter(|path| beside(path).contains(path)) {
        mistakes.add(UserError::new(
            format!("--graph-report {}", path.display()),
            "the file is JSON; the same name ending in .dot, .svg and .txt is for other forms",
            format!("--graph-report {}", path.with_extension("json").display()),
        ));
    }
    TrainRequest {
        began: Instant::now(),
        config,
        dry_run: *dry_run,
        check_graphs: *check_graphs,
        graph_report: graph_report.clone(),
        log: log.clone(),
        given: sources.given(),
        gpu: gpu.clone(),
        notices,
    }
}

/// Takes the model that training starts from: its options, and its folder in place of a path to that. Returns the
/// folders that may have its tokenizer, and notices about what is changed, and about other options that change the
/// meaning of its weights.
///
/// # Errors
/// A folder without a model.
fn start_from(
    sources: &mut ConfigSources,
    folder: &Path,
    opened: Option<Pretrained>,
) -> Result<(Vec<PathBuf>, Vec<String>), UserError> {
    // A resumed run has its model in the checkpoint. The folder that it started from may be gone.
    let resumed = start_folder(&sources.resolve().checkpoint);
    let pretrained = match (&resumed, opened) {
        (Some(checkpoint), _) => Pretrained::open_checked(checkpoint)?, // the run compares its hashes when it resumes
        (None, Some(opened)) => opened,
        (None, None) => Pretrained::open(folder).map_err(|error| {
            let fix = words::fix("model.init_from", &folder.to_string_lossy()).filter(|_| !folder.exists());
            let (what, fix) = (format!("model.init_from = {}", error.what), fix.unwrap_or(error.fix.clone()));
            UserError { what, fix, ..error }
        })?,
    };
    let (found, mut theirs) = (pretrained.folder().display().to_string(), ConfigSources::default());
    let mut folders: Vec<PathBuf> = pretrained.folders().map(PathBuf::from).collect();
    let goes_on_with_adapters = resumed.is_some() && !sources.given().contains("model.lora_rank");
    // A resumed run keeps the name of the folder that it began with, and the tokenizer there.
    let begun = resumed.and(pretrained.run()?).map(|run| run.model.init_from.unwrap_or(folder.display().to_string()));
    folders.splice(0..0, begun.iter().map(PathBuf::from));
    let from = begun.unwrap_or(found.clone());
    if Path::new(&from) != folder {
        sources.set("model.init_from", &from, "--init-from")?;
    }
    let preset = sources.given_values().remove("model.preset").map(|preset| {
        format!("model.preset = {preset} sets no option of the model: it has those of {found} (model.init_from)")
    });
    sources.start_from(pretrained.options().clone());
    theirs.start_from(pretrained.options().clone());
    let theirs = theirs.resolve().model;
    let differ = changed_meaning(&theirs, &sources.resolve().model).join(", ");
    let differ =
        (!differ.is_empty()).then(|| format!("the weights are those of {found}, but the model differs: {differ}"));
    let adapters = (goes_on_with_adapters && theirs.lora_rank > 0).then(|| {
        let rank = theirs.lora_rank;
        format!("{found} has adapters (model.lora_rank = {rank}), and the run trains them on. For all weights: another --save")
    });
    Ok((folders, pretrained.notices().iter().cloned().chain(preset).chain(differ).chain(adapters).collect()))
}

/// Takes the folder of a tokenizer in place of a path to that.
fn find_tokenizer(sources: &mut ConfigSources) -> Result<(), UserError> {
    let tokenizer = sources.resolve().data.tokenizer;
    match named_tokenizer(&tokenizer) {
        found if found != tokenizer => sources.set("data.tokenizer", &found, "--tokenizer"),
        _ => Ok(()),
    }
}

/// The training run that the given flags of the trainer ask for. Everything that is wrong with them is added to
/// `mistakes`, also a command line that does not train. `None` if nothing can be read.
pub(crate) fn training_run(
    flags: impl IntoIterator<Item = impl Into<OsString>>,
    mistakes: &mut Mistakes,
) -> Option<TrainRequest> {
    let line: Vec<OsString> = iter::once("trainer".into()).chain(flags.into_iter().map(Into::into)).collect();
    let does_not_train = || {
        let rule = "the trainer's flags are those of a training run, which ends with its last step";
        UserError::new("these flags do not train", rule, "leave out the subcommand, --help or --dry-run")
    };
    // Without a flag in front it is a subcommand.
    if line.get(1).and_then(|first| first.to_str()).is_some_and(|first| !first.starts_with('-')) {
        mistakes.add(does_not_train());
        return None;
    }
    let run = match read_line(with_run_flags(Command::new("trainer")), &line, mistakes)? {
        Parsed::Matches(matches) => Some(train_request(&read(&matches), &[], mistakes)).filter(|run| !run.dry_run),
        Parsed::Help(_) => None,
    };
    mistakes.keep(run.ok_or_else(does_not_train))
}

/// The values that the flags of a run set over those of `preset`, and notices about flags. `arguments` begin with the
/// program's name. What is wrong is added to `mistakes`, and is not set. `None` if nothing can be read.
pub(crate) fn flag_values(
    arguments: &[OsString],
    preset: &[(&str, &str)],
    mistakes: &mut Mistakes,
) -> Option<(ConfigSources, Vec<String>)> {
    match read_line(with_run_flags(Command::new("trainer")), arguments, mistakes)? {
        Parsed::Matches(matches) => {
            let sources = option_values(&read(&matches), preset, mistakes);
            let config = sources.resolve();
            megatron_flags::check_agreement(&matches, &config, mistakes);
            let mut notices = megatron_flags::notices(&matches, &config);
            notices.extend(sources.notices());
            Some((sources, notices))
        }
        Parsed::Help(_) => None,
    }
}

/// The flags of a run, each with the largest number of values.
pub(crate) fn numbers_of_values() -> HashMap<String, usize> {
    let mut command = with_run_flags(Command::new("trainer"));
    command.build();
    let mut numbers = HashMap::new();
    for arg in command.get_arguments() {
        let most = match arg.is_require_equals_set() {
            true => 0,
            false => arg.get_num_args().map_or(1, |range| range.max_values()),
        };
        let names = arg.get_long().into_iter().chain(arg.get_all_aliases().into_iter().flatten());
        numbers.extend(names.map(|name| (name.to_string(), most)));
    }
    numbers
}

/// The values of the command line: the preset, the file, and the flags over both. Values that are wrong are added to
/// `mistakes`, and are not set.
fn option_values(flags: &RunFlags, preset: &[(&str, &str)], mistakes: &mut Mistakes) -> ConfigSources {
    let RunFlags { beside, matches } = flags;
    let mut sources = ConfigSources::default();
    for (key, value) in preset {
        mistakes.keep(sources.set(key, value, "preset"));
    }
    if let Some(path) = &beside.config
        && let Err(error) = read_config(path, &mut sources)
    {
        // A file that cannot be read may set anything.
        let keys = keys_in(&error.to_string());
        mistakes.add(error);
        match keys.is_empty() {
            true => mistakes.doubt(options().iter().map(|option| option.key)),
            false => mistakes.doubt(keys),
        }
    }
    megatron_flags::set_options(matches, &mut sources, mistakes);
    for option in options() {
        let texts: Vec<&String> = matches.get_many(option.key).into_iter().flatten().collect();
        let set = refuse_flag_as_value(option, &texts)
            .and_then(|()| refuse_second_name(matches, option, &texts))
            .and_then(|()| set_option(option, &texts, &mut sources));
        if let Err(error) = set {
            mistakes.add(error);
            // Any option may follow from a preset.
            let follows = |of: &OptionSpec| of.key == option.key || option.key == "model.preset";
            mistakes.doubt(options().iter().filter(|of| follows(of)).map(|of| of.key));
        }
    }
    for pair in &beside.set {
        if let Err(error) = sources.set_pair(pair) {
            let keys = keys_in(&error.to_string());
            mistakes.add(error);
            mistakes.doubt(keys);
        }
    }
    megatron_flags::set_computed(matches, &mut sources, |key| sets_option(flags, key), mistakes);
    sources
}

/// Takes the values of a TOML file, or of a recipe.
fn read_config(path: &str, sources: &mut ConfigSources) -> Result<(), UserError> {
    match recipes::recipe(path).filter(|_| !Path::new(path).exists()) {
        Some(text) => sources.read_text(text, &format!("recipe {path}")),
        // A name that does not look like a path was probably meant to be a recipe.
        None if !Path::new(path).exists() && !path.contains(['/', '\\']) && !path.ends_with(".toml") => {
            recipes::named(path).map(drop)
        }
        None => sources.read_file(path.as_ref()),
    }
}

/// Sets an option to the values of the option's flag, if given.
fn set_option(option: &OptionSpec, texts: &[&String], sources: &mut ConfigSources) -> Result<(), UserError> {
    let origin = format!("--{}", option.flag);
    match texts {
        [] => Ok(()),
        [text] => sources.set(option.key, text, &origin),
        _ if !matches!(option.kind, Kind::Paths | Kind::Texts) => {
            let list = texts.iter().map(|text| text.as_str()).collect::<Vec<_>>().join(", ");
            sources.set(option.key, &format!("[{list}]"), &origin)
        }
        _ => sources.set(option.key, &toml_strings(texts), &origin),
    }
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

/// Fails if a value sets another option too, and the flag of that option is also given.
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

/// Whether the command line sets an option, by the option's flag or by `--set`.
pub(crate) fn sets_option(flags: &RunFlags, key: &str) -> bool {
    let mut set = flags.beside.set.iter();
    flags.matches.contains_id(key) || set.any(|pair| pair.split_once('=').is_some_and(|(set, _)| set.trim() == key))
}
