//! Layers that predict tokens beyond the next one.

use common::{Mistakes, UserError};
use engine::model::FurtherTokens;

use crate::config::checks::{at_most, fits_f32, require, within};
use crate::config::{PositionEmbedding, RunConfig};

/// The layers that predict further tokens, if the model has some. Broken rules are added to `mistakes`.
pub(super) fn further_tokens(config: &RunConfig, mistakes: &mut Mistakes) -> Option<FurtherTokens> {
    let (depths, factor) = (config.model.mtp_layers, config.train.mtp_loss_factor);
    if depths == 0 {
        return None;
    }
    mistakes.keep(at_most("model.mtp_layers", depths, FurtherTokens::MOST));
    let (key, rule) = ("train.mtp_loss_factor", "a factor is not negative");
    mistakes.keep(within(key, factor, factor >= 0.0, rule, "set train.mtp_loss_factor = 0.1 (--mtp-loss-factor)"));
    mistakes.keep(fits_f32(key, factor));
    let kind = config.data.kind();
    for (excludes, other, rule) in [
        (
            config.model.position == PositionEmbedding::Learned,
            "model.position = \"learned\"".to_string(),
            "a token further on is embedded without a position of its own",
        ),
        (
            kind.is_judged(),
            format!("data.{}", kind.option()),
            "the loss of answers is one of whole answers, and not of tokens",
        ),
        (
            config.model.lora_rank > 0,
            format!("model.lora_rank = {}", config.model.lora_rank),
            "adapters change the model that generates, and these layers are no part of it",
        ),
    ] {
        mistakes.keep(require(!excludes, || {
            UserError::new(format!("model.mtp_layers = {depths} with {other}"), rule, "set model.mtp_layers = 0")
        }));
    }
    Some(FurtherTokens { depths, factor })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigSources;

    #[test]
    fn what_further_tokens_do_not_go_with_is_refused() {
        for (settings, words) in [
            ("model.mtp_layers=5", "model.mtp_layers = 5"),
            ("model.mtp_layers=1 train.mtp_loss_factor=-1", "train.mtp_loss_factor = -1"),
            ("model.mtp_layers=1 model.position=learned", "model.mtp_layers = 1 with model.position = \"learned\""),
            ("model.mtp_layers=1 data.dpo=true", "model.mtp_layers = 1 with data.dpo"),
            ("model.mtp_layers=1 model.lora_rank=2", "model.mtp_layers = 1 with model.lora_rank = 2"),
            ("model.mtp_layers=2 train.mtp_loss_factor=0.3", ""),
            ("data.dpo=true", ""),
        ] {
            let sources = ConfigSources::of_pairs(&format!("model.position=rotary {settings}")).unwrap();
            let mut mistakes = Mistakes::default();
            let _ = further_tokens(&sources.resolve(), &mut mistakes);
            let error = mistakes.end().map_or_else(|error| error.what, |()| String::new());
            assert!(error.contains(words) && error.is_empty() == words.is_empty(), "{settings}: {error}");
        }
    }
}
