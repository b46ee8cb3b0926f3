//! The number of pieces in which a loss is computed.

use common::UserError;

use crate::config::RunConfig;
use crate::config::checks::require;
use crate::config::plan::ranks::tokens_here;

/// A piece's logits may take the memory of this many tensors of (tokens, hidden) for each block. A block keeps 16 and
/// more of them for backward, if nothing is recomputed.
const LOGIT_TENSORS_PER_BLOCK: usize = 3;

/// The number of pieces in which the loss is computed: as asked for, or the fewest that keep a piece's logits within 1
/// GiB or within [`LOGIT_TENSORS_PER_BLOCK`]. Each piece reads and writes the gradient of the token table once more.
/// The number determines the order in which that gradient is summed. So it does not depend on the GPU, on stages,
/// graphs or recomputation.
pub(super) fn loss_pieces(config: &RunConfig) -> Result<usize, UserError> {
    let rows = tokens_here(config);
    // The loss of a pair or an answer is of all its tokens.
    let kind = config.data.kind();
    let parts = if kind.is_judged() { config.train.micro_batch_size } else { rows };
    if let Some(pieces) = config.model.loss_pieces {
        require(pieces > 0 && parts.is_multiple_of(pieces), || {
            if kind.is_judged() {
                let data = kind.option();
                return UserError::new(
                    format!("model.loss_pieces = {pieces} with {parts} samples of a microbatch, and data.{data}"),
                    "each piece has whole samples: the loss of a pair or an answer is of all its tokens",
                    "set a number that divides train.micro_batch_size, or leave it unset",
                );
            }
            UserError::new(
                format!("model.loss_pieces = {pieces} with {rows} tokens of a microbatch"),
                "a microbatch's tokens are divided into equal pieces",
                "set a power of two, or leave it unset",
            )
        })?;
        return Ok(pieces);
    }
    let column_bytes = config.precision.compute.activations().size() * rows / config.parallel.tensor.max(1);
    let blocks = config.model.layers * config.model.hidden * LOGIT_TENSORS_PER_BLOCK;
    let limit = blocks.saturating_mul(column_bytes).max(1 << 30);
    let logits = config.model.vocab.saturating_mul(column_bytes);
    let enough = |pieces: &usize| parts.is_multiple_of(*pieces) && logits / pieces <= limit;
    Ok((0..usize::BITS).map(|power| 1 << power).take_while(|pieces| *pieces <= parts).find(enough).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigSources;

    #[test]
    fn logits_are_in_one_piece_unless_they_take_more_than_the_blocks_spare() {
        let pieces = |preset: &str, micro: &str, more: &[(&str, &str)]| {
            let mut sources = ConfigSources::default();
            let settings = [("model.preset", preset), ("train.micro_batch_size", micro), ("precision.compute", "bf16")];
            settings.iter().chain(more).for_each(|(key, value)| sources.set(key, value, "test").unwrap());
            loss_pieces(&sources.resolve()).unwrap()
        };
        assert_eq!(pieces("gpt2-124m", "4", &[]), 1);
        // Logits of 6.1 GiB; three tensors for each of 12 blocks are 3.4 GiB.
        for more in [("parallel.pipeline", "2"), ("recompute.granularity", "full"), ("cuda_graph.enable", "true")] {
            assert_eq!(pieces("gpt2-124m", "64", &[more]), 2, "{more:?}");
        }
        assert_eq!(pieces("gpt-1.3b", "8", &[]), 1);
        assert_eq!(pieces("gpt-1.3b", "8", &[("model.loss_pieces", "4")]), 4);
    }
}
