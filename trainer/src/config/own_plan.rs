//! The part and the loss that a program adds, in a model.

use common::UserError;
use engine::model::GptShape;

use crate::config::RunConfig;
use crate::extensions::{Extensions, Own};

/// The shape with the part and the loss that the program adds, if the run names them.
pub(super) fn with_own(config: &RunConfig, shape: GptShape) -> Result<GptShape, UserError> {
    let added = Extensions::installed();
    let own_part = Own::chosen(added.parts, "part", config)?;
    let own_loss = Own::chosen(added.losses, "loss", config)?;
    let refuse = |own: &str, other: String, rule: &str| {
        Err(UserError::new(format!("{own} with {other}"), rule, "leave one of the two out"))
    };
    if own_part.is_some() && shape.mlp_tiles > 1 {
        let other = format!("recompute.mlp_tiles = {}", shape.mlp_tiles);
        return refuse("own.part", other, "tiles are for the feed-forward layers that the trainer has");
    }
    let has_terms = own_part.as_ref().is_some_and(|part| !part.terms().is_empty());
    if has_terms && config.parallel.sequence_parallel && config.parallel.tensor > 1 {
        let rule = "a part's term of the loss is counted over all rows, and ranks have some rows each";
        return refuse("own.part", "parallel.sequence_parallel".into(), rule);
    }
    if own_loss.is_some() {
        let rule = "a loss of the program's takes the place of cross-entropy over the whole vocabulary";
        for (excludes, other) in [
            (shape.preference.is_some(), "data.dpo or data.kto".to_string()),
            (shape.further_tokens.is_some(), "model.mtp_layers".into()),
            (shape.z_loss_multiplier != 0.0, "train.z_loss_multiplier".into()),
            (shape.logit_soft_cap.is_some(), "model.logit_soft_cap".into()),
            (config.parallel.tensor > 1, format!("parallel.tensor = {}", config.parallel.tensor)),
        ] {
            if excludes {
                return refuse("own.loss", other, rule);
            }
        }
    }
    Ok(GptShape { own_part, own_loss, ..shape })
}
