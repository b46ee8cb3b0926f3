//! The number of tiles that dense feed-forward layers are computed in.

use common::UserError;
use engine::model::GptShape;

use crate::config::checks::{at_least, require};
use crate::config::lora_plan::is_in_feed_forward;
use crate::config::{Fp8Choice, RunConfig};

/// Checks the number of tiles for a model of that shape.
pub(super) fn check_mlp_tiles(config: &RunConfig, shape: &GptShape) -> Result<(), UserError> {
    let (key, tiles) = ("recompute.mlp_tiles", config.recompute.mlp_tiles);
    at_least(key, tiles, 1)?;
    let adapters = shape.lora.iter().flat_map(|lora| &lora.targets).any(|target| is_in_feed_forward(*target));
    for (excludes, other, rule, fix) in [
        (
            config.precision.fp8 != Fp8Choice::None,
            format!("precision.fp8 = \"{}\"", config.precision.fp8),
            "8-bit factors have scales and copies of all tokens",
            "leave out one of --mlp-tiles and --fp8-format",
        ),
        (
            shape.experts.is_some(),
            format!("model.experts = {}", config.model.experts),
            "layers of experts are not computed in tiles",
            "leave out --mlp-tiles",
        ),
        (
            adapters,
            format!("model.lora_target_modules = {:?}", config.model.lora_target_modules),
            "adapters of feed-forward layers are computed for all tokens at once",
            "leave out --mlp-tiles, or give only attention adapters",
        ),
    ] {
        let error = || UserError::new(format!("{key} = {tiles} with {other}"), rule, fix);
        require(tiles == 1 || !excludes, error)?;
    }
    Ok(())
}
