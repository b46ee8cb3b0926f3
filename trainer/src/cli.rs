//! The command line, made from the option table.

mod refusal;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::builder::NonEmptyStringValueParser;
use clap::{Arg, ArgAction, ArgMatches, Command};
use refusal::refusal;

use crate::batches::BatchesRequest;
use crate::bench::{PRESETS, preset};
use crate::config::{Layers, RunConfig, UserError};
use crate::data::{JSON_KEY, TokenizeRequest, llmc};
use crate::doctor::DoctorOptions;
use crate::hf::{DataType, Direction, Pretrained};
use crate::megatron;
use crate::options::{Kind, OPTIONS, reference};
use crate::recipes;
use crate::sample::{SampleRequest, sample_command, sample_request};

/// The most steps that `trainer bench` measures unasked.
const BENCH_STEPS: usize = 100;

/// What the user asked for.
#[derive(Clone, Debug)]
pub enum Request {
    /// Train.
    Train(Box<TrainRequest>),
    /// Measure steps of a training run.
    Bench(Box<TrainRequest>, usize),
    /// Write the batches a training run would take.
    Batches(Box<BatchesRequest>),
    /// Examine the machine.
    Doctor {
        /// What to look at.
        options: DoctorOptions,
        /// `auto`, `host` or `cuda`.
        device: String,
    },
    /// Make token files.
    Tokenize(TokenizeRequest),
    /// Convert weights.
    Convert(ConvertRequest),
    /// Go on with a text.
    Sample(SampleRequest),
    /// Print this and stop.
    Print(String),
    /// Check the checkpoints in this folder and print what is found.
    ListCheckpoints(PathBuf),
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
    let bench = Command::new("bench")
        .about(format!(
            "Measures steps on fixed random data: {BENCH_STEPS} of them, or what --steps says; takes the flags of a training run"
        ))
        .arg(Arg::new("case").value_name("CASE").value_parser(PRESETS.to_vec()).help("A case to measure"));
    let command =
        Command::new("trainer")
            .about("Trains GPT-class models; without a subcommand it trains")
            .version(env!("CARGO_PKG_VERSION"))
            .args_conflicts_with_subcommands(true)
            .subcommand(Command::new("options").about("Prints the reference of all options as Markdown"))
            .subcommand(tokenize_command())
            .subcommand(configs_command())
            .subcommand(convert_command())
            .subcommand(sample_command())
            .subcommand(with_run_flags(bench))
            .subcommand(with_run_flags(batches_command()))
            .subcommand(
                Command::new("doctor")
                    .about("Examines the machine: libraries, every operation against the host device, rates")
                    .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Prints JSON"))
                    .arg(Arg::new("quick").long("quick").action(ArgAction::SetTrue).help("Leaves out the rates"))
                    .arg(
                        Arg::new("device")
                            .long("device")
                            .value_parser(["auto", "host", "cuda"])
                            .default_value("auto")
                            .help("What to examine"),
                    ),
            )
            .subcommand(Command::new("checkpoint").about("Looks at checkpoints").subcommand_required(true).subcommand(
                Command::new("list").about("Lists the checkpoints in a folder, every byte checked").arg(
                    Arg::new("dir").value_name("DIR").value_parser(NonEmptyStringValueParser::new()).required(true),
                ),
            ));
    with_run_flags(command)
}

fn batches_command() -> Command {
    let file = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("FILE").value_parser(NonEmptyStringValueParser::new()).help(help)
    };
    Command::new("batches")
        .about("Writes the samples that a run with these flags would take, in its order, for other frameworks")
        .arg(
            file("output", "File for the training batches of all steps: samples of seq_length + 1 tokens end to end")
                .required(true),
        )
        .arg(file("validation", "File for the batches of an evaluation"))
}

/// Adds the flags of a training run.
fn with_run_flags(mut command: Command) -> Command {
    command = command
        .arg(
            Arg::new("config")
                .long("config")
                .value_name("FILE")
                .value_parser(NonEmptyStringValueParser::new())
                .help("TOML file, or a recipe of `trainer configs list`; flags override it"),
        )
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
                .value_parser(NonEmptyStringValueParser::new())
                .help("Writes all graphs to FILE as JSON, and beside it, ending in .dot, as Graphviz"),
        )
        .arg(Arg::new("log").long("log").value_name("FILTER").default_value("warn").help("Log messages to show"))
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

fn tokenize_command() -> Command {
    let arg = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).value_parser(NonEmptyStringValueParser::new()).help(help)
    };
    Command::new("tokenize")
        .about("Makes token files of text, in llm.c's format, for data.path")
        .arg(
            arg("tokenizer", "TOKENIZER", "byte, a Hugging Face tokenizer.json, or a folder with one")
                .default_value("byte"),
        )
        .arg(arg("output", "DIR", "Folder to write; it must not exist, or be empty").required(true))
        .arg(arg("end-of-text", "TOKEN", "Token that ends a document; one of the usual names if not given"))
        .arg(arg("json-key", "KEY", "Where a line of a .jsonl file has its text").default_value(JSON_KEY))
        .arg(
            arg("shard-tokens", "COUNT", "Most tokens of a file")
                .default_value("100000000")
                .value_parser(clap::value_parser!(u64).range(1..=llmc::MOST_TOKENS)),
        )
        .arg(
            Arg::new("files")
                .value_name("FILES")
                .value_parser(NonEmptyStringValueParser::new())
                .num_args(1..)
                .required(true)
                .help("Text: a file is a document, of a .jsonl file each line is one, of a folder all files are taken"),
        )
}

fn tokenize_request(matches: &ArgMatches) -> TokenizeRequest {
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    TokenizeRequest {
        tokenizer: text("tokenizer").unwrap_or_default(),
        end_of_text: text("end-of-text"),
        json_key: text("json-key").unwrap_or_default(),
        output: text("output").unwrap_or_default().into(),
        shard_tokens: matches.get_one("shard-tokens").copied().unwrap_or(1),
        files: matches.get_many::<String>("files").into_iter().flatten().map(PathBuf::from).collect(),
    }
}

fn configs_command() -> Command {
    Command::new("configs")
        .about("Shows the recipes that --config takes by name")
        .subcommand_required(true)
        .subcommand(Command::new("list").about("Lists them"))
        .subcommand(
            Command::new("show")
                .about("Prints one, to start a file of your own from")
                .arg(Arg::new("name").value_name("NAME").required(true)),
        )
}

fn convert_command() -> Command {
    let choice = |name: &'static str, words: &[&'static str], help: &'static str| {
        Arg::new(name).long(name).value_parser(words.to_vec()).help(help)
    };
    let folder = |name: &'static str, help: &'static str| {
        Arg::new(name).value_parser(NonEmptyStringValueParser::new()).required(true).help(help)
    };
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
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let matches = match command().try_get_matches_from(&arguments) {
        Ok(matches) => matches,
        Err(error) if !error.use_stderr() => return Ok(Request::Print(error.render().to_string())),
        Err(error) => return Err(refusal(&error, &arguments)),
    };
    match matches.subcommand() {
        Some(("options", _)) => return Ok(Request::Print(reference())),
        Some(("tokenize", matches)) => return Ok(Request::Tokenize(tokenize_request(matches))),
        Some(("configs", matches)) => {
            let name = matches.subcommand_matches("show").and_then(|show| show.get_one::<String>("name"));
            return Ok(Request::Print(
                name.map_or_else(|| Ok(recipes::list()), |name| recipes::show(name).map(str::to_string))?,
            ));
        }
        Some(("convert", matches)) => return Ok(Request::Convert(convert(matches))),
        Some(("sample", matches)) => return Ok(Request::Sample(sample_request(matches)?)),
        _ => {}
    }
    let list = matches.subcommand_matches("checkpoint").and_then(|checkpoint| checkpoint.subcommand_matches("list"));
    if let Some(dir) = list.and_then(|list| list.get_one::<String>("dir")) {
        return Ok(Request::ListCheckpoints(dir.into()));
    }
    if let Some(("doctor", given)) = matches.subcommand() {
        let options = DoctorOptions { quick: given.get_flag("quick"), json: given.get_flag("json") };
        let device = given.get_one::<String>("device").cloned().unwrap_or_default();
        return Ok(Request::Doctor { options, device });
    }
    if let Some(("bench", given)) = matches.subcommand() {
        let mut request = train_request(given)?;
        // What a config says is for training; what the command line says is for this.
        let asked = given.contains_id("train.steps") || sets(given).any(|(key, _)| key == "train.steps");
        let steps = request.config.train.steps.min(if asked { usize::MAX } else { BENCH_STEPS });
        request.config.train.steps = steps;
        return Ok(Request::Bench(Box::new(request), steps));
    }
    if let Some(("batches", given)) = matches.subcommand() {
        let file = |name: &str| given.get_one::<String>(name).map(PathBuf::from);
        let config = train_request(given)?.config;
        let output = file("output").unwrap_or_default();
        return Ok(Request::Batches(Box::new(BatchesRequest { config, output, validation: file("validation") })));
    }
    Ok(Request::Train(Box::new(train_request(&matches)?)))
}

fn train_request(matches: &ArgMatches) -> Result<TrainRequest, UserError> {
    let mut layers = layers(matches)?;
    if let Some(folder) = layers.init_from() {
        let pretrained = Pretrained::open(folder.as_ref())?;
        layers.start_from(pretrained.options());
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
        notices: megatron::notices(matches),
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

/// Keys and values of `--set`.
fn sets(matches: &ArgMatches) -> impl Iterator<Item = (&str, &str)> {
    let pairs = matches.get_many::<String>("set").into_iter().flatten();
    pairs.filter_map(|pair| pair.split_once('=')).map(|(key, value)| (key.trim(), value.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Request {
        parse(line.split_whitespace().map(OsString::from)).unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    #[test]
    fn a_benchmark_measures_as_many_steps_as_are_asked_for_and_100_of_a_training_run() {
        for (line, expected) in [
            ("trainer bench mlp", 100),
            ("trainer bench --config tiny-laptop", 100),
            ("trainer bench mlp --steps 7", 7),
            ("trainer bench mlp --steps 150", 150),
            ("trainer bench mlp --train-iters 1500", 1500),
            ("trainer bench --config tiny-laptop --set train.steps=150", 150),
        ] {
            match parsed(line) {
                Request::Bench(request, steps) => assert_eq!((steps, request.config.train.steps), (expected, expected)),
                other => panic!("{line} is {other:?}"),
            }
        }
    }

    #[test]
    fn flags_of_a_megatron_script_that_mean_the_same_here_set_the_same() {
        let line = "trainer --num-layers 4 --seq-length 32 --max-position-embeddings 32 --position-embedding-type rope \
                    --normalization RMSNorm --swiglu --untie-embeddings-and-output-weights --group-query-attention \
                    --num-query-groups 2 --bf16 --rampup-batch-size 4 4 1000 --betas 0.8 0.9 --train-iters 7 \
                    --attention-softmax-in-fp32 --cuda-graph-use-single-mempool --recompute-activations";
        let Request::Train(request) = parsed(line) else { panic!("{line} does not train") };
        let model = &request.config.model;
        assert_eq!((&*model.position, &*model.norm, &*model.activation), ("rotary", "rmsnorm", "swiglu"));
        assert_eq!((model.tie_embeddings, model.seq_length, model.kv_heads), (false, 32, Some(2)));
        let train = &request.config.train;
        assert_eq!((train.steps, &train.rampup_batch_size[..]), (7, &[4, 4, 1000][..]));
        assert_eq!(request.config.optimizer.betas, [0.8, 0.9]);
        let config = &request.config;
        assert_eq!((&*config.precision.compute, &*config.cuda_graph.mempool), ("bf16", "single"));
        assert_eq!(config.recompute.granularity, "selective");
        assert_eq!(request.notices.len(), 2, "{:?}", request.notices);
    }
}
