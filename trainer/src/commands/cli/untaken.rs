//! Flags that are unknown, or that are Megatron's and not taken: all of a command line at once, for scripts have many.

use std::ffi::OsString;

use clap::{Arg, Command};
use common::UserError;

use crate::config::megatron;

/// A flag that is not taken.
struct Untaken {
    /// It, and its value where that is what is wrong.
    flag: String,
    known: bool,
    rule: String,
    fix: String,
}

/// What is wrong with the flags that are not taken, if there are any.
pub(super) fn untaken(command: Command, arguments: &[OsString]) -> Option<UserError> {
    let found = find(command, arguments);
    if found.is_empty() {
        return None;
    }
    let (mut known, mut unknown) = (Vec::new(), Vec::new());
    for untaken in &found {
        if untaken.known { &mut known } else { &mut unknown }.push(untaken.flag.as_str());
    }
    let told = |flags: &[&str], one: &str, several: &str| match flags {
        [] => None,
        [flag] => Some(format!("{flag} is {one}")),
        flags => Some(format!("{} are {several}", flags.join(", "))),
    };
    let what = [told(&known, "not taken", "not taken"), told(&unknown, "unknown", "unknown")];
    Some(UserError::new(
        what.into_iter().flatten().collect::<Vec<_>>().join("; "),
        by_text(&found, "", |untaken| &untaken.rule),
        by_text(&found, "for ", |untaken| &untaken.fix),
    ))
}

fn find(mut command: Command, arguments: &[OsString]) -> Vec<Untaken> {
    command.build();
    let mut rest: Vec<&str> = arguments.iter().skip(1).map(|argument| argument.to_str().unwrap_or_default()).collect();
    let mut command = &command;
    let mut path = String::from("trainer");
    while let Some(of) = rest.first().and_then(|name| command.find_subcommand(name)) {
        path = format!("{path} {}", rest.remove(0));
        command = of;
    }
    let trains = command.get_arguments().any(|arg| arg.get_long() == Some("dry-run"));
    let names = |arg: &Arg| -> Vec<String> {
        let aliases = arg.get_all_aliases().into_iter().flatten();
        arg.get_long().into_iter().chain(aliases).map(str::to_string).collect()
    };
    let mut found: Vec<Untaken> = Vec::new();
    let mut at = 0;
    while at < rest.len() && rest[at] != "--" {
        let given = rest[at];
        at += 1;
        let Some(text) = given.strip_prefix("--") else { continue };
        let (name, attached) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        let value = attached.or(rest.get(at).copied());
        let instead = if trains { megatron::instead(name, value) } else { None };
        let arg = command.get_arguments().find(|arg| names(arg).iter().any(|known| known == name));
        // What follows may look like a flag and be the value.
        if attached.is_none() && arg.is_some_and(|arg| arg.is_allow_hyphen_values_set()) {
            at += 1;
        }
        let flag = match (arg, value) {
            (Some(_), Some(value)) => format!("--{name} {value}"),
            _ => format!("--{name}"),
        };
        let known = instead.is_some();
        let (rule, fix) = match (instead, arg) {
            (Some((rule, fix)), _) => (rule.into(), fix.into()),
            (None, Some(_)) => continue,
            (None, None) => {
                let rule = format!("only what `{path} --help` lists is known");
                let all = command.get_arguments().flat_map(names);
                (rule, slip_of(name, all).unwrap_or_else(|| format!("see `{path} --help`")))
            }
        };
        if found.iter().all(|before| before.flag != flag) {
            found.push(Untaken { flag, known, rule, fix });
        }
    }
    found
}

/// The name that was meant, where a letter or two are wrong or in each other's place.
fn slip_of(name: &str, known: impl Iterator<Item = String>) -> Option<String> {
    let near = known.map(|known| (strsim::osa_distance(name, &known), known));
    let (distance, nearest) = near.min_by_key(|(distance, _)| *distance)?;
    (distance <= (name.chars().count() / 3).min(2)).then(|| format!("did you mean --{nearest}?"))
}

/// Texts, each once, with the flags that it is for unless it is for all.
fn by_text(found: &[Untaken], before: &str, text_of: impl Fn(&Untaken) -> &String) -> String {
    let mut groups: Vec<(&String, Vec<&str>)> = Vec::new();
    for untaken in found {
        let text = text_of(untaken);
        match groups.iter_mut().find(|(known, _)| *known == text) {
            Some((_, flags)) => flags.push(&untaken.flag),
            None => groups.push((text, vec![&untaken.flag])),
        }
    }
    match &groups[..] {
        [(text, _)] => text.to_string(),
        groups => {
            let parts = groups.iter().map(|(text, flags)| format!("{before}{}: {text}", flags.join(", ")));
            parts.collect::<Vec<_>>().join("; ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::cli::parse;

    /// What of Megatron's flags its example of Llama 3 8B gives, with its numbers.
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
    fn a_script_of_megatrons_is_answered_once_and_what_is_left_without_the_flags_named_there_is_taken() {
        let error = refused(LLAMA);
        let (named, nothing) = error.what.split_once(" are not taken").unwrap();
        assert!(nothing.is_empty() && !error.to_string().contains("unknown"), "{error}");
        let named: Vec<&str> = named.split(", ").map(|flag| flag.split(' ').next().unwrap()).collect();
        assert!(
            ["--attention-backend", "--adam-beta1", "--tensorboard-dir"].iter().all(|flag| named.contains(flag)),
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
    fn another_name_is_proposed_for_a_slip_of_the_hand_alone() {
        for (flag, fix) in [
            ("--stpes", "did you mean --steps?"),
            ("--num_layers", "did you mean --num-layers?"),
            ("--no-bias-gelu", "see `trainer --help`"),
            ("--attention-mask", "see `trainer --help`"),
            ("--ls", "see `trainer --help`"),
        ] {
            assert_eq!(refused(flag).fix, fix, "{flag}");
        }
    }

    #[test]
    fn what_follows_a_flag_whose_value_may_begin_with_dashes_is_no_flag() {
        assert!(refused("sample --checkpoint c --prompt --wombat --stpes").what.starts_with("--stpes is unknown"));
        assert!(refused("tokenize --stpes -- --wombat").what.starts_with("--stpes is unknown"));
    }
}
