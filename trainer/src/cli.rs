//! The command line, made from the option table.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::config::{Layers, RunConfig, UserError};
use crate::hf::{DataType, Direction, Pretrained};
use crate::options::{Kind, NOT_NEEDED, OPTIONS, reference};

/// What the user asked for.
#[derive(Clone, Debug)]
pub enum Request {
    /// Train.
    Train(Box<TrainRequest>),
    /// Convert weights.
    Convert(ConvertRequest),
    /// Print this and stop.
    Print(String),
}

/// A conversion as asked for.
#[derive(Clone, Debug)]
pub struct ConvertRequest {
    /// The folder to read.
    pub source: PathBuf,
    /// The folder to write.
    pub target: PathBuf,
    /// From what to what.
    pub direction: Direction,
}

/// A training run as asked for.
#[derive(Clone, Debug)]
pub struct TrainRequest {
    /// The raw configuration.
    pub config: RunConfig,
    /// Print the plan and stop.
    pub dry_run: bool,
    /// Check every operation and launch, and poison dead memory.
    pub check_graphs: bool,
    /// Where to write the graphs, as JSON and Graphviz.
    pub graph_report: Option<PathBuf>,
    /// Filter of log messages.
    pub log: String,
    /// Things to tell the user.
    pub notices: Vec<String>,
}

fn command() -> Command {
    let mut command = Command::new("trainer")
        .about("Trains GPT-class models; without a subcommand it trains")
        .version(env!("CARGO_PKG_VERSION"))
        .args_conflicts_with_subcommands(true)
        .subcommand(Command::new("options").about("Prints the reference of all options as Markdown"))
        .subcommand(convert_command())
        .arg(Arg::new("config").long("config").value_name("FILE").help("TOML file; flags override it"))
        .arg(
            Arg::new("set")
                .long("set")
                .value_name("KEY=VALUE")
                .action(ArgAction::Append)
                .help("Sets any option by its key, over everything else"),
        )
        .arg(Arg::new("dry-run").long("dry-run").action(ArgAction::SetTrue).help("Prints the plan and stops"))
        .arg(
            Arg::new("check-graphs")
                .long("check-graphs")
                .action(ArgAction::SetTrue)
                .help("Proves of every operation and launch that it races with none and reads what it means to"),
        )
        .arg(
            Arg::new("graph-report")
                .long("graph-report")
                .value_name("FILE")
                .help("Writes all graphs to FILE as JSON, and beside it as Graphviz"),
        )
        .arg(Arg::new("log").long("log").value_name("FILTER").default_value("warn").help("Log messages to show"))
        .arg(
            Arg::new("cuda-graph-use-single-mempool")
                .long("cuda-graph-use-single-mempool")
                .action(ArgAction::SetTrue)
                .help_heading("cuda_graph")
                .help("Same as --cuda-graph-mempool single"),
        );
    for (flag, why) in NOT_NEEDED {
        command = command.arg(Arg::new(*flag).long(*flag).action(ArgAction::SetTrue).hide(true).help(*why));
    }
    for option in OPTIONS {
        let section = option.key.split('.').next().unwrap_or_default();
        let default = if option.default.is_empty() { String::new() } else { format!(" [default: {}]", option.default) };
        let mut arg = Arg::new(option.key)
            .long(option.flag)
            .visible_aliases(option.aliases.to_vec())
            .help_heading(section)
            .help(format!("{}{default}", option.doc));
        arg = match option.kind {
            Kind::Bool => arg.num_args(0..=1).require_equals(true).default_missing_value("true").value_name("BOOL"),
            Kind::Choice(words) => arg.value_name(words.join("|")).allow_hyphen_values(true),
            _ => arg.value_name("VALUE").allow_hyphen_values(true),
        };
        command = command.arg(arg);
    }
    command
}

fn convert_command() -> Command {
    let choice = |name: &'static str, words: &[&'static str], help: &'static str| {
        Arg::new(name).long(name).value_parser(words.to_vec()).help(help)
    };
    let folder = |name: &'static str, help: &'static str| Arg::new(name).required(true).help(help);
    Command::new("convert")
        .about("Converts weights to and from Hugging Face")
        .arg(choice("to", &["hf"], "Write a model that transformers loads").conflicts_with("from"))
        .arg(choice("from", &["hf"], "Read a model that transformers saved").required_unless_present("to"))
        .arg(choice("dtype", &["f32", "bf16", "f16"], "Type of the weights --to hf writes [default: f32]"))
        .arg(folder("SOURCE", "Folder with weights: a checkpoint's, or a Hugging Face model's"))
        .arg(folder("TARGET", "Folder to write; with --from hf one that --init-from takes"))
}

fn convert(matches: &ArgMatches) -> ConvertRequest {
    let text = |name: &str| matches.get_one::<String>(name);
    let folder = |name: &str| text(name).map(PathBuf::from).unwrap_or_default();
    let direction = match text("to") {
        Some(_) => Direction::ToHuggingFace(DataType::from_option(text("dtype").map_or("f32", String::as_str))),
        None => Direction::FromHuggingFace,
    };
    ConvertRequest { source: folder("SOURCE"), target: folder("TARGET"), direction }
}

/// Reads the command line.
///
/// # Errors
/// Anything the user got wrong; `--help` and `--version` come back as [`Request::Print`].
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Request, UserError> {
    let matches = match command().try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(error) if !error.use_stderr() => return Ok(Request::Print(error.render().to_string())),
        Err(error) => {
            let text = error.render().to_string();
            let what = text.trim_start_matches("error: ").lines().next().unwrap_or_default().to_string();
            let tip = text.lines().find_map(|line| line.trim().strip_prefix("tip: ")).map(str::to_string);
            let fix = tip.unwrap_or_else(|| "see `trainer --help`".into());
            return Err(UserError::new(what, "only flags that `trainer --help` lists are known", fix));
        }
    };
    if matches.subcommand_name() == Some("options") {
        return Ok(Request::Print(reference()));
    }
    if let Some(("convert", matches)) = matches.subcommand() {
        return Ok(Request::Convert(convert(matches)));
    }
    let mut layers = layers(&matches)?;
    if let Some(folder) = layers.init_from() {
        let pretrained = Pretrained::open(folder.as_ref())?;
        layers.start_from(pretrained.options());
    }
    let config = layers.resolve();
    let notices = NOT_NEEDED
        .iter()
        .filter(|(flag, _)| matches.get_flag(flag))
        .map(|(flag, why)| format!("--{flag} is not needed: {why}"))
        .collect();
    Ok(Request::Train(Box::new(TrainRequest {
        config,
        dry_run: matches.get_flag("dry-run"),
        check_graphs: matches.get_flag("check-graphs"),
        graph_report: matches.get_one::<String>("graph-report").map(PathBuf::from),
        log: matches.get_one::<String>("log").cloned().unwrap_or_default(),
        notices,
    })))
}

fn layers(matches: &ArgMatches) -> Result<Layers, UserError> {
    let mut layers = Layers::default();
    if let Some(path) = matches.get_one::<String>("config") {
        layers.read_file(path.as_ref())?;
    }
    if matches.get_flag("cuda-graph-use-single-mempool") {
        layers.set("cuda_graph.mempool", "single", "--cuda-graph-use-single-mempool")?;
    }
    for option in OPTIONS {
        if let Some(text) = matches.get_one::<String>(option.key) {
            layers.set(option.key, text, &format!("--{}", option.flag))?;
        }
    }
    for pair in matches.get_many::<String>("set").into_iter().flatten() {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(UserError::new(
                format!("--set {pair}"),
                "it is a key, an equals sign and a value",
                "for example --set train.steps=100",
            ));
        };
        layers.set(key.trim(), value.trim(), "--set")?;
    }
    Ok(layers)
}
