//! Checks of settings with ranks that divide sequences.

use common::UserError;
use data::DataConfig;
use engine::model::{AttentionKind, ContextTransfers, GptShape};

use super::layout::brings_own_tokens;
use crate::config::checks::require;
use crate::config::{ContextTransfersChoice, ParallelConfig, RunConfig};

/// Tokens of a microbatch that a rank has.
pub(crate) fn tokens_here(config: &RunConfig) -> usize {
    config.train.micro_batch_size * config.model.seq_length / config.parallel.context.max(1)
}

/// Fails unless ranks can divide the sequences of a transformer as the configuration asks.
///
/// # Errors
/// The first rule that is broken.
pub(super) fn check_context(config: &RunConfig, shape: &GptShape) -> Result<(), UserError> {
    let context = config.parallel.context;
    if context == 1 {
        return Ok(());
    }
    check_length(config)?;
    require(shape.attention_dropout == 0.0, || {
        UserError::new(
            format!("model.attention_dropout = {} with parallel.context = {context}", shape.attention_dropout),
            "no rank has all probabilities of a sequence",
            "set model.attention_dropout = 0; model.hidden_dropout is not restricted",
        )
    })
}

impl From<ContextTransfers> for ContextTransfersChoice {
    fn from(way: ContextTransfers) -> ContextTransfersChoice {
        match way {
            ContextTransfers::Keys => ContextTransfersChoice::Keys,
            ContextTransfers::Ring => ContextTransfersChoice::Ring,
            ContextTransfers::Heads => ContextTransfersChoice::Heads,
        }
    }
}

/// What ranks that divide sequences exchange in attention.
///
/// # Errors
/// Heads that the ranks do not divide.
pub(super) fn transfers(config: &RunConfig, shape: &GptShape) -> Result<ContextTransfers, UserError> {
    let ParallelConfig { tensor, context, context_transfers, .. } = config.parallel;
    // Heads of latent attention have keys and values of their own.
    let keys = if matches!(shape.attention, AttentionKind::Latent(_)) { shape.heads } else { shape.kv_heads };
    let own = [shape.heads / tensor, (keys / tensor).max(1)];
    let suffice = own.iter().all(|heads| heads.is_multiple_of(context));
    let sees_all = |block: usize| shape.mask(block).within(config.model.seq_length).window.is_none();
    match context_transfers {
        ContextTransfersChoice::Auto if has_documents(config) && suffice => Ok(ContextTransfers::Heads),
        ContextTransfersChoice::Auto if !has_documents(config) && (0..shape.layers).any(sees_all) => {
            Ok(ContextTransfers::Ring)
        }
        ContextTransfersChoice::Auto | ContextTransfersChoice::Keys => Ok(ContextTransfers::Keys),
        ContextTransfersChoice::Ring => Ok(ContextTransfers::Ring),
        ContextTransfersChoice::Heads if suffice => Ok(ContextTransfers::Heads),
        ContextTransfersChoice::Heads => Err(UserError::new(
            format!(
                "parallel.context_transfers = \"heads\" with parallel.context = {context} and, on a rank, {own:?} heads"
            ),
            "parallel.context divides a rank's heads, and its key and value heads",
            "set parallel.context_transfers = \"keys\", or a smaller parallel.context",
        )),
    }
}

/// Whether samples hold several documents that do not see each other.
pub fn has_documents(config: &RunConfig) -> bool {
    let DataConfig { dpo, kto, sft_packing, reset_attention_mask, .. } = config.data;
    dpo || kto || sft_packing > 1 || reset_attention_mask
}

fn check_length(config: &RunConfig) -> Result<(), UserError> {
    let (context, length) = (config.parallel.context, config.model.seq_length);
    let works = |length: usize, context: usize| {
        let divides = config.parallel.sequence_parallel || brings_own_tokens(config);
        let of_tensor = if divides { config.parallel.tensor } else { 1 };
        let even = length.is_multiple_of(2 * context);
        even && (config.train.micro_batch_size * length / context).is_multiple_of(of_tensor)
    };
    require(works(length, context), || {
        let longer = (length..).find(|&length| works(length, context)).unwrap_or(length);
        let divides = |&fewer: &usize| context.is_multiple_of(fewer) && (fewer == 1 || works(length, fewer));
        let fewer = (1..context).rev().find(divides).unwrap_or(1);
        UserError::new(
            format!("model.seq_length = {length} with parallel.context = {context}"),
            "a rank has two equal parts of each sequence, and with parallel.sequence_parallel or parallel.expert_tensor = 1 tensor \
             ranks divide them",
            format!("set model.seq_length = {longer}, or parallel.context = {fewer}"),
        )
    })
}

#[cfg(test)]
mod tests {
    use crate::config::ConfigSources;
    use crate::config::plan::RunPlan;

    #[test]
    fn sequences_that_ranks_cannot_divide_are_refused_with_sizes_that_work() {
        let problem = |settings: &str, ranks: usize| {
            let sources = ConfigSources::of_pairs(settings).unwrap();
            RunPlan::new(sources.resolve(), ranks).err().map(|error| error.to_string())
        };
        for (settings, ranks, words) in [
            ("model.seq_length=60 parallel.context=4", 4, "set model.seq_length = 64, or parallel.context = 2"),
            ("model.seq_length=63 parallel.context=2", 2, "set model.seq_length = 64, or parallel.context = 1"),
            (
                "model.seq_length=12 parallel.context=2 parallel.tensor=4 parallel.sequence_parallel=true \
                 train.micro_batch_size=1",
                8,
                "set model.seq_length = 16, or parallel.context = 1",
            ),
            (
                "model.preset=tiny-llama parallel.context=4 parallel.context_transfers=heads",
                4,
                "set parallel.context_transfers = \"keys\"",
            ),
            ("parallel.context=2 model.attention_dropout=0.1", 2, "set model.attention_dropout = 0"),
            ("parallel.context=3 parallel.pipeline=2", 8, "start a multiple of 6 ranks"),
            ("parallel.context=2 model.kind=mlp model.layer_sizes=[4,4]", 2, "set parallel.context = 1"),
            (
                "parallel.context=4 data.sft=true data.seq_length_buckets=[36,64] model.seq_length=64",
                4,
                "data.seq_length_buckets has 36",
            ),
        ] {
            let told = problem(&format!("{settings} train.global_batch_size=8"), ranks);
            assert!(told.as_ref().is_some_and(|told| told.contains(words)), "{settings}: {told:?}");
        }
        let works = "model.seq_length=64 model.hidden_dropout=0.1 parallel.context=4 train.global_batch_size=8";
        assert_eq!(problem(works, 4), None);
        let experts =
            "model.preset=tiny-llama model.experts=4 model.experts_per_token=2 model.expert_capacity_factor=1.0";
        assert_eq!(problem(&format!("{experts} parallel.context=2 train.global_batch_size=8"), 4), None);
    }
}
