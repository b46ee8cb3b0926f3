//! The trainer against PyTorch on the CPU: from the same weights and batches the same losses, gradients and final
//! weights. `reference.py` beside this file spells the models out or takes them from `transformers`; `./x test`
//! installs the packages that it needs.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use device::ops::{NormKind, Rule};
use device::{DType, Device, HostValues, bf16};
use engine::graph_options::GraphOptions;
use engine::model::{
    AttentionKind, BalanceGroup, FeedForward, FurtherTokens, GptShape, Latent, Lora, LoraTarget, Position, Scaling,
    gpt, is_adapter,
};
use engine::optimizer::{Muon, ParamGroup};
use engine::params::Param;
use engine::precision::Precision;

use crate::exchange::{Arrays, reference, relative_l2};
use crate::experts::{tiny_deepseek, tiny_qwen3_moe, tiny_shared};
use crate::lora::{adapters, all_targets, move_adapters};
use crate::models::{
    Kind, MICRO_BATCH, MLP_SIZES, Run, SEQ, VOCAB, tiny_gemma2, tiny_gemma3, tiny_gpt, tiny_llama, tiny_mistral,
    tiny_olmo2, tiny_qwen2, tiny_qwen3,
};
use crate::optimizer::muon::muon_groups;
use crate::optimizer::rate_groups::{own, with_own};

const STEPS: usize = 20;
const MICROBATCHES: usize = 3;

/// How close two trainings have to be.
pub struct Tolerances {
    /// The type our layers precision in.
    precision: Precision,
    /// Of each step's loss, relative.
    loss: f64,
    /// Of the first step's gradients, relative L2.
    grads: f64,
    /// Of all steps' gradient norms, relative L2; they follow the weights as these drift apart.
    norms: f64,
    /// Of the final weights, relative L2.
    weights: f64,
}

/// A few times the reference's own difference between f32 and f64 on these cases: losses 1e-7, gradients 1e-6, final
/// weights 3e-5 under AdamW, because its first updates have the learning rate's size however small a gradient is.
// Each processor adds in an order of its own, and twenty steps of training magnify that: by up to 1.1e-6 of a loss, and of
// Gemma 3's norms by 6.5e-5 on one processor and less than 5e-5 on others.
pub const F32: Tolerances =
    Tolerances { precision: Precision::F32, loss: 4e-6, grads: 5e-6, norms: 2e-4, weights: 2e-4 };

/// bf16 layers against the reference in f32: 8 bits of precision are 4e-3 a rounding, a gradient has met a few, and
/// AdamW turns the sign of a small gradient into a whole step: most in the products of queries and keys.
pub const BF16: Tolerances =
    Tolerances { precision: Precision::Bf16, loss: 2e-2, grads: 5e-2, norms: 1e-1, weights: 3e-1 };

/// A range of columns of a microbatch's rows.
fn columns<T: Clone>(rows: &[T], width: usize, microbatch: usize, range: Range<usize>) -> Vec<T> {
    let rows = rows.chunks(width).skip(microbatch * MICRO_BATCH).take(MICRO_BATCH);
    rows.flat_map(|row| row[range.clone()].to_vec()).collect()
}

/// Trains here in the type of `within` and there in f32, and compares.
fn compare(case_name: &str, kind: Kind, shape: Option<GptShape>, within: &Tolerances, case: serde_json::Value) {
    let options = GraphOptions::default();
    let is_muon = case["optimizer"]["kind"] == "muon";
    let usual = || match case["optimizer"]["kind"].as_str() {
        Some("muon") => muon_groups(),
        Some("sgd") => ParamGroup::decay_matrices(Rule::Sgd { momentum: 0.9 }, 0.1),
        _ => ParamGroup::decay_matrices(Rule::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 }, 0.1),
    };
    // Parameters with a learning rate of their own.
    let rates = case["optimizer"]["own"].as_object();
    let names: Vec<String> = rates.into_iter().flat_map(|rates| rates.keys().cloned()).collect();
    let lora = shape.as_ref().and_then(|shape| shape.lora.clone());
    let run = Run {
        groups: Some(with_own(usual(), &names, own)),
        dropout: 0.0,
        precision: within.precision,
        frozen: if lora.is_some() { |name| !is_adapter(name) } else { |_| false },
        shape: shape.clone(),
        steps: STEPS,
        learning_rate: case["optimizer"]["lr"][0].as_f64().unwrap() as f32,
        ..Run::new(kind, MICROBATCHES, options)
    };
    let device = run.device();
    let mut stage = run.stage(&device);
    let mut arrays = Arrays::default();
    move_adapters(&stage);
    for (spec, param) in stage.params().iter() {
        arrays.f32(spec.name.clone(), spec.shape.sizes(), &master_values(&device, param));
    }
    let (mut losses, mut added, mut norms, mut grads) = (Vec::new(), Vec::new(), Vec::new(), HashMap::new());
    for step in 0..STEPS {
        let settings = run.settings(step);
        let batch = crate::models::batch(kind, settings.first_sample, MICROBATCHES);
        for m in 0..MICROBATCHES {
            let name = |what: &str| format!("batch.{step}.{m}.{what}");
            match &batch {
                HostValues::I32(tokens) => {
                    let columns = |range| columns(tokens, SEQ + 1, m, range);
                    arrays.i32(name("tokens"), &[MICRO_BATCH, SEQ], &columns(0..SEQ));
                    arrays.i32(name("targets"), &[MICRO_BATCH, SEQ], &columns(1..SEQ + 1));
                }
                HostValues::F32(values) => {
                    let (features, outputs) = (MLP_SIZES[0], MLP_SIZES[3]);
                    let columns = |range| columns(values, features + outputs, m, range);
                    arrays.f32(name("inputs"), &[MICRO_BATCH, features], &columns(0..features));
                    arrays.f32(name("targets"), &[MICRO_BATCH, outputs], &columns(features..features + outputs));
                }
            }
        }
        let result = stage.train_step(settings, Some(&batch)).unwrap().wait().unwrap();
        losses.push(result.loss);
        added.push(result.added);
        norms.push(f64::from(result.grad_norm));
        if step == 0 {
            for (spec, param) in stage.params().iter() {
                let Some(grad) = param.grad else { continue };
                let grad = device.download::<f32>(&grad).unwrap();
                grads.insert(spec.name.clone(), grad.into_iter().map(f64::from).collect::<Vec<_>>());
            }
        }
    }
    let theirs = reference("reference.py", case_name, &case, &arrays);

    for (step, (ours, theirs)) in losses.iter().zip(&theirs["loss"]).enumerate() {
        assert!((ours / theirs - 1.0).abs() < within.loss, "loss of step {step}: {ours} here, {theirs} in PyTorch");
    }
    let terms = ["z_loss", "balance_loss", "router_z_loss", "mtp_1_loss", "mtp_2_loss"]
        .into_iter()
        .filter(|term| theirs[*term][0] != 0.0);
    assert_eq!(terms.clone().collect::<BTreeSet<_>>(), added[0].keys().copied().collect());
    for term in terms {
        for (step, (ours, theirs)) in added.iter().map(|added| added[term]).zip(&theirs[term]).enumerate() {
            assert!(
                (ours / theirs - 1.0).abs() < within.loss,
                "{term} of step {step}: {ours} here, {theirs} in PyTorch"
            );
        }
    }
    // Adapters of a model that was never trained have little to learn.
    assert!(lora.is_some() || losses[STEPS - 1] < 0.98 * losses[0], "nothing was learned: {losses:?}");
    assert!(relative_l2(&norms, &theirs["grad_norm"]) < within.norms, "norms {norms:?} and {:?}", theirs["grad_norm"]);
    for (spec, param) in stage.params().iter().filter(|(spec, _)| !spec.frozen) {
        let (name, real) = (&spec.name, spec.shape.elements() / spec.shape.sizes()[0] * spec.rows);
        // Muon writes the direction of its update over the gradient.
        let is_overwritten = is_muon && Muon::takes(spec);
        let grad = relative_l2(&grads[name][..real], &theirs[&format!("grad.{name}")][..real]);
        assert!(is_overwritten || grad < within.grads, "gradient of {name} differs by {grad:.1e}");
        let ours: Vec<f64> = device.download::<f32>(&param.master).unwrap().into_iter().map(f64::from).collect();
        let mut theirs = theirs[&format!("final.{name}")].clone();
        let mut ours = ours;
        if let (true, Some(shape)) = (name.ends_with("c_attn.bias"), &shape) {
            // The bias of the keys has no true gradient (softmax ignores a shift): AdamW amplifies pure rounding there.
            let queries = shape.heads * shape.head_dim();
            let keys = queries..queries + shape.kv_heads * shape.head_dim();
            ours.drain(keys.clone());
            theirs.drain(keys);
        }
        let real = real.min(ours.len());
        let difference = relative_l2(&ours[..real], &theirs[..real]);
        assert!(difference < within.weights, "final {name} differs by {difference:.1e}");
    }
}

/// A scaling as `transformers` has it in a configuration.
fn rope_scaling(scaling: Option<Scaling>) -> serde_json::Value {
    match scaling {
        None => serde_json::Value::Null,
        Some(Scaling::Llama3 { factor, low, high, original_context }) => serde_json::json!({
            "rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
            "original_max_position_embeddings": original_context as u64,
        }),
        Some(Scaling::Yarn { factor, original_context, beta_fast, beta_slow, attention_factor, rounds }) => {
            serde_json::json!({
                "rope_type": "yarn", "factor": factor, "beta_fast": beta_fast, "beta_slow": beta_slow,
                "attention_factor": attention_factor, "original_max_position_embeddings": original_context as u64,
                "truncate": rounds,
            })
        }
        Some(Scaling::Linear { factor }) => serde_json::json!({ "rope_type": "linear", "factor": factor }),
    }
}

/// Further entries of the configuration of a kind of models: windows, and the kind's own ones.
fn config(kind: &str, shape: &GptShape) -> serde_json::Value {
    let tokens = shape.windows.as_ref().map(|windows| windows.tokens);
    let type_of = |block| if shape.mask(block).window.is_some() { "sliding_attention" } else { "full_attention" };
    let layer_types: Vec<&str> = (0..shape.layers).map(type_of).collect();
    match kind {
        "mistral" => serde_json::json!({ "sliding_window": tokens }),
        "gptoss" => serde_json::json!({ "sliding_window": tokens, "layer_types": layer_types }),
        "deepseekv3" => {
            let AttentionKind::Latent(Latent { query_rank, rank, head }) = shape.attention else { panic!("no latent") };
            serde_json::json!({
                "q_lora_rank": query_rank, "kv_lora_rank": rank, "qk_nope_head_dim": head.plain,
                "qk_rope_head_dim": head.rotated, "v_head_dim": head.value, "head_dim": head.rotated,
                "num_key_value_heads": shape.heads,
            })
        }
        "qwen2" | "qwen3" if tokens.is_some() => serde_json::json!({
            "use_sliding_window": true, "sliding_window": tokens, "layer_types": layer_types,
        }),
        "gemma2" | "gemma3" => serde_json::json!({
            "sliding_window": tokens, "layer_types": layer_types,
            "query_pre_attn_scalar": shape.query_pre_attn_scalar, "attn_logit_softcapping": shape.attention_soft_cap,
            "final_logit_softcapping": shape.logit_soft_cap,
            "rope_local_base_freq": match shape.position {
                Position::Rotary { window_base, .. } => window_base,
                _ => None,
            },
        }),
        _ => serde_json::json!({}),
    }
}

/// The master weights of a parameter, or the weights of a frozen one.
fn master_values(device: &Device, param: &Param) -> Vec<f32> {
    match param.master.dtype {
        DType::F32 => device.download::<f32>(&param.master).unwrap(),
        _ => device.download::<bf16>(&param.master).unwrap().into_iter().map(bf16::to_f32).collect(),
    }
}

/// A transformer, as the reference must know it. Kinds other than "gpt" leave the choices that make a family to
/// `transformers`.
fn case(kind: &str, shape: &GptShape) -> serde_json::Value {
    let (rope_base, scaling) = match shape.position {
        Position::Rotary { base, scaling, .. } => (base, scaling),
        _ => (1e4, None),
    };
    let mut case = serde_json::json!({
        "kind": kind, "layers": shape.layers, "hidden": shape.hidden, "heads": shape.heads, "kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim(), "ffn": shape.ffn, "vocab": VOCAB, "seq": SEQ, "tied": shape.tied, "eps": f64::from(shape.norm_eps as f32),
        "rope_base": rope_base,
        "rope_scaling": rope_scaling(scaling),
        "config": config(kind, shape),
        "steps": STEPS, "microbatches": MICROBATCHES,
        "optimizer": {
            "kind": "adamw", "lr": vec![0.01; STEPS], "beta1": 0.9, "beta2": 0.95, "eps": 1e-8,
            "weight_decay": 0.1, "clip": 1.0,
        },
    });
    if let Some(lora) = &shape.lora {
        case["lora"] = adapters(lora, shape);
    }
    if let Some(FurtherTokens { depths, factor }) = shape.further_tokens {
        case["further"] = serde_json::json!({ "depths": depths, "factor": factor });
    }
    if let Some(experts) = &shape.experts {
        case["experts"] = crate::experts::case(experts, shape);
    }
    if kind == "gpt" {
        case["norm"] = if shape.norm == NormKind::Rms { "rmsnorm" } else { "layernorm" }.into();
        case["activation"] = if shape.feed_forward == FeedForward::SwiGlu { "swiglu" } else { "gelu" }.into();
        case["position"] = match shape.position {
            Position::Learned { .. } => "learned",
            Position::Rotary { .. } => "rotary",
            Position::None => "none",
        }
        .into();
        case["bias"] = shape.bias.into();
        case["z_loss"] = f64::from(shape.z_loss_multiplier as f32).into();
    }
    case
}

/// Trains a transformer of this shape on both sides.
pub fn transformer(name: &str, kind: &str, within: &Tolerances, shape: GptShape) {
    let case = case(kind, &shape);
    compare(name, Kind::Gpt, Some(GptShape { precision: within.precision, ..shape }), within, case);
}

fn mlp_case() -> serde_json::Value {
    serde_json::json!({
        "kind": "mlp", "layer_sizes": MLP_SIZES, "steps": STEPS, "microbatches": MICROBATCHES,
        "optimizer": {
            "kind": "sgd", "lr": vec![0.01; STEPS], "momentum": 0.9, "weight_decay": 0.1, "clip": 1.0,
        },
    })
}

fn mlp(within: &Tolerances) {
    compare(&format!("mlp-{}", within.precision), Kind::Mlp, None, within, mlp_case());
}

#[test]
fn gpt_agrees_with_pytorch_in_losses_gradients_and_final_weights() {
    transformer("gpt", "gpt", &F32, tiny_gpt(0.0, Precision::F32));
}

#[test]
fn gpt_with_a_z_loss_agrees_with_pytorch() {
    // So large that without its gradient norms and weights would be others.
    let shape = GptShape { z_loss_multiplier: 0.05, ..tiny_gpt(0.0, Precision::F32) };
    transformer("gpt-z-loss", "gpt", &F32, shape);
}

#[test]
fn layers_that_predict_further_tokens_agree_with_pytorch() {
    // So large that without their gradients norms and weights would be others. The blocks have experts, whose routers have losses.
    let further_tokens = Some(FurtherTokens { depths: 2, factor: 3.0 });
    let shape = GptShape { further_tokens, loss_pieces: 2, ..tiny_shared(0.0, BalanceGroup::Microbatch) };
    transformer("gpt-further", "gpt", &F32, shape);
}

#[test]
fn gpt_in_bf16_stays_beside_pytorch_in_f32() {
    transformer("gpt-bf16", "gpt", &BF16, tiny_gpt(0.0, Precision::Bf16));
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
fn a_gpt_by_muon_agrees_with_pytorch_in_losses_and_final_weights() {
    by_muon("gpt-muon", "gpt", tiny_gpt(0.0, Precision::F32));
}

#[test]
fn a_llama_with_shared_key_heads_by_muon_agrees_with_pytorch_in_losses_and_final_weights() {
    by_muon("llama-muon", "llama", GptShape { kv_heads: 1, ..tiny_llama(0.0, Precision::F32) });
}

#[test]
fn llama_agrees_with_transformers_in_losses_gradients_and_final_weights() {
    transformer("llama", "llama", &F32, tiny_llama(0.0, Precision::F32));
}

#[test]
fn llama_in_bf16_stays_beside_transformers_in_f32() {
    transformer("llama-bf16", "llama", &BF16, tiny_llama(0.0, Precision::Bf16));
}

#[test]
fn a_tied_llama_with_scaled_frequencies_agrees_with_transformers() {
    // Wavelengths of 6 to 200 around a context of 16: one pair is scaled in part, slower ones in full.
    let scaling = Some(Scaling::Llama3 { factor: 8.0, low: 0.5, high: 4.0, original_context: 16.0 });
    let position = Position::Rotary { base: 100.0, scaling, window_base: None };
    let shape = GptShape { tied: true, kv_heads: 1, position, ..tiny_llama(0.0, Precision::F32) };
    transformer("llama-scaled", "llama", &F32, shape);
}

#[test]
fn a_qwen2_with_yarn_agrees_with_transformers() {
    // Of the four pairs the first keeps its frequency, the second is between, the others are scaled in full.
    let yarn = Scaling::Yarn {
        factor: 4.0,
        original_context: 16.0,
        beta_fast: 2.0,
        beta_slow: 0.5,
        attention_factor: 1.2,
        rounds: true,
    };
    let position = Position::Rotary { base: 100.0, scaling: Some(yarn), window_base: None };
    transformer("qwen2-yarn", "qwen2", &F32, GptShape { position, ..tiny_qwen2(0.0, Precision::F32) });
}

#[test]
fn a_mistral_with_wide_heads_agrees_with_transformers() {
    in_small_steps("mistral", "mistral", &F32, tiny_mistral(0.0, Precision::F32));
}

#[test]
fn a_qwen2_with_one_key_head_agrees_with_transformers() {
    transformer("qwen2", "qwen2", &F32, tiny_qwen2(0.0, Precision::F32));
}

#[test]
fn a_tied_qwen2_with_narrow_heads_agrees_with_transformers() {
    let shape = GptShape { tied: true, head_dim: Some(4), kv_heads: 4, ..tiny_qwen2(0.0, Precision::F32) };
    transformer("qwen2-tied", "qwen2", &F32, shape);
}

#[test]
fn a_qwen3_with_wide_heads_agrees_with_transformers() {
    transformer("qwen3", "qwen3", &F32, tiny_qwen3(0.0, Precision::F32));
}

#[test]
fn a_tied_qwen3_with_narrow_heads_and_one_key_head_agrees_with_transformers() {
    let shape = GptShape { tied: true, head_dim: Some(6), kv_heads: 1, ..tiny_qwen3(0.0, Precision::F32) };
    transformer("qwen3-tied", "qwen3", &F32, shape);
}

/// Trains on both sides a transformer that magnifies the differences of steps, in steps that are small enough for it.
/// Norms after the parts do so, and the sharp attention in a window of few tokens.
pub fn in_small_steps(name: &str, kind: &str, within: &Tolerances, shape: GptShape) {
    let mut case = case(kind, &shape);
    let rate = if within.precision == Precision::Bf16 { 0.0003 } else { 0.002 };
    case["optimizer"]["lr"] = vec![rate; STEPS].into();
    compare(name, Kind::Gpt, Some(GptShape { precision: within.precision, ..shape }), within, case);
}

#[test]
fn an_olmo2_with_wide_heads_agrees_with_transformers() {
    in_small_steps("olmo2", "olmo2", &F32, tiny_olmo2(0.0, Precision::F32));
}

#[test]
fn a_tied_olmo2_with_narrow_heads_and_one_key_head_agrees_with_transformers() {
    let shape = GptShape { tied: true, head_dim: Some(6), kv_heads: 1, ..tiny_olmo2(0.0, Precision::F32) };
    in_small_steps("olmo2-tied", "olmo2", &F32, shape);
}

#[test]
fn a_gemma2_with_wide_heads_agrees_with_transformers() {
    transformer("gemma2", "gemma2", &F32, tiny_gemma2(0.0, Precision::F32));
}

#[test]
fn an_untied_gemma2_with_narrow_heads_and_no_caps_agrees_with_transformers() {
    let base = GptShape { attention_soft_cap: None, logit_soft_cap: None, ..tiny_gemma2(0.0, Precision::F32) };
    let shape = GptShape { tied: false, head_dim: Some(6), kv_heads: 4, ..base };
    transformer("gemma2-untied", "gemma2", &F32, shape);
}

#[test]
fn a_gemma3_with_two_kinds_of_frequencies_agrees_with_transformers() {
    in_small_steps("gemma3", "gemma3", &F32, tiny_gemma3(0.0, Precision::F32));
}

#[test]
fn gemmas_in_bf16_stay_beside_transformers_in_f32() {
    in_small_steps("gemma2-bf16", "gemma2", &BF16, tiny_gemma2(0.0, Precision::Bf16));
    // The norms of heads sum gradients that nearly cancel: in six channels more is left of rounding.
    let within = Tolerances { grads: 8e-2, ..BF16 };
    in_small_steps("gemma3-bf16", "gemma3", &within, tiny_gemma3(0.0, Precision::Bf16));
}

#[test]
fn a_qwen3_in_bf16_stays_beside_transformers_in_f32() {
    transformer("qwen3-bf16", "qwen3", &BF16, GptShape { windows: None, ..tiny_qwen3(0.0, Precision::Bf16) });
}

/// Trains the adapters of a transformer of this shape on both sides.
fn by_lora(name: &str, kind: &str, within: &Tolerances, shape: GptShape, targets: &[LoraTarget]) {
    let lora = Lora { rank: 3, alpha: 6.0, dropout: 0.0, targets: targets.to_vec() };
    transformer(name, kind, within, GptShape { lora: Some(lora), ..shape });
}

#[test]
fn adapters_of_a_gpt_agree_with_pytorch_in_losses_gradients_and_final_weights() {
    use LoraTarget::{AttentionOutput, Down, QueryKeyValue, Up};
    let shape = tiny_gpt(0.0, Precision::F32);
    by_lora("gpt-lora", "gpt", &F32, shape.clone(), &[QueryKeyValue, AttentionOutput, Up, Down]);
    by_lora("gpt-lora-qkv", "gpt", &F32, shape, &[QueryKeyValue]);
}

#[test]
fn adapters_of_packed_projections_agree_with_transformers_in_losses_gradients_and_final_weights() {
    use LoraTarget::{Down, Gate, GateUp, Key, Query, Up, Value};
    let shape = tiny_qwen3(0.0, Precision::F32);
    by_lora("qwen3-lora", "qwen3", &F32, shape.clone(), &all_targets(&shape));
    by_lora("qwen3-lora-qv", "qwen3", &F32, shape, &[Query, Value]);
    by_lora("qwen2-lora-k-up", "qwen2", &F32, tiny_qwen2(0.0, Precision::F32), &[Key, Up]);
    let experts = tiny_qwen3_moe(0.0, Precision::F32);
    by_lora("qwen3moe-lora", "qwen3moe", &F32, experts.clone(), &all_targets(&experts));
    by_lora("qwen3moe-lora-gate", "qwen3moe", &F32, experts.clone(), &[Gate]);
    by_lora("qwen3moe-lora-packed", "qwen3moe", &F32, experts, &[GateUp, Down]);
    let latent = tiny_deepseek(Some(14), None);
    by_lora("deepseekv3-lora", "deepseekv3", &F32, latent.clone(), &all_targets(&latent));
}

#[test]
fn adapters_in_bf16_stay_beside_transformers_in_f32() {
    let shape = tiny_llama(0.0, Precision::Bf16);
    by_lora("llama-lora-bf16", "llama", &BF16, shape.clone(), &all_targets(&shape));
}

#[test]
fn a_gpt_with_rotary_positions_rms_norms_and_no_biases_agrees_with_pytorch() {
    let position = Position::Rotary { base: 1e4, scaling: None, window_base: None };
    let own = tiny_gpt(0.0, Precision::F32);
    let shape = GptShape { kv_heads: 2, norm: NormKind::Rms, position, bias: false, ..own };
    transformer("mixed-rotary", "gpt", &F32, shape);
}

#[test]
fn a_gpt_with_swiglu_biases_and_no_positions_agrees_with_pytorch() {
    let own = tiny_gpt(0.0, Precision::F32);
    let shape = GptShape { feed_forward: FeedForward::SwiGlu, position: Position::None, tied: false, ..own };
    transformer("mixed-swiglu", "gpt", &F32, shape);
}

#[test]
fn mlp_agrees_with_pytorch_in_losses_gradients_and_final_weights() {
    mlp(&F32);
}

#[test]
fn mlp_in_bf16_stays_beside_pytorch_in_f32() {
    mlp(&BF16);
}
