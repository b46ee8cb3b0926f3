//! Flags that are unknown, or that Megatron has and we do not support. Scripts have many flags, so all of them are named at
//! once, in a line each.

use std::ffi::OsString;

use clap::{Arg, Command};
use common::UserError;

use crate::config::{megatron, other_names};

/// A flag that is not accepted.
struct Unsupported {
    /// The flag, with its value if that is what is wrong.
    flag: String,
    /// Whether it is Megatron's.
    is_megatrons: bool,
    rule: String,
    fix: String,
}

/// The error for all flags of a command line that are not accepted, if there are any.
pub(super) fn refuse(command: Command, arguments: &[OsString]) -> Option<UserError> {
    let (found, path) = find(command, arguments);
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
    Some(error.with_each(lines(&found)))
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

/// The flags that are not accepted, and the command that they were given to.
fn find(mut command: Command, arguments: &[OsString]) -> (Vec<Unsupported>, String) {
    command.build();
    let mut rest: Vec<&str> = arguments.iter().skip(1).map(|argument| argument.to_str().unwrap_or_default()).collect();
    let mut command = &command;
    let mut path = String::from("trainer");
    while let Some(of) = rest.first().and_then(|name| command.find_subcommand(name)) {
        path = format!("{path} {}", rest.remove(0));
        command = of;
    }
    let has_run_flags = command.get_arguments().any(|arg| arg.get_long() == Some("dry-run"));
    let names = |arg: &Arg| -> Vec<String> {
        let aliases = arg.get_all_aliases().into_iter().flatten();
        arg.get_long().into_iter().chain(aliases).map(str::to_string).collect()
    };
    let mut found: Vec<Unsupported> = Vec::new();
    let mut at = 0;
    while at < rest.len() && rest[at] != "--" {
        let given = rest[at];
        at += 1;
        let Some(text) = given.strip_prefix("--") else { continue };
        let (name, attached) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        let value = attached.or(rest.get(at).copied());
        let megatrons = if has_run_flags { megatron::unsupported(&name.replace('_', "-"), value) } else { None };
        let arg = command.get_arguments().find(|arg| names(arg).iter().any(|known| known == name));
        // The next argument is this flag's value, even if it looks like a flag.
        if attached.is_none() && arg.is_some_and(|arg| arg.is_allow_hyphen_values_set()) {
            at += 1;
        }
        let flag = match (arg, value) {
            (Some(_), Some(value)) => format!("--{name} {value}"),
            _ => format!("--{name}"),
        };
        let is_megatrons = megatrons.is_some();
        let other = if has_run_flags { other_names::ours(name) } else { None };
        let (rule, fix) = match (megatrons, arg) {
            (Some((rule, fix)), _) => (rule.into(), fix.into()),
            (None, Some(_)) => continue,
            (None, None) if path == "trainer launch" => (
                format!("only what `{path} --help` lists is known"),
                "put -- before it: the trainer's flags follow --".into(),
            ),
            (None, None) if let Some((whose, ours)) = other => (format!("it is {whose}'s name"), format!("--{ours}")),
            (None, None) => {
                let rule = format!("`{path} --help` lists all flags");
                let all = command.get_arguments().flat_map(names);
                (rule, similar(name, all).unwrap_or_else(|| format!("see `{path} --help`")))
            }
        };
        if found.iter().all(|before| before.flag != flag) {
            found.push(Unsupported { flag, is_megatrons, rule, fix });
        }
    }
    (found, path)
}

/// The flag that differs from `name` in one or two letters, or in their order.
fn similar(name: &str, known: impl Iterator<Item = String>) -> Option<String> {
    let near = known.map(|known| (strsim::osa_distance(name, &known), known));
    let (distance, nearest) = near.min_by_key(|(distance, _)| *distance)?;
    (distance <= (name.chars().count() / 3).min(2)).then(|| format!("did you mean --{nearest}?"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::cli::parse;

    /// The flags of Megatron's example for Llama 3 8B, with its numbers.
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
        // Each flag is in one line, which says why and what to do.
        let in_lines: usize = error.each.iter().map(|line| line.split_once(": ").unwrap().0.split(", ").count()).sum();
        assert_eq!(in_lines, named.len());
        assert!(error.each.iter().all(|line| line.starts_with("--") && line.contains(". Fix: ")), "{error}");
        assert!(
            ["--lr-decay-samples", "--decoupled-lr", "--exit-duration-in-mins"].iter().all(|flag| named.contains(flag)),
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
            ("--gradient_checkpointing", "--recompute-granularity"),
            ("--external_cuda_graph", "--enable-cuda-graph"),
            ("--num_experts 4", "leave it out"),
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
        assert!(refused("tokenize --stpes --wombat").rule.contains("`trainer tokenize --help`"));
        assert!(refused("tokenize --stpes -- --wombat").what.starts_with("--stpes is unknown"));
    }
}
