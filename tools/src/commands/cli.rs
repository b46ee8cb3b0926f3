//! The command line: all commands put together.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Command;
use common::{Mistakes, UserError};
use data::{InspectRequest, TokenizeRequest, TokenizerRequest};

use super::args::{Parsed, read_line, train_request, with_run_flags};
use super::batches::{self, BatchesRequest};
use super::bench::{self, BenchRequest};
use super::chat::{self, ChatRequest};
use super::convert::{self, ConvertRequest};
use super::doctor::{self, DoctorRequest};
use super::eval::{self, EvalRequest};
use super::import::{self, ImportRequest};
use super::job::{self, JobFile};
use super::launch::{self, LaunchRequest};
use super::plan::{self, PlanRequest};
use super::profile::{self, ProfileRequest};
use super::report::{self, ReportRequest};
use super::sample::{self, SampleRequest};
use super::supervise::{self, SuperviseRequest};
use super::verify::{self, VerifyRequest};
use super::{checkpoint, completions, configs, inspect, manual, tokenize, tokenizer, top};
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
    /// Check the checkpoints in this folder and list them.
    ListCheckpoints(PathBuf),
}

/// The command line with all its commands.
pub(super) fn command() -> Command {
    let trainer = Command::new("trainer")
        .about("Trains GPT-class models. Without a command it starts a training run")
        .version(env!("CARGO_PKG_VERSION"))
        .args_conflicts_with_subcommands(true)
        .subcommand(Command::new("options").about("Prints the reference of all options as Markdown"))
        .subcommand(tokenize::command())
        .subcommand(tokenizer::command())
        .subcommand(inspect::command())
        .subcommand(configs::command())
        .subcommand(import::command())
        .subcommand(convert::command())
        .subcommand(sample::command())
        .subcommand(chat::command())
        .subcommand(eval::command())
        .subcommand(launch::command())
        .subcommand(supervise::command())
        .subcommand(job::command())
        .subcommand(plan::command())
        .subcommand(verify::command())
        .subcommand(bench::command())
        .subcommand(profile::command())
        .subcommand(batches::command())
        .subcommand(report::command())
        .subcommand(top::command())
        .subcommand(doctor::command())
        .subcommand(checkpoint::command())
        .subcommand(completions::command())
        .subcommand(manual::command());
    with_run_flags(trainer)
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
    Some(match matches.subcommand() {
        Some(("options", _)) => Request::Print(reference()),
        Some(("tokenize", matches)) => Request::Tokenize(tokenize::request(matches)),
        Some(("tokenizer", matches)) => Request::TrainTokenizer(tokenizer::request(matches)),
        Some(("data", matches)) => Request::Inspect(inspect::request(matches)),
        Some(("configs", matches)) => Request::Print(mistakes.keep(configs::page(matches))?),
        Some(("import", matches)) => Request::Import(import::request(matches)),
        Some(("convert", matches)) => Request::Convert(convert::request(matches)),
        Some(("sample", matches)) => Request::Sample(sample::request(matches, mistakes)),
        Some(("chat", matches)) => Request::Chat(chat::request(matches, mistakes)),
        Some(("eval", matches)) => Request::Evaluate(Box::new(eval::request(matches, mistakes)?)),
        Some(("launch", matches)) => ranks_request(launch::request(matches), mistakes)?,
        Some(("supervise", matches)) => Request::Supervise(mistakes.keep(supervise::request(matches))?),
        Some(("job", matches)) => Request::Job(job::file(matches, mistakes)?),
        Some(("plan", matches)) => Request::Plan(Box::new(plan::request(matches, mistakes)?)),
        Some(("verify", matches)) => Request::VerifyLayout(Box::new(verify::request(matches, mistakes)?)),
        Some(("bench", matches)) => Request::Bench(Box::new(bench::request(matches, mistakes))),
        Some(("profile", matches)) => Request::Profile(Box::new(profile::request(matches, mistakes))),
        Some(("batches", matches)) => Request::Batches(Box::new(batches::request(matches, mistakes))),
        Some(("report", matches)) => Request::Report(report::request(matches)),
        Some(("top", matches)) => Request::Top(top::folder(matches)),
        Some(("doctor", matches)) => Request::Doctor(mistakes.keep(doctor::request(matches))?),
        Some(("checkpoint", matches)) => Request::ListCheckpoints(checkpoint::folder(matches)),
        Some(("completions", matches)) => Request::Print(completions::script(matches, command())),
        Some(("man", matches)) => Request::Manual(manual::folder(matches)),
        _ => Request::Train(Box::new(train_request(&matches, &[], mistakes))),
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
        Activation, DeviceChoice, GraphMempool, GraphScope, Normalization, PositionEmbedding, RecomputeGranularity,
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
        assert_eq!((model.position, model.norm, model.activation), (position, norm, Activation::SwiGlu));
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
        /// Flags, and what they set: enable, scope, modules, layers.
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
