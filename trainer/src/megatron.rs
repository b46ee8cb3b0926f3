//! Megatron's command line: what each flag and word is here. Flags of Megatron's that take the same values as an option of
//! ours are aliases in the option table; these are the others that its users know.

use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::config::{Layers, RunConfig, UserError};
use crate::options::{Kind, find};

/// What a flag of Megatron's is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The same as an option's key with this value.
    Sets(&'static str, &'static str),
    /// Its value is that of this key, or it is refused.
    Is(&'static str),
    /// It says that this key is unset, or it is refused; why.
    Without(&'static str, &'static str),
    /// Nothing is to be done for it, which is said with the reason.
    NotNeeded(&'static str),
    /// It is not taken: the rule, and what to give instead.
    Instead(&'static str, &'static str),
}

use Meaning::{Instead, Is, NotNeeded, Sets, Without};

const PRECISION: &str = "layers compute in bf16, tf32 or f32";
const OWN_GRAPHS: &str = "the trainer captures its graphs itself, one way";
const IN_STEPS: &str = "the length of a run and of what happens in it is counted in steps";
const TOKENIZERS: &str = "a tokenizer is the word byte, a Hugging Face tokenizer.json, or a folder with one";
const GRID: &str = "ranks are divided for tensor, pipeline and data parallelism";
const WEIGHTS_ALONE: &str = "a checkpoint goes on with all of its state; a new run may begin with weights alone";
const ONE_WAY: &str = "there is one way to do it here";

/// The flags, without dashes in front.
#[rustfmt::skip]
pub const FLAGS: &[(&str, Meaning)] = &[
    ("bf16", Sets("precision.compute", "bf16")),
    ("swiglu", Sets("model.activation", "swiglu")),
    ("untie-embeddings-and-output-weights", Sets("model.tie_embeddings", "false")),
    ("use-rotary-position-embeddings", Sets("model.position", "rotary")),
    ("recompute-activations", Sets("recompute.granularity", "selective")),
    ("cuda-graph-use-single-mempool", Sets("cuda_graph.mempool", "single")),
    ("grad-reduce-in-bf16", Sets("parallel.grad_reduce", "bf16")),

    ("max-position-embeddings", Is("model.seq_length")),

    ("mock-data", Without("data.path", "without it the trainer makes its own data")),

    ("te-rng-tracker", NotNeeded("randomness here is a function of step, sample and place, always safe to capture")),
    ("overlap-grad-reduce", NotNeeded("gradients are always reduced while backward goes on")),
    ("overlap-param-gather", NotNeeded("the weights of a distributed optimizer are always gathered while forward goes on")),
    ("no-check-for-nan-in-loss-and-grad", NotNeeded("the check runs on the device, inside the graph")),
    ("accumulate-allreduce-grads-in-fp32", NotNeeded("gradients always accumulate in f32")),
    ("attention-softmax-in-fp32", NotNeeded("softmax is always in f32")),
    ("group-query-attention", NotNeeded("--num-query-groups alone says so")),
    ("use-flash-attn", NotNeeded("attention is always one operation")),
    ("use-mcore-models", NotNeeded("there is one kind of transformer")),
    ("exit-signal-handler", NotNeeded("signals always end a run after a step, with a checkpoint")),
    ("log-throughput", NotNeeded("every step is logged with it")),

    ("fp16", Instead(PRECISION, "--bf16, or leave it out for f32")),
    ("fp8-format", Instead(PRECISION, "--bf16")),
    ("fp8-hybrid", Instead(PRECISION, "--bf16")),
    ("disable-bias-linear", Instead("linear layers and LayerNorms have biases together or not at all", "--bias=false")),
    ("external-cuda-graph", Instead(OWN_GRAPHS, "--enable-cuda-graph")),
    ("cuda-graph-impl", Instead(OWN_GRAPHS, "--enable-cuda-graph, or leave it out for none")),
    ("adam-beta1", Instead("the two are one option", "for example --betas [0.9,0.95]")),
    ("adam-beta2", Instead("the two are one option", "for example --betas [0.9,0.95]")),
    ("train-samples", Instead(IN_STEPS, "--steps")),
    ("exit-interval", Instead(IN_STEPS, "--steps")),
    ("lr-warmup-fraction", Instead(IN_STEPS, "--lr-warmup-steps")),
    ("lr-warmup-samples", Instead(IN_STEPS, "--lr-warmup-steps")),
    ("lr-decay-iters", Instead("a decay ends with the run", "--steps; --lr-decay-steps is how long wsd's decay takes")),
    ("lr-decay-samples", Instead("a decay ends with the run", "--steps; --lr-decay-steps is how long wsd's decay takes")),
    ("vocab-file", Instead(TOKENIZERS, "--tokenizer; token files need none")),
    ("merge-file", Instead(TOKENIZERS, "--tokenizer; token files need none")),
    ("tokenizer-type", Instead(TOKENIZERS, "--tokenizer; token files need none")),
    ("make-vocab-size-divisible-by", Instead("the vocabulary is padded to a multiple of 128 x parallel.tensor", "leave it out")),
    ("train-data-path", Instead("data that are trained on have one option", "--data-path")),
    ("test-data-path", Instead("there are data to train on and data to validate on", "--validation-path, or leave it out")),
    ("no-position-embedding", Instead("positions are learned, rotary or none", "leave it out beside --position rotary, or --position none")),
    ("rotary-percent", Instead("all channels of a head are turned", "leave it out")),
    ("use-rope-scaling", Instead("its numbers are given", "--rope-scaling [8,1,4,8192]")),
    ("kv-channels", Instead("a head has model.hidden / model.heads channels", "leave it out, or set another --heads")),
    ("num-experts", Instead("models are dense", "leave it out")),
    ("ddp-bucket-size", Instead("buckets are counted in MiB of gradients, not in parameters", "--bucket-mib 153 for 40 million parameters in f32")),
    ("context-parallel-size", Instead(GRID, "--tensor-model-parallel-size with --sequence-parallel")),
    ("expert-model-parallel-size", Instead(GRID, "leave it out")),
    ("num-layers-per-virtual-pipeline-stage", Instead("chunks of a stage are counted, not their layers", "--virtual-pipeline-model-parallel-size")),
    ("use-torch-fsdp2", Instead(GRID, "--use-distributed-optimizer")),
    ("finetune", Instead(WEIGHTS_ALONE, "--init-from with a checkpoint or a Hugging Face folder")),
    ("no-load-optim", Instead(WEIGHTS_ALONE, "--init-from with a checkpoint or a Hugging Face folder")),
    ("no-load-rng", Instead("randomness is no state that is loaded", "leave it out, or set another --seed")),
    ("ckpt-format", Instead("checkpoints are safetensors", "leave it out")),
    ("async-save", Instead("a run goes on when its checkpoint is on disk", "leave it out")),
    ("tensorboard-dir", Instead("TensorBoard's files go into logging.dir", "--tensorboard with --log-dir")),
    ("wandb-project", Instead("nothing is sent; files for Weights & Biases go into logging.dir", "--wandb with --log-dir")),
    ("profile", Instead("a timeline is a file", "--trace")),
    ("profile-step-end", Instead("a timeline has a number of steps", "--trace-steps")),
    ("transformer-impl", Instead(ONE_WAY, "leave it out")),
    ("attention-backend", Instead(ONE_WAY, "leave it out")),
    ("distributed-backend", Instead("ranks talk over NCCL on GPUs and over MPI on the host", "leave it out")),
    ("num-workers", Instead("one thread makes the next batches", "leave it out")),
];

/// Words for values of an option that mean the same as ours.
const WORDS: &[(&str, &str, &str)] = &[
    ("model.norm", "LayerNorm", "layernorm"),
    ("model.norm", "RMSNorm", "rmsnorm"),
    ("model.position", "learned_absolute", "learned"),
    ("model.position", "rope", "rotary"),
];

const LAYERS: &str = "set cuda_graph.scope = \"per_layer\": a graph has all of a layer, attention and feed-forward";

/// Words that mean something else than ours, or nothing: what to give instead.
const OTHER_WORDS: &[(&str, &str, &str)] = &[
    ("cuda_graph.scope", "attn", LAYERS),
    ("cuda_graph.scope", "mlp", LAYERS),
    ("cuda_graph.scope", "full", LAYERS),
    ("optimizer.schedule", "WSD", "set optimizer.schedule = \"wsd\", whose decay is linear"),
    (
        "optimizer.schedule",
        "linear",
        "set optimizer.schedule = \"wsd\" and optimizer.decay_steps = train.steps - optimizer.warmup_steps",
    ),
];

/// Our word for a value of the option.
pub fn word<'w>(key: &str, word: &'w str) -> &'w str {
    WORDS.iter().find(|known| (known.0, known.1) == (key, word)).map_or(word, |known| known.2)
}

/// What to give for a value that the option does not take, if it is one of Megatron's.
pub fn fix(key: &str, text: &str) -> Option<String> {
    if key == "data.split" {
        let parts: Vec<f64> = text.split(',').map(|part| part.trim().parse().ok()).collect::<Option<_>>()?;
        let share = parts[0] / parts.iter().sum::<f64>();
        let share = (share * 1e6).round() / 1e6;
        if parts.len() < 2 || !(share > 0.0 && share <= 1.0) {
            return None;
        }
        return Some(format!("set data.split = {share}: the rest validates, and nothing is kept for a test"));
    }
    OTHER_WORDS.iter().find(|known| (known.0, known.1) == (key, text)).map(|known| known.2.to_string())
}

/// The rule and the fix for a flag that is not taken.
pub fn instead(flag: &str) -> Option<(&'static str, &'static str)> {
    FLAGS.iter().find_map(|(name, meaning)| match meaning {
        Instead(rule, fix) if *name == flag => Some((*rule, *fix)),
        _ => None,
    })
}

/// What a flag that sets an option is the same as.
fn same(key: &str, value: &str) -> String {
    match find(key) {
        Some(option) if option.kind == Kind::Bool => format!("--{}={value}", option.flag),
        option => format!("--{} {value}", option.map_or(key, |option| option.flag)),
    }
}

/// Adds those that are taken to a command with the flags of a training run.
pub fn with_flags(mut command: Command) -> Command {
    for (flag, meaning) in FLAGS {
        let arg = Arg::new(*flag).long(*flag);
        let section = |key: &'static str| key.split('.').next().unwrap_or_default();
        command = match meaning {
            Sets(key, value) => {
                let help = format!("Same as {}", same(key, value));
                command.arg(arg.action(ArgAction::SetTrue).help_heading(section(key)).help(help))
            }
            Is(_) => command.arg(arg.value_name("VALUE").hide(true)),
            NotNeeded(why) | Without(_, why) => command.arg(arg.action(ArgAction::SetTrue).hide(true).help(*why)),
            Instead(..) => command,
        };
    }
    command
}

/// Sets what the flags that were given stand for.
///
/// # Errors
/// None, as long as the table is right.
pub fn set(matches: &ArgMatches, layers: &mut Layers) -> Result<(), UserError> {
    for (flag, meaning) in FLAGS {
        if let Sets(key, value) = meaning
            && matches.get_flag(flag)
        {
            layers.set(key, value, &format!("--{flag}"))?;
        }
    }
    Ok(())
}

/// Fails on a flag that goes against another option.
///
/// # Errors
/// The first.
pub fn compare(matches: &ArgMatches, config: &RunConfig) -> Result<(), UserError> {
    let table = toml::Table::try_from(config).unwrap_or_default();
    let value_of = |key: &str| {
        let (section, name) = key.split_once('.')?;
        table.get(section)?.get(name)
    };
    for (flag, meaning) in FLAGS {
        let against = match meaning {
            Is(key) => value_of(key).zip(matches.get_one::<String>(flag)).and_then(|(value, given)| {
                let fix = format!("leave it out, or set {key} = {given}");
                (value.to_string() != *given).then(|| (format!("--{flag} {given} with {key} = {value}"), fix))
            }),
            // Its own option, on the same command line, says otherwise.
            Sets(key, means) if matches.get_flag(flag) => value_of(key)
                .map(|value| value.as_str().map_or(value.to_string(), str::to_string))
                .filter(|value| value != means)
                .map(|value| (format!("--{flag} with {key} = {value}"), "give one of them".to_string())),
            Without(key, _) if matches.get_flag(flag) => {
                value_of(key).map(|value| (format!("--{flag} with {key} = {value}"), "give one of them".to_string()))
            }
            _ => None,
        };
        if let Some((what, fix)) = against {
            return Err(UserError::new(what, "a flag and the option that it stands for agree", fix));
        }
    }
    Ok(())
}

/// What to tell of flags that were given and are not needed.
pub fn notices(matches: &ArgMatches) -> Vec<String> {
    let given = FLAGS.iter().filter_map(|(flag, meaning)| match meaning {
        NotNeeded(why) if matches.get_flag(flag) => Some(format!("--{flag} is not needed: {why}")),
        _ => None,
    });
    given.collect()
}

/// The flags as Markdown.
pub fn reference() -> String {
    let mut text = String::from("\n## Megatron's flags\n\n| flag | here |\n|---|---|\n");
    for (flag, meaning) in FLAGS {
        let here = match meaning {
            Sets(key, value) => format!("`{}`", same(key, value)),
            Is(key) => format!("taken if it is `{key}`"),
            Without(key, why) => format!("taken without `{key}`: {why}"),
            NotNeeded(why) => format!("not needed: {why}"),
            Instead(rule, fix) => format!("not taken: {rule}. Instead: {fix}"),
        };
        text += &format!("| `--{flag}` | {here} |\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::OPTIONS;

    #[test]
    fn no_flag_is_an_options_own_and_all_set_or_name_flags_and_keys_that_are() {
        let own = |flag: &str| OPTIONS.iter().any(|option| option.flag == flag || option.aliases.contains(&flag));
        let mut seen = std::collections::HashSet::new();
        for (flag, meaning) in FLAGS {
            assert!(!own(flag) && seen.insert(flag), "--{flag} twice");
            match meaning {
                Sets(key, value) => Layers::default().set(key, value, flag).unwrap(),
                Is(key) => assert!(find(key).is_some(), "{key}"),
                Without(key, why) => assert!(find(key).is_some() && !why.is_empty(), "{key}"),
                NotNeeded(why) => assert!(!why.is_empty()),
                Instead(_, fix) => {
                    let named = fix.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
                    for name in named.filter_map(|word| word.strip_prefix("--")) {
                        let sets = FLAGS.iter().any(|(flag, meaning)| *flag == name && matches!(meaning, Sets(..)));
                        assert!(sets || own(name), "--{flag}: there is no --{name}");
                    }
                }
            }
        }
        for (key, _, ours) in WORDS {
            Layers::default().set(key, ours, "test").unwrap();
        }
        assert!(OTHER_WORDS.iter().all(|(key, ..)| find(key).is_some()));
    }

    #[test]
    fn the_split_of_three_shares_is_the_first_of_their_sum() {
        assert!(fix("data.split", "949,50,1").unwrap().starts_with("set data.split = 0.949:"));
        assert!(fix("data.split", "99, 1, 0").unwrap().starts_with("set data.split = 0.99:"));
        for none in ["most", "0.9", "0,0", "-1,2"] {
            assert_eq!(fix("data.split", none), None);
        }
    }
}
