//! Learning from pairs of answers.

use common::{Mistakes, UserError};
use device::ops::Preference;
use engine::model::SampleRow;

use crate::config::checks::{fits_f32, require, within};
use crate::config::{PreferenceLoss, RunConfig};

/// The loss of pairs, if the run learns from some. Broken rules are added to `mistakes`.
pub(super) fn preference(config: &RunConfig, mistakes: &mut Mistakes) -> Option<Preference> {
    let (dpo, train) = (&config.dpo, &config.train);
    if !config.data.dpo {
        return None;
    }
    mistakes.keep(within("dpo.beta", dpo.beta, dpo.beta > 0.0, "it is above 0", "set dpo.beta = 0.1 (--dpo-beta)"));
    mistakes.keep(fits_f32("dpo.beta", dpo.beta));
    let smoothing = dpo.label_smoothing;
    mistakes.keep(within(
        "dpo.label_smoothing",
        smoothing,
        (0.0..0.5).contains(&smoothing),
        "it is the share of pairs that may be labelled the wrong way round: 0 or more, and below a half",
        "set dpo.label_smoothing = 0.1, or 0 for none (--dpo-label-smoothing)",
    ));
    mistakes.keep(require(smoothing == 0.0 || dpo.loss_type == PreferenceLoss::Sigmoid, || {
        UserError::new(
            format!("dpo.label_smoothing = {smoothing} with dpo.loss_type = \"{}\"", dpo.loss_type),
            "labels are smoothed in the loss of DPO",
            "leave it out, or set dpo.loss_type = \"sigmoid\" (--dpo-loss-type)",
        )
    }));
    mistakes.keep(require(train.z_loss_multiplier == 0.0, || {
        UserError::new(
            format!("train.z_loss_multiplier = {} with data.dpo", train.z_loss_multiplier),
            "a z-loss is a mean over targets, and the loss of pairs is one over pairs",
            "leave the z-loss out",
        )
    }));
    let context = config.parallel.context;
    mistakes.keep(require(context == 1, || {
        UserError::new(
            format!("parallel.context = {context} with data.dpo"),
            "the loss of a pair is of all its tokens, and ranks that divide a sequence have some each",
            "set parallel.context = 1 (--context-parallel-size)",
        )
    }));
    mistakes.keep(require(config.data.validation_sets.is_empty(), || {
        UserError::new(
            "data.validation_sets with data.dpo",
            "pairs have the log-probabilities of a reference model, which are computed for the data of the run alone",
            "give pairs to validate on with data.validation_path, or leave the sets out",
        )
    }));
    let seq = config.model.seq_length;
    mistakes.keep(require(seq.is_multiple_of(2), || {
        UserError::new(
            format!("model.seq_length = {seq} with data.dpo"),
            "the two answers of a pair share a sample equally",
            format!("set model.seq_length = {} (--seq-length)", seq + 1),
        )
    }));
    let beta = dpo.beta as f32;
    Some(match dpo.loss_type {
        PreferenceLoss::Sigmoid => Preference::Sigmoid { beta, label_smoothing: smoothing as f32 },
        PreferenceLoss::Ipo => Preference::Ipo { beta },
    })
}

/// The row of a sample of pairs.
pub(super) fn row(config: &RunConfig) -> SampleRow {
    SampleRow::pairs(config.model.seq_length, config.data.sft_packing).with_padding()
}
