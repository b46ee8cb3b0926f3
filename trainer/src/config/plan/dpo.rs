//! Learning from judged answers: pairs, or answers with a label.

use common::{Mistakes, UserError};
use data::RecordKind;
use device::ops::Preference;
use engine::model::{References, SampleRow};

use crate::config::checks::{fits_f32, require, within};
use crate::config::{PreferenceLoss, RunConfig};

/// The loss of judged answers, if the run learns from some. Broken rules are added to `mistakes`.
pub(super) fn preference(config: &RunConfig, mistakes: &mut Mistakes) -> Option<Preference> {
    let (dpo, train, kind) = (&config.dpo, &config.train, config.data.kind());
    if !kind.is_judged() {
        return None;
    }
    let with_data = format!("with data.{}", kind.option());
    mistakes.keep(within("dpo.beta", dpo.beta, dpo.beta > 0.0, "it is above 0", "set dpo.beta = 0.1 (--dpo-beta)"));
    mistakes.keep(fits_f32("dpo.beta", dpo.beta));
    mistakes.keep(require(train.z_loss_multiplier == 0.0, || {
        UserError::new(
            format!("train.z_loss_multiplier = {} {with_data}", train.z_loss_multiplier),
            "a z-loss is a mean over targets, and the loss of pairs is one over pairs, that of labelled answers one over answers",
            "leave the z-loss out",
        )
    }));
    mistakes.keep(require(config.data.validation_sets.is_empty(), || {
        UserError::new(
            format!("data.validation_sets {with_data}"),
            "answers have the log-probabilities of a reference model, which are computed for the data of the run alone",
            "give data to validate on with data.validation_path, or leave the sets out",
        )
    }));
    check_references(config, mistakes);
    let beta = dpo.beta as f32;
    if kind == RecordKind::Labelled {
        for (key, weight) in
            [("dpo.desirable_weight", dpo.desirable_weight), ("dpo.undesirable_weight", dpo.undesirable_weight)]
        {
            mistakes.keep(within(key, weight, weight >= 0.0, "a weight is 0 or more", &format!("set {key} = 1")));
            mistakes.keep(fits_f32(key, weight));
        }
        let (desirable, undesirable) = (dpo.desirable_weight as f32, dpo.undesirable_weight as f32);
        return Some(Preference::Kto { beta, desirable, undesirable });
    }
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
    let seq = config.model.seq_length;
    mistakes.keep(require(seq.is_multiple_of(2), || {
        UserError::new(
            format!("model.seq_length = {seq} with data.dpo"),
            "the two answers of a pair share a sample equally",
            format!("set model.seq_length = {} (--seq-length)", seq + 1),
        )
    }));
    Some(match dpo.loss_type {
        PreferenceLoss::Sigmoid => Preference::Sigmoid { beta, label_smoothing: smoothing as f32 },
        PreferenceLoss::Ipo => Preference::Ipo { beta },
    })
}

/// Fails if steps cannot compute the references that the configuration asks for.
fn check_references(config: &RunConfig, mistakes: &mut Mistakes) {
    if !config.dpo.references_in_step() {
        return;
    }
    mistakes.keep(require(config.model.lora_rank > 0 || config.data.kto, || {
        UserError::new(
            "dpo.references = \"step\" without adapters",
            "a step computes the reference by the model without its adapters; without them the first weights are gone",
            "add adapters (--lora-rank), or leave --dpo-references out: a file then keeps the references",
        )
    }));
    mistakes.keep(require(!config.data.kto, || {
        UserError::new(
            "dpo.references = \"step\" with data.kto",
            "the references of answers with a label are computed before the first step, and kept",
            "leave --dpo-references out, or name a file",
        )
    }));
}

/// The row of a sample of judged answers.
pub(super) fn row(config: &RunConfig) -> SampleRow {
    let (seq, most) = (config.model.seq_length, config.data.sft_packing);
    if config.data.kind() == RecordKind::Labelled {
        return SampleRow::labelled(seq, most);
    }
    let references = if config.dpo.references_in_step() { References::WithoutAdapters } else { References::InRow };
    SampleRow::pairs(seq, most, references).with_padding()
}
