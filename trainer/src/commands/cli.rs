//! The command line, made from the option table.

mod clusters;
mod refusal;
mod run_flags;
mod untaken;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Arg, ArgAction, ArgMatches, Command};
use common::UserError;
use data::{JSON_KEY, TokenizeRequest, llmc};

use crate::commands::batches::BatchesRequest;
use crate::commands::bench::PRESETS;
use crate::commands::doctor::DoctorOptions;
use crate::commands::sample::{SampleRequest, sample_command, sample_request};
use crate::commands::supervise::SuperviseRequest;
use crate::config::options::reference;
use crate::config::recipes;
use crate::config::request::TrainRequest;
use crate::hf::{DataType, Direction};
use clusters::{job_command, job_file, supervise_command, supervise_request};
use refusal::refusal;
use run_flags::{sets, train_request, with_run_flags};
use untaken::untaken;

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
    /// Run a training command, and start it again when it fails.
    Supervise(SuperviseRequest),
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

fn command() -> Command {
    let bench = Command::new("bench")
        .about(format!(
            "Measures the speed of a training run's steps on fixed random data; takes its flags. {BENCH_STEPS} steps unless --steps is given"
        ))
        .arg(Arg::new("case").value_name("CASE").value_parser(PRESETS.to_vec()).help("A case to measure"));
    let command = Command::new("trainer")
        .about("Trains GPT-class models. Without a subcommand it trains")
        .version(env!("CARGO_PKG_VERSION"))
        .args_conflicts_with_subcommands(true)
        .subcommand(Command::new("options").about("Prints the reference of all options as Markdown"))
        .subcommand(tokenize_command())
        .subcommand(configs_command())
        .subcommand(convert_command())
        .subcommand(sample_command())
        .subcommand(supervise_command())
        .subcommand(job_command())
        .subcommand(with_run_flags(bench))
        .subcommand(with_run_flags(batches_command()))
        .subcommand(
            Command::new("doctor")
                .about("Examines the machine: libraries, every operation against the host device, rates")
                .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON"))
                .arg(Arg::new("quick").long("quick").action(ArgAction::SetTrue).help("Do not measure rates"))
                .arg(
                    Arg::new("device")
                        .long("device")
                        .value_parser(["auto", "host", "cuda"])
                        .default_value("auto")
                        .help("Device to examine"),
                ),
        )
        .subcommand(
            Command::new("checkpoint").about("Examines checkpoints").subcommand_required(true).subcommand(
                Command::new("list").about("Lists the checkpoints in a folder and checks every byte").arg(
                    Arg::new("dir")
                        .value_name("DIR")
                        .value_parser(NonEmptyStringValueParser::new())
                        .required(true)
                        .help("The checkpoint.dir of a run"),
                ),
            ),
        );
    with_run_flags(command)
}

fn batches_command() -> Command {
    let file = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("FILE").value_parser(NonEmptyStringValueParser::new()).help(help)
    };
    Command::new("batches")
        .about("Writes the samples that a run with these flags takes, in its order, for other frameworks")
        .arg(
            file("output", "File for the training batches of all steps: samples of seq_length + 1 tokens end to end")
                .required(true),
        )
        .arg(file("validation", "File for the batches of an evaluation"))
}

fn tokenize_command() -> Command {
    let arg = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).value_parser(NonEmptyStringValueParser::new()).help(help)
    };
    Command::new("tokenize")
        .about("Makes token files from text, for --data-path (llm.c's format)")
        .arg(
            arg("tokenizer", "TOKENIZER", "byte, a Hugging Face tokenizer.json, or a folder with one")
                .default_value("byte"),
        )
        .arg(arg("output", "DIR", "Folder to write. It must not exist, or be empty").required(true))
        .arg(arg("end-of-text", "TOKEN", "Token that ends a document. If not given: the first that the tokenizer has of the usual names"))
        .arg(arg("json-key", "KEY", "Field of a .jsonl line that holds the text").default_value(JSON_KEY))
        .arg(
            arg("shard-tokens", "COUNT", "Largest number of tokens in a file")
                .default_value("100000000")
                .value_parser(clap::value_parser!(u64).range(1..=llmc::MAX_TOKENS)),
        )
        .arg(
            Arg::new("files")
                .value_name("FILES")
                .value_parser(NonEmptyStringValueParser::new())
                .num_args(1..)
                .required(true)
                .help("Text files, .jsonl files, or folders of them. A file is one document; in a .jsonl file each line is one"),
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
        .subcommand(Command::new("list").about("Lists the recipes"))
        .subcommand(
            Command::new("show")
                .about("Prints a recipe as TOML, to start a file of your own from")
                .arg(Arg::new("name").value_name("NAME").required(true).help("Name of the recipe")),
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
        .arg(choice("dtype", &["f32", "bf16", "f16"], "Type of the weights that --to hf writes [default: f32]"))
        .arg(folder(
            "SOURCE",
            "Folder with weights: a checkpoint, a folder of checkpoints (the newest is taken), or a Hugging Face model",
        ))
        .arg(folder("TARGET", "Folder to write. With --from hf it is one that --init-from takes"))
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

/// Fails where a benchmark was asked for a file that a training run writes.
fn refuse_files(request: &TrainRequest) -> Result<(), UserError> {
    let report = request.graph_report.as_ref().map(|path| format!("--graph-report {}", path.display()));
    let trace = request.config.logging.trace.as_ref().map(|path| format!("logging.trace = {path}"));
    let Some(asked) = report.or(trace) else { return Ok(()) };
    Err(UserError::new(
        format!("bench with {asked}"),
        "a benchmark prints what it measures and writes no files",
        "leave it out, or train a few steps with it, without bench",
    ))
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
        Err(error) => return Err(untaken(command(), &arguments).unwrap_or_else(|| refusal(&error, &arguments))),
    };
    if let Some(error) = untaken(command(), &arguments) {
        return Err(error);
    }
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
        Some(("supervise", matches)) => return Ok(Request::Supervise(supervise_request(matches)?)),
        Some(("job", matches)) => return Ok(Request::Print(job_file(matches)?)),
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
        refuse_files(&request)?;
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
                    --attention-softmax-in-fp32 --cuda-graph-use-single-mempool --recompute-activations \
                    --context-parallel-size 1 --expert-model-parallel-size 1 --rotary-percent 1.0 --kv-channels 16 \
                    --split 99,1,0";
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
        assert_eq!(config.data.split, 0.99);
        assert_eq!(request.notices.len(), 2, "{:?}", request.notices);
    }
}
