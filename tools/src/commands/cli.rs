//! The command line: all commands put together.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Command, Subcommand};
use common::{Mistakes, UserError};
use data::{InspectRequest, TokenizeRequest, TokenizerRequest};

use super::args::{self, Parsed, RunFlags, path, read_line, train_request};
use super::batches::{self, BatchesRequest};
use super::bench::{self, BenchRequest};
use super::chat::{self, ChatRequest};
use super::convert::{self, ConvertRequest};
use super::doctor::DoctorRequest;
use super::eval::{self, EvalRequest};
use super::import::ImportRequest;
use super::job::{self, JobFile};
use super::launch::LaunchRequest;
use super::plan::{self, PlanRequest};
use super::profile::{self, ProfileRequest};
use super::report::ReportRequest;
use super::sample::{self, SampleRequest};
use super::supervise::{self, SuperviseRequest};
use super::verify::{self, VerifyRequest};
use super::{completions, configs, inspect, manual, tokenize, tokenizer, top};
use trainer::config::reference::reference;
use trainer::config::request::TrainRequest;

/// The task that a command line asks for.
#[derive(Clone, Debug)]
pub enum Request {
    /// Train.
    Train(Box<TrainRequest>),
    /// Measure steps of a training run.
    Bench(Box<BenchRequest>),
    /// Profiles steps.
    Profile(Box<ProfileRequest>),
    /// Write the samples of a training run to a file.
    Batches(Box<BatchesRequest>),
    /// Check the machine.
    Doctor(DoctorRequest),
    /// Make token files.
    Tokenize(TokenizeRequest),
    /// Make a tokenizer.
    TrainTokenizer(TokenizerRequest),
    /// Show the contents of data.
    Inspect(InspectRequest),
    /// Write a page about runs.
    Report(ReportRequest),
    /// Show a run while it goes on.
    Top(PathBuf),
    /// Convert weights.
    Convert(ConvertRequest),
    /// Print a configuration made from another trainer's.
    Import(ImportRequest),
    /// Evaluate a model.
    Evaluate(Box<EvalRequest>),
    /// Generate text.
    Sample(SampleRequest),
    /// Talk with a model.
    Chat(ChatRequest),
    /// Start ranks on this machine. Each of them carries out the request.
    Launch(LaunchRequest, Box<Request>),
    /// Run a training command, and restart it when it fails.
    Supervise(SuperviseRequest),
    /// Print a job file, with notices about it.
    Job(JobFile),
    /// Predict a run on other GPUs.
    Plan(Box<PlanRequest>),
    /// Compare a layout's numbers with those of one rank.
    VerifyLayout(Box<VerifyRequest>),
    /// Write the manual's pages to this folder.
    Manual(PathBuf),
    /// Print this text.
    Print(String),
    /// Check and list the checkpoints in this folder.
    ListCheckpoints(PathBuf),
}

/// The commands, each with its flags.
#[derive(Debug, Subcommand)]
enum Given {
    /// Prints the reference of all options as Markdown.
    Options,
    /// Makes token files from text, for --data-path (llm.c's format).
    Tokenize(tokenize::Flags),
    /// Makes tokenizers.
    #[command(subcommand, arg_required_else_help = false)]
    Tokenizer(Tokenizer),
    /// Shows what data hold.
    #[command(subcommand, arg_required_else_help = false)]
    Data(Data),
    /// Shows the recipes that --config takes by name.
    #[command(subcommand, arg_required_else_help = false)]
    Configs(configs::Configs),
    /// Prints a configuration made from another trainer's: a launch script or a list of arguments of Megatron, a
    /// configuration of nanoGPT or torchtitan, or TrainingArguments of Hugging Face as JSON. Nothing in the file is
    /// executed. What has no equivalent is a comment with the reason.
    Import(ImportRequest),
    /// Converts weights to and from Hugging Face.
    Convert(convert::Flags),
    /// Continues a text with a trained model.
    Sample(sample::Flags),
    /// Talks with a trained model: each line of the input is a message, each answer is printed.
    Chat(chat::Flags),
    /// Prints the loss and perplexity of a model on data sets, and its accuracy in multiple choice. Takes the flags of a
    /// training run, after the data.
    Eval(Box<eval::Flags>),
    /// Starts ranks on this machine, by mpirun: trainer launch -n 4 -- FLAGS.
    Launch(LaunchRequest),
    /// Runs a training command, and starts it again when it fails: trainer supervise -- trainer launch -n 8 -- --save DIR.
    Supervise(supervise::Flags),
    /// Prints a job file that runs the trainer on a cluster, under `trainer supervise`.
    #[command(subcommand, arg_required_else_help = false)]
    Job(job::Cluster),
    /// Predicts a run on GPUs that are not there: what fits, and how fast: trainer plan --ranks 64 --gpu h100-80 -- FLAGS.
    Plan(plan::Flags),
    /// Verifies a run's layout before the run: the same numbers as one rank.
    #[command(subcommand, arg_required_else_help = false)]
    Verify(Verify),
    #[command(about = format!(
        "Measures the speed of training steps on random data; takes the flags of a training run. {} steps unless --steps is \
         given",
        bench::STEPS
    ))]
    Bench(Box<bench::Flags>),
    #[command(about = format!(
        "Measures steps without graphs and in each scope, on random data, and says what graphs gain and what takes the \
         time; takes the flags of a training run. {} steps a scope unless --steps is given",
        profile::STEPS
    ))]
    Profile(Box<profile::Flags>),
    /// Writes the samples of a run to a file, in the order of the run, for other frameworks.
    Batches(Box<batches::Flags>),
    /// Writes an HTML page about runs: curves, graphs, memory plan, timeline, events. The page needs no network.
    Report(ReportRequest),
    /// Shows a run while it goes on, in the terminal: loss, speed, memory, ranks, events. q ends it.
    Top(top::Flags),
    /// Checks the machine: libraries, every operation against the host device, speed.
    Doctor(DoctorRequest),
    /// Lists and checks checkpoints.
    #[command(subcommand, arg_required_else_help = false)]
    Checkpoint(Checkpoint),
    /// Prints a script that completes flags in a shell: source <(trainer completions bash).
    Completions(completions::Flags),
    /// Writes the manual's pages, one for each command.
    Man(manual::Flags),
}

#[derive(Debug, Subcommand)]
enum Tokenizer {
    /// Makes a byte-level BPE of text. The same text gives the same file.
    Train(tokenizer::Flags),
}

#[derive(Debug, Subcommand)]
enum Data {
    /// Counts documents and tokens, and shows how the first documents begin. Reads all of the data.
    Inspect(inspect::Flags),
}

#[derive(Debug, Subcommand)]
enum Verify {
    /// Trains a small model with the run's features in its layout, on threads of this host, and compares losses, gradients
    /// and updates with those of one rank: trainer verify layout --ranks 8 -- FLAGS.
    Layout(verify::Flags),
}

#[derive(Debug, Subcommand)]
enum Checkpoint {
    /// Lists the checkpoints in a folder and checks every byte.
    List {
        /// The checkpoint.dir of a run.
        #[arg(value_name = "DIR", value_parser = path())]
        dir: PathBuf,
    },
}

/// The whole command line, with all commands.
pub(super) fn command() -> Command {
    RunFlags::augment_args(Given::augment_subcommands(Command::new("trainer")))
        .about("Trains GPT-class models. Without a command it starts a training run")
        .version(env!("CARGO_PKG_VERSION"))
        .args_conflicts_with_subcommands(true)
}

/// Reads the command line. `arguments` begin with the program's name.
///
/// # Errors
/// Everything that is wrong with it.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Request, UserError> {
    let mut mistakes = Mistakes::default();
    let request = read(arguments, &mut mistakes);
    mistakes.end()?;
    request.ok_or_else(|| UserError::new("the command line", "it asks for a command", "see `trainer --help`"))
}

/// Reads the command line, with everything that is wrong added to `mistakes`. The request is then without what is wrong.
pub(super) fn read(arguments: impl IntoIterator<Item = OsString>, mistakes: &mut Mistakes) -> Option<Request> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let matches = match read_line(command(), &arguments, mistakes)? {
        Parsed::Matches(matches) => matches,
        Parsed::Help(text) => return Some(Request::Print(text)),
    };
    let Some((_, of_command)) = matches.subcommand() else {
        return Some(Request::Train(Box::new(train_request(&args::read(&matches), &[], mistakes))));
    };
    Some(match args::read(&matches) {
        Given::Options => Request::Print(reference()),
        Given::Tokenize(flags) => Request::Tokenize(flags.into()),
        Given::Tokenizer(Tokenizer::Train(flags)) => Request::TrainTokenizer(flags.into()),
        Given::Data(Data::Inspect(flags)) => Request::Inspect(flags.into()),
        Given::Configs(asked) => Request::Print(mistakes.keep(configs::page(&asked))?),
        Given::Import(request) => Request::Import(request),
        Given::Convert(flags) => Request::Convert(flags.into()),
        Given::Sample(flags) => Request::Sample(flags.request(mistakes)),
        Given::Chat(flags) => Request::Chat(flags.request(mistakes)),
        Given::Eval(flags) => Request::Evaluate(Box::new(flags.request(mistakes)?)),
        Given::Launch(request) => ranks_request(request, mistakes)?,
        Given::Supervise(flags) => Request::Supervise(mistakes.keep(flags.request())?),
        Given::Job(cluster) => Request::Job(job::file(cluster, of_command.subcommand()?.1, mistakes)?),
        Given::Plan(flags) => Request::Plan(Box::new(flags.request(mistakes)?)),
        Given::Verify(Verify::Layout(flags)) => Request::VerifyLayout(Box::new(flags.request(mistakes)?)),
        Given::Bench(flags) => Request::Bench(Box::new(flags.request("bench", bench::STEPS, mistakes))),
        Given::Profile(flags) => Request::Profile(Box::new(flags.request(mistakes))),
        Given::Batches(flags) => Request::Batches(Box::new(flags.request(mistakes))),
        Given::Report(request) => Request::Report(request),
        Given::Top(flags) => Request::Top(flags.run),
        Given::Doctor(request) => mistakes.keep(request.check().map(|()| Request::Doctor(request)))?,
        Given::Checkpoint(Checkpoint::List { dir }) => Request::ListCheckpoints(dir),
        Given::Completions(flags) => Request::Print(completions::script(&flags, command())),
        Given::Man(flags) => Request::Manual(flags.folder),
    })
}

/// The request of each rank that `launch` starts.
fn ranks_request(launch: LaunchRequest, mistakes: &mut Mistakes) -> Option<Request> {
    let request = match read(launch.rank_line(), mistakes)? {
        request @ (Request::Train(_)
        | Request::Bench(_)
        | Request::Profile(_)
        | Request::Evaluate(_)
        | Request::Doctor(_)) => Ok(Request::Launch(launch, Box::new(request))),
        Request::Print(text) => Ok(Request::Print(text)), // such as --help
        _ => Err(UserError::new(
            format!("launch -- {}", launch.rank_line().nth(1).unwrap_or_default().to_string_lossy()),
            "ranks train, or run bench, profile, eval or doctor; everything else runs on one process",
            "leave out launch -n ... --",
        )),
    };
    mistakes.keep(request)
}

#[cfg(test)]
mod tests {
    use engine::precision::Precision;

    use super::*;
    use trainer::config::{
        DeviceChoice, FeedForward, GraphMempool, GraphScope, Normalization, PositionEmbedding, RecomputeGranularity,
    };

    #[test]
    fn megatron_flags_with_the_same_meaning_set_the_same_options() {
        let line = "trainer --num-layers 4 --seq-length 32 --max-position-embeddings 32 --position-embedding-type rope \
                    --normalization RMSNorm --swiglu --untie-embeddings-and-output-weights --group-query-attention \
                    --num-query-groups 2 --bf16 --rampup-batch-size 4 4 1000 --betas 0.8 0.9 --train-iters 7 \
                    --attention-softmax-in-fp32 --cuda-graph-use-single-mempool --recompute-activations \
                    --context-parallel-size 1 --expert-model-parallel-size 1 --rotary-percent 1.0 --kv-channels 16 \
                    --split 99,1,0";
        let Ok(Request::Train(request)) = parse(line.split_whitespace().map(OsString::from)) else {
            panic!("{line} does not train")
        };
        let config = &request.config;
        let model = &config.model;
        let (position, norm) = (PositionEmbedding::Rotary, Normalization::RmsNorm);
        assert_eq!((model.position, model.norm, model.activation), (position, norm, FeedForward::SwiGlu));
        assert_eq!((model.tie_embeddings, model.seq_length, model.kv_heads), (false, 32, Some(2)));
        assert_eq!((config.train.steps, &config.train.rampup_batch_size[..]), (7, &[4, 4, 1000][..]));
        assert_eq!(config.optimizer.betas, [0.8, 0.9]);
        assert_eq!((config.precision.compute, config.cuda_graph.mempool), (Precision::Bf16, GraphMempool::Single));
        assert_eq!(config.recompute.granularity, RecomputeGranularity::Selective);
        assert_eq!(config.data.split, 0.99);
        assert_eq!(request.notices.len(), 2, "{:?}", request.notices);
    }

    #[test]
    fn each_of_megatrons_betas_sets_its_item() {
        let betas = |line: &str| {
            let request = parse(line.split_whitespace().map(OsString::from));
            request.map(|request| match request {
                Request::Train(request) => request.config.optimizer.betas,
                other => panic!("{line}: {other:?}"),
            })
        };
        assert_eq!(betas("trainer --adam-beta1 0.8 --adam-beta2 0.99").unwrap(), [0.8, 0.99]);
        assert_eq!(betas("trainer --adam-beta2 0.999").unwrap(), [0.9, 0.999]);
        assert_eq!(betas("trainer --adam-beta1 0.8 --betas 0.8 0.95").unwrap(), [0.8, 0.95]);
        let error = betas("trainer --adam-beta1 0.8 --betas 0.7 0.95").unwrap_err().to_string();
        assert!(error.contains("--adam-beta1 0.8 with optimizer.betas = [0.7, 0.95]"), "{error}");
        assert!(betas("trainer --adam-beta1 high").unwrap_err().to_string().contains("a list of numbers"));
    }

    #[test]
    fn numbers_that_megatron_counts_otherwise_become_ours() {
        let request = |line: &str| match parse(line.split_whitespace().map(OsString::from)) {
            Ok(Request::Train(request)) => Ok(request),
            Err(error) => Err(error.to_string()),
            other => panic!("{line}: {other:?}"),
        };
        let line = "trainer --train-samples 1000 --global-batch-size 30 --lr-warmup-fraction 0.25 --trace-after 4 \
                    --profile-step-end 7 --distributed-timeout-minutes 1.5";
        let config = request(line).unwrap().config;
        assert_eq!((config.train.steps, config.optimizer.warmup_steps, config.logging.trace_steps), (33, Some(8), 3));
        assert_eq!(config.parallel.distributed_timeout_seconds, 90.0);
        assert_eq!(request("trainer --lr-warmup-samples 100").unwrap().config.optimizer.warmup_steps, Some(6));
        for (line, parts) in [
            ("--train-samples 100 --steps 5", ["--train-samples 100 with train.steps", "give one of them"]),
            ("--train-samples many", ["--train-samples many", "write a number"]),
            (
                "--train-samples 100 --rampup-batch-size 4 4 100",
                ["whose number is not known", "set train.steps itself"],
            ),
            ("--profile-step-end 7", ["--profile-step-end 7, whose", "set logging.trace_steps itself"]),
            ("--epochs 2 --lr-warmup-fraction 0.1", ["whose number is not known", "set optimizer.warmup_steps itself"]),
            ("--epochs 2 --steps 5", ["train.steps = 5 with train.epochs = 2", "give --steps or --epochs"]),
            ("--lr-warmup-fraction -1", ["(--lr-warmup-fraction -1)", "optimizer.warmup_steps = -1000"]),
        ] {
            let error = request(&format!("trainer {line}")).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{line}: {error}");
        }
    }

    #[test]
    fn flags_without_effect_are_accepted_with_a_notice_and_so_are_those_that_do_less() {
        let notices = |line: &str| match parse(line.split_whitespace().map(OsString::from)) {
            Ok(Request::Train(request)) => (request.notices.join("\n"), request.config),
            other => panic!("{line}: {other:?}"),
        };
        let (told, config) = notices("trainer --num-workers 4 --no-mmap-bin-files --tensorboard-dir logs --profile");
        for part in
            ["--num-workers has no effect: one thread", "--no-mmap-bin-files has no effect", "logs: TensorBoard's"]
        {
            assert!(told.contains(part), "{told}");
        }
        assert_eq!((config.logging.tensorboard, config.logging.trace.as_deref()), (true, Some("trace.json")));
        let (told, config) = notices("trainer --disable-bias-linear");
        assert!(!config.model.bias && told.contains("LayerNorms have no biases then either"), "{told}");
        assert_eq!(notices("trainer --disable-bias-linear --norm rmsnorm").0, "");
    }

    #[test]
    fn underscores_in_the_names_of_flags_are_hyphens_and_other_words_for_devices_are_taken() {
        let config = |line: &str| match parse(line.split_whitespace().map(OsString::from)) {
            Ok(Request::Train(request)) => request.config,
            other => panic!("{line}: {other:?}"),
        };
        let run = config("trainer --micro_batch_size 4 --log_dir my_logs --device cpu --enable_cuda_graph --lr=1e-3");
        assert_eq!((run.train.micro_batch_size, &*run.logging.dir), (4, "my_logs"));
        assert_eq!((run.train.device, run.cuda_graph.enable), (DeviceChoice::Host, true));
        assert_eq!(config("trainer --device gpu").train.device, DeviceChoice::Cuda);
        for (word, device) in [("cpu", DeviceChoice::Host), ("gpu", DeviceChoice::Cuda), ("host", DeviceChoice::Host)] {
            let Ok(Request::Doctor(doctor)) = parse(["trainer", "doctor", "--device", word].map(OsString::from)) else {
                panic!("doctor --device {word}")
            };
            assert_eq!(doctor.device, device);
        }
    }

    #[test]
    fn megatrons_words_for_graphs_choose_scope_and_modules() {
        /// Flags, and the settings that the flags make: enable, scope, modules, layers.
        type Case = (&'static str, bool, GraphScope, &'static [&'static str], &'static [usize]);
        const ATTENTION: &str = "attention";
        const MLP: &str = "mlp";
        let cases: [Case; 17] = [
            ("--cuda-graph-impl none", false, GraphScope::PerLayer, &[], &[]),
            ("--cuda-graph-impl local", true, GraphScope::PerLayer, &[], &[]),
            ("--cuda-graph-impl=full_iteration", true, GraphScope::FullIteration, &[], &[]),
            ("--cuda-graph-impl local --enable-cuda-graph", true, GraphScope::PerLayer, &[], &[]),
            ("--cuda-graph-impl local --cuda-graph-granularity chunk", true, GraphScope::PerChunk, &[], &[]),
            ("--cuda-graph-granularity layer", false, GraphScope::PerLayer, &[], &[]),
            ("--cuda-graph-scope per_chunk", false, GraphScope::PerChunk, &[], &[]),
            ("--cuda-graph-modules attn mlp", false, GraphScope::PerLayer, &[ATTENTION, MLP], &[]),
            ("--cuda-graph-modules attention,mlp", false, GraphScope::PerLayer, &[ATTENTION, MLP], &[]),
            ("--set cuda_graph.modules=[\"mlp\"]", false, GraphScope::PerLayer, &[MLP], &[]),
            ("--cuda-graph-scope attn", false, GraphScope::PerLayer, &[ATTENTION], &[]),
            ("--cuda-graph-scope mlp", false, GraphScope::PerLayer, &[MLP], &[]),
            ("--cuda-graph-scope full", false, GraphScope::PerLayer, &[], &[]),
            ("--cuda-graph-scope moe", false, GraphScope::PerLayer, &["moe"], &[]),
            ("--cuda-graph-scope moe_router", false, GraphScope::PerLayer, &["moe_router"], &[]),
            ("--cuda-graph-modules attn moe_router", false, GraphScope::PerLayer, &[ATTENTION, "moe_router"], &[]),
            ("--cuda-graph-layers 2", false, GraphScope::PerLayer, &[], &[2]),
        ];
        for (flags, enable, scope, modules, layers) in cases {
            for command in ["trainer", "trainer bench"] {
                let line = format!("{command} {flags}");
                let config = match parse(line.split_whitespace().map(OsString::from)) {
                    Ok(Request::Train(request)) => request.config.cuda_graph,
                    Ok(Request::Bench(request)) => request.run.config.cuda_graph,
                    other => panic!("{line}: {other:?}"),
                };
                assert_eq!((config.enable, config.scope), (enable, scope), "{line}");
                assert_eq!(config.modules, modules, "{line}");
                assert_eq!(config.layers, layers, "{line}");
            }
        }
        for (flags, layers) in [("--cuda-graph-layers 1 3", [1, 3]), ("--cuda-graph-layers 1,3", [1, 3])] {
            let Ok(Request::Train(request)) =
                parse(["trainer"].into_iter().chain(flags.split(' ')).map(OsString::from))
            else {
                panic!("{flags} does not train")
            };
            assert_eq!(request.config.cuda_graph.layers, layers, "{flags}");
        }
    }
}
