//! How a run's ranks are laid out, checked against the model.

use parallel::Grid;

use crate::config::{RunConfig, UserError};
use crate::model::GptShape;

/// The grid of a configuration on `ranks` ranks.
///
/// # Errors
/// A layer that cannot be shared, or ranks that cannot be divided.
pub fn grid(config: &RunConfig, ranks: usize) -> Result<Grid, UserError> {
    let parallel = &config.parallel;
    if parallel.pipeline != 1 {
        return Err(UserError::new(
            format!("parallel.pipeline = {}", parallel.pipeline),
            "only tensor and data parallelism are there so far (see the README's status table)",
            "set parallel.pipeline = 1; more ranks share the batch",
        ));
    }
    let tensor = parallel.tensor;
    if tensor > 1 && config.model.kind == "mlp" {
        return Err(UserError::new(
            format!("parallel.tensor = {tensor} with model.kind = \"mlp\""),
            "only transformers have layers that ranks can share",
            "set parallel.tensor = 1",
        ));
    }
    Grid::new(ranks, tensor, 1).ok_or_else(|| {
        let fitting = (1..=tensor.min(ranks)).rev().find(|&fewer| ranks.is_multiple_of(fewer)).unwrap_or(1);
        UserError::new(
            format!("parallel.tensor = {tensor} on {ranks} ranks"),
            "the number of ranks is a multiple of parallel.tensor, which is at least 1",
            format!("set parallel.tensor = {fitting}, or start another number of ranks"),
        )
    })
}

/// Fails unless what layers are cut into is the same for all ranks that share them.
///
/// # Errors
/// The first size that is not a multiple of `parallel.tensor`.
pub fn check(config: &RunConfig, shape: &GptShape) -> Result<(), UserError> {
    let tensor = config.parallel.tensor;
    for (key, value) in [("heads", shape.heads), ("kv_heads", shape.kv_heads), ("ffn", shape.ffn)] {
        if !value.is_multiple_of(tensor) {
            return Err(UserError::new(
                format!("model.{key} = {value} with parallel.tensor = {tensor}"),
                format!("model.{key} is a multiple of parallel.tensor: each rank has as many"),
                format!("set model.{key} = {}, or a smaller parallel.tensor", value.next_multiple_of(tensor)),
            ));
        }
    }
    let tokens = shape.batch * shape.seq;
    if config.parallel.sequence_parallel && !tokens.is_multiple_of(tensor) {
        return Err(UserError::new(
            format!("train.micro_batch_size x model.seq_length = {tokens} with parallel.tensor = {tensor}"),
            "with parallel.sequence_parallel the tokens of a microbatch are a multiple of parallel.tensor",
            format!(
                "set model.seq_length = {}, or parallel.sequence_parallel = false",
                shape.seq.next_multiple_of(tensor)
            ),
        ));
    }
    Ok(())
}
