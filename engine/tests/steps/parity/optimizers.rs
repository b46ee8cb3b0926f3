//! Muon and SGD beside the AdamW of all other cases, and groups of parameters.

use engine::model::{GptShape, gpt};
use engine::precision::Precision;

use super::case::case;
use super::{BF16, F32, MICROBATCHES, STEPS, Tolerances, compare};
use crate::models::{Kind, MLP_SIZES, tiny_gpt, tiny_llama};
use crate::optimizer::rate_groups::own;

fn mlp_case() -> serde_json::Value {
    serde_json::json!({
        "kind": "mlp", "layer_sizes": MLP_SIZES, "steps": STEPS, "microbatches": MICROBATCHES,
        "optimizer": {
            "kind": "sgd", "lr": vec![0.01; STEPS], "momentum": 0.9, "weight_decay": 0.1, "clip": 1.0,
        },
    })
}

/// Of training by Muon: five iterations stretch rounding in singular values near 0 by up to 3.4^5.
const MUON: Tolerances = Tolerances { loss: 1e-4, norms: 1e-3, weights: 2e-3, ..F32 };

/// [`case`] by Muon.
fn muon_case(kind: &str, shape: &GptShape) -> serde_json::Value {
    let mut case = case(kind, shape);
    let settings = serde_json::json!({"kind": "muon", "momentum": 0.95, "ns_steps": 5});
    for (key, value) in settings.as_object().unwrap() {
        case["optimizer"][key] = value.clone();
    }
    case
}

/// Trains a transformer of this shape by Muon on both sides.
fn by_muon(name: &str, kind: &str, shape: GptShape) {
    let case = muon_case(kind, &shape);
    compare(name, Kind::Gpt, Some(shape), &MUON, case);
}

/// The case with parameters of these names at a learning rate of their own, and some at a weight decay of their own.
fn with_rates(mut case: serde_json::Value, names: impl IntoIterator<Item = String>) -> serde_json::Value {
    let rate = |name: String| {
        let (multiplier, decay) = own(&name)?;
        Some((name, serde_json::json!([f64::from(multiplier), decay.map(f64::from)])))
    };
    case["optimizer"]["own"] = names.into_iter().filter_map(rate).collect::<serde_json::Map<_, _>>().into();
    case
}

#[test]
fn groups_with_rates_and_decays_of_their_own_agree_with_pytorchs() {
    let shape = tiny_gpt(0.0, Precision::F32);
    let names = || gpt(tiny_gpt(0.0, Precision::F32)).specs.into_iter().map(|spec| spec.name);
    compare("gpt-rates", Kind::Gpt, Some(shape.clone()), &F32, with_rates(case("gpt", &shape), names()));
    let muon = with_rates(muon_case("gpt", &shape), names());
    compare("gpt-muon-rates", Kind::Gpt, Some(shape), &MUON, muon);
    let names =
        (0..MLP_SIZES.len() - 1).flat_map(|layer| ["weight", "bias"].map(|name| format!("layers.{layer}.{name}")));
    compare("mlp-rates", Kind::Mlp, None, &F32, with_rates(mlp_case(), names));
}

#[test]
fn models_by_muon_agree_with_pytorch_in_losses_and_final_weights() {
    by_muon("gpt-muon", "gpt", tiny_gpt(0.0, Precision::F32));
    by_muon("llama-muon", "llama", GptShape { kv_heads: 1, ..tiny_llama(0.0, Precision::F32) });
}

#[test]
fn an_mlp_by_sgd_agrees_with_pytorch_in_losses_gradients_and_final_weights() {
    for within in [F32, BF16] {
        compare(&format!("mlp-{}", within.precision), Kind::Mlp, None, &within, mlp_case());
    }
}
