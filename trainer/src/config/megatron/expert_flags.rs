//! The table of Megatron's flags about mixtures of experts. Those that take the same values as an option of ours are its
//! aliases in the option table.

use super::layer_pattern::expert_pattern;
use super::meaning::Meaning::{self, SetsByValue, SetsUnless, Translates};
use crate::config::RunConfig;

const BALANCING: &[(&str, &[(&str, &str)])] = &[
    ("aux_loss", &[("train.balance_loss_over", "microbatch")]),
    ("seq_aux_loss", &[("train.balance_loss_over", "sequence")]),
    ("global_aux_loss", &[("train.balance_loss_over", "global_batch")]),
    ("none", &[("train.balance_loss_multiplier", "0.0")]),
];

/// The groups that a token chooses from. `None` if Megatron's scores of groups are sums of other than two.
fn groups_per_token(text: &str, run: &RunConfig) -> Option<String> {
    let groups: usize = text.parse().ok()?;
    let has_one = run.model.expert_groups == 1 && groups == 1;
    (has_one || groups > 0 && run.model.experts_per_token / groups == 2).then(|| groups.to_string())
}

/// The flags, without dashes in front.
#[rustfmt::skip]
pub const EXPERT_FLAGS: &[(&str, Meaning)] = &[
    ("moe-layer-freq", Translates(
        "model.expert_pattern",
        "1 for every VALUE-th block from the first, or to VALUE, a list with 1 or 0 for each block of the model",
        "--moe-layer-freq 2, or --moe-layer-freq ([0]*1+[1]*3) for four blocks",
        expert_pattern,
    )),
    ("moe-router-load-balancing-type", SetsByValue(BALANCING, "a balance loss compares the loads of a microbatch, of each sequence, or of the global batch", "--moe-router-load-balancing-type aux_loss, seq_aux_loss, global_aux_loss or none")),
    ("moe-router-pre-softmax", SetsUnless(
        ("model.router_normalise", "false"),
        ("model.router_score", "sigmoid"),
        "weights from sigmoids are divided by their sum, as in Megatron; --router-normalise=false leaves them as they are",
    )),

    ("moe-router-group-topk", Translates(
        "model.expert_groups_per_token",
        "VALUE, which is half of --moe-router-topk: a group's score is the sum of its two highest, and Megatron's of as many as \
         a token takes from a group",
        "--moe-router-topk 8 --moe-router-group-topk 4",
        groups_per_token,
    )),
];
