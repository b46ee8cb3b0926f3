//! Flags that are unknown, or that Megatron has and we do not support. Scripts have many flags, so all of them are named at
//! once, in a line each.

use std::ffi::OsString;

use clap::{Arg, Command};
use common::UserError;

use trainer::config::{megatron, other_names};

/// A flag that is not accepted.
#[derive(Debug)]
struct Unsupported {
    /// The flag, with the value if the value is the mistake.
    flag: String,
    /// Whether the flag is Megatron's.
    is_megatrons: bool,
    rule: String,
    fix: String,
}

/// A command line, divided into flags that are not accepted and the rest.
pub(super) struct Divided {
    /// The flags that are not accepted.
    found: Vec<Unsupported>,
    /// The command that the flags were given to.
    path: String,
    /// Whether the arguments without what is wrong are still those of the command, so that they can be read on.
    pub(super) reads_on: bool,
    /// The flags that the command needs in any case.
    pub(super) required: Vec<String>,
    /// The arguments without the flags of `found` and the flags' values. `None` if a value cannot be told from another
    /// argument.
    pub(super) rest: Option<Vec<OsString>>,
}

impl Divided {
    /// The error for all flags that are not accepted, if there are any.
    pub(super) fn error(&self) -> Option<UserError> {
        let Divided { found, path, .. } = self;
        if found.is_empty() {
            return None;
        }
        if let [Unsupported { flag, is_megatrons, rule, fix }] = &found[..] {
            let problem = if *is_megatrons { "not supported" } else { "unknown" };
            return Some(UserError::new(format!("{flag} is {problem}"), rule, fix));
        }
        let names: Vec<&str> = found.iter().map(|flag| flag.flag.as_str()).collect();
        let what = format!("{} flags are not accepted: {}", names.len(), names.join(", "));
        let error = UserError::new(what, format!("only what `{path} --help` lists is accepted"), "change each:");
        Some(error.with_each(lines(found)))
    }
}

/// A line for all flags with the same rule and fix.
fn lines(found: &[Unsupported]) -> Vec<String> {
    let mut groups: Vec<(&Unsupported, Vec<&str>)> = Vec::new();
    for flag in found {
        let same = |(first, _): &&mut (&Unsupported, Vec<&str>)| (&first.rule, &first.fix) == (&flag.rule, &flag.fix);
        match groups.iter_mut().find(same) {
            Some((_, flags)) => flags.push(&flag.flag),
            None => groups.push((flag, vec![&flag.flag])),
        }
    }
    groups.iter().map(|(of, flags)| format!("{}: {}. Fix: {}", flags.join(", "), of.rule, of.fix)).collect()
}

/// Divides a command line.
pub(super) fn divide(mut command: Command, arguments: &[OsString]) -> Divided {
    command.build();
    let texts: Vec<&str> = arguments.iter().map(|argument| argument.to_str().unwrap_or_default()).collect();
    let (mut command, mut path, mut at) = (&command, String::from("trainer"), 1);
    while let Some(of) = texts.get(at).and_then(|name| command.find_subcommand(name)) {
        path = format!("{path} {}", texts[at]);
        (command, at) = (of, at + 1);
    }
    let flags = Flags { command, path: &path };
    let mut found: Vec<Unsupported> = Vec::new();
    let mut kept: Vec<OsString> = arguments.iter().take(at).cloned().collect();
    while at < texts.len() && texts[at] != "--" {
        let given = texts[at];
        let of_flag = at;
        at += 1;
        let Some(text) = given.strip_prefix("--") else {
            kept.push(arguments[of_flag].clone());
            continue;
        };
        let (name, attached) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        let value = attached.or(texts.get(at).copied());
        let arg = flags.arg(name);
        // The next argument is this flag's value, even if it looks like a flag.
        if attached.is_none() && arg.is_some_and(|arg| arg.is_allow_hyphen_values_set()) {
            at += 1;
        }
        match flags.unsupported(name, value) {
            None => kept.extend(arguments.iter().take(at).skip(of_flag).cloned()),
            Some(flag) => {
                while attached.is_none() && texts.get(at).is_some_and(|next| !next.starts_with("--")) {
                    at += 1;
                }
                if found.iter().all(|before| before.flag != flag.flag) {
                    found.push(flag);
                }
            }
        }
    }
    kept.extend(arguments.iter().skip(at).cloned());
    let (reads_on, required) = (flags.read_on(), flags.required());
    Divided { found, path, reads_on, required, rest: reads_on.then_some(kept) }
}

/// The flags of a command.
struct Flags<'c> {
    command: &'c Command,
    path: &'c str,
}

impl Flags<'_> {
    fn names(arg: &Arg) -> Vec<String> {
        let aliases = arg.get_all_aliases().into_iter().flatten();
        arg.get_long().into_iter().chain(aliases).map(str::to_string).collect()
    }

    fn arg(&self, name: &str) -> Option<&Arg> {
        self.command.get_arguments().find(|arg| Flags::names(arg).iter().any(|known| known == name))
    }

    /// Whether the command contains no other command line.
    fn read_on(&self) -> bool {
        let command = self.command;
        let has_another = command.has_subcommands() || command.get_positionals().any(Arg::is_last_set);
        self.are_of_a_run() || !has_another
    }

    /// The flags that the command needs in any case.
    fn required(&self) -> Vec<String> {
        let required = self.command.get_arguments().filter(|arg| arg.is_required_set());
        required.filter_map(|arg| arg.get_long().map(str::to_string)).collect()
    }

    /// Whether the command takes the flags of a training run.
    fn are_of_a_run(&self) -> bool {
        self.arg("dry-run").is_some()
    }

    /// The reason why a flag is not accepted, if so.
    fn unsupported(&self, name: &str, value: Option<&str>) -> Option<Unsupported> {
        let megatrons = self.are_of_a_run().then(|| megatron::unsupported(&name.replace('_', "-"), value)).flatten();
        let arg = self.arg(name);
        let flag = match (arg, value) {
            (Some(_), Some(value)) => format!("--{name} {value}"),
            _ => format!("--{name}"),
        };
        let is_megatrons = megatrons.is_some();
        let (rule, fix) = match (megatrons, arg) {
            (Some((rule, fix)), _) => (rule.into(), fix.into()),
            (None, Some(_)) => return None,
            (None, None) => self.answer(name),
        };
        Some(Unsupported { flag, is_megatrons, rule, fix })
    }

    /// The rule and the fix for an unknown flag.
    fn answer(&self, name: &str) -> (String, String) {
        let Flags { command, path } = self;
        if *path == "trainer launch" {
            let torchruns = other_names::torchruns(name);
            return torchruns.unwrap_or_else(|| {
                let rule = format!("only what `{path} --help` lists is known");
                (rule, "put -- before it: the trainer's flags follow --".into())
            });
        }
        let (is_run, generates) = (self.are_of_a_run(), self.arg("top-k").is_some());
        let list = || format!("`{path} --help` lists all flags");
        let other = match (is_run, generates) {
            (true, _) => other_names::answer(name, true).or_else(|| of_sampling(name)),
            (_, true) => other_names::sampling(name),
            _ => None,
        };
        other
            .or_else(|| Some((list(), similar(name, command.get_arguments().flat_map(Flags::names))?)))
            .or_else(|| other_names::answer(name, false).filter(|_| is_run))
            .unwrap_or_else(|| (list(), format!("see `{path} --help`")))
    }
}

/// The answer, in a training run, to a flag of text generation.
fn of_sampling(name: &str) -> Option<(String, String)> {
    let (rule, fix) = other_names::sampling(name)?;
    let fix = if fix.starts_with("--") { format!("trainer sample with {fix}") } else { fix };
    Some((format!("{rule}, for text from a trained model"), fix))
}

/// The flag that differs from `name` in one or two letters, or in the order of letters.
fn similar(name: &str, known: impl Iterator<Item = String>) -> Option<String> {
    let near = known.map(|known| (strsim::osa_distance(name, &known), known));
    let (distance, nearest) = near.min_by_key(|(distance, _)| *distance)?;
    (distance <= (name.chars().count() / 3).min(2)).then(|| format!("did you mean --{nearest}?"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::cli::parse;

    /// The flags of Megatron's example for Llama 3 8B, with the example's numbers.
    const LLAMA: &str = "--use-mcore-models --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 \
        --num-attention-heads 32 --group-query-attention --num-query-groups 8 --kv-channels 128 --seq-length 8192 \
        --max-position-embeddings 8192 --position-embedding-type rope --rotary-base 1000000 --rotary-percent 1.0 \
        --attention-dropout 0.0 --hidden-dropout 0.0 --swiglu --init-method-std 0.0134 --attention-backend fused \
        --apply-layernorm-1p --untie-embeddings-and-output-weights --disable-bias-linear --micro-batch-size 1 \
        --global-batch-size 128 --train-samples 1953125000 --lr-decay-samples 1949218748 --lr-warmup-samples 3906252 \
        --lr 0.00015 --min-lr 0.00001 --decoupled-lr 5.0e-4 --decoupled-min-lr 4.5e-5 --lr-decay-style cosine \
        --clip-grad 1.0 --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 --bf16 --grad-reduce-in-bf16 \
        --cross-entropy-loss-fusion --calculate-per-token-loss --manual-gc --empty-unused-memory-level 1 \
        --exit-duration-in-mins 235 --fp8-format hybrid --fp8-amax-history-len 1024 --fp8-amax-compute-algo max \
        --fp8-param-gather --tensor-model-parallel-size 1 --context-parallel-size 1 --sequence-parallel \
        --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --mock-data \
        --tokenizer-type NullTokenizer --vocab-size 128256 --data-cache-path cache --tiktoken-pattern v2 \
        --split 99,1,0 --no-create-attention-mask-in-dataloader --no-mmap-bin-files --num-workers 1 --log-interval 1 \
        --eval-iters 32 --eval-interval 100 --save-interval 1000 --log-throughput --profile --profile-step-start 4 \
        --profile-step-end 6 --ckpt-format torch_dist --distributed-timeout-minutes 60 --save saved --load saved \
        --tensorboard-dir logs";

    fn refused(flags: &str) -> UserError {
        parse(["trainer"].into_iter().chain(flags.split_whitespace()).map(OsString::from)).unwrap_err()
    }

    #[test]
    fn all_unsupported_flags_of_a_script_are_named_at_once_and_the_rest_is_accepted() {
        let error = refused(LLAMA);
        let (count, named) = error.what.split_once(" flags are not accepted: ").unwrap();
        assert!(!error.to_string().contains("unknown"), "{error}");
        let named: Vec<&str> = named.split(", ").map(|flag| flag.split(' ').next().unwrap()).collect();
        assert_eq!(named.len().to_string(), count);
        // Each flag is in one line with the reason and the fix.
        let in_lines: usize = error.each.iter().map(|line| line.split_once(": ").unwrap().0.split(", ").count()).sum();
        assert_eq!(in_lines, named.len());
        assert!(error.each.iter().all(|line| line.starts_with("--") && line.contains(". Fix: ")), "{error}");
        assert!(
            ["--lr-decay-samples", "--decoupled-lr", "--tiktoken-pattern"].iter().all(|flag| named.contains(flag)),
            "{error}"
        );
        let mut left = Vec::new();
        for part in LLAMA.split("--").map(str::trim).filter(|part| !part.is_empty()) {
            let flag = format!("--{}", part.split(' ').next().unwrap());
            if !named.contains(&&*flag) {
                left.push(format!("--{part}"));
            }
        }
        let left = format!("trainer {}", left.join(" "));
        parse(left.split_whitespace().map(OsString::from)).unwrap_or_else(|error| panic!("{error}"));
    }

    #[test]
    fn a_similar_name_is_proposed_only_if_it_differs_by_a_letter_or_two() {
        for (flag, fix) in [
            ("--stpes", "did you mean --steps?"),
            ("--learning_rate", "--lr"),
            ("--compile=True", "--enable-cuda-graph"),
            ("--gradient_checkpointing", "--recompute-granularity full"),
            ("--max_new_tokens 20", "trainer sample with --tokens"),
            ("--eval_steps 500", "--eval-interval; --eval-iters is the number of batches of an evaluation"),
            ("--eval-intervl 500", "did you mean --eval-interval?"),
            ("--ddp_backend nccl", "leave it out"),
            ("--checkpoint.async_mode async", "--async-save"),
            ("--ckpt-convert-format torch", "leave it out"),
            ("sample --checkpoint c --num_samples 3", "--samples"),
            ("sample --checkpoint c --start x", "--prompt, or --prompt-file for a text in a file"),
            ("sample --checkpoint c --learning_rate 1", "see `trainer sample --help`"),
            ("--external_cuda_graph", "--enable-cuda-graph"),
            ("--moe_latent_size 64", "leave it out"),
            ("--no-bias-gelu", "see `trainer --help`"),
            ("--attention-mask", "see `trainer --help`"),
            ("--ls", "see `trainer --help`"),
        ] {
            assert_eq!(refused(flag).fix, fix, "{flag}");
        }
    }

    #[test]
    fn the_value_of_a_flag_may_look_like_a_flag() {
        assert!(refused("sample --checkpoint c --prompt --wombat --stpes").what.starts_with("--stpes is unknown"));
        assert!(refused("tokenize --stpes --wombat").to_string().contains("`trainer tokenize --help`"));
        let both = refused("tokenize --stpes -- --wombat").to_string();
        assert!(both.contains("--stpes is unknown") && both.contains("missing: --output"), "{both}");
    }
}
