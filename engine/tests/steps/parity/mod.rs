//! The trainer against PyTorch on the CPU: from the same weights and batches the same losses, gradients and final
//! weights. `engine/tests/parity/reference.py` spells the models out or takes them from `transformers`; `./x test` installs
//! the packages that it needs.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use device::ops::Rule;
use device::{DType, Device, HostValues, bf16};
use engine::graph_options::GraphOptions;
use engine::model::{GptShape, is_adapter};
use engine::optimizer::{Muon, ParamGroup};
use engine::params::Param;
use engine::precision::Precision;

use crate::exchange::{Arrays, reference, relative_l2};
use crate::lora::move_adapters;
use crate::models::{Kind, MICRO_BATCH, MLP_SIZES, Run, SEQ};
use crate::optimizer::muon::muon_groups;
use crate::optimizer::rate_groups::{own, with_own};
use case::case;

mod case;
mod low_rank;
mod models;
mod optimizers;

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
    println!("{case_name}");
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
        ..Run::new(kind, MICROBATCHES, GraphOptions::default())
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

/// The master weights of a parameter, or the weights of a frozen one.
fn master_values(device: &Device, param: &Param) -> Vec<f32> {
    match param.master.dtype {
        DType::F32 => device.download::<f32>(&param.master).unwrap(),
        _ => device.download::<bf16>(&param.master).unwrap().into_iter().map(bf16::to_f32).collect(),
    }
}

/// Trains a transformer of this shape on both sides.
pub fn transformer(name: &str, kind: &str, within: &Tolerances, shape: GptShape) {
    let case = case(kind, &shape);
    compare(name, Kind::Gpt, Some(GptShape { precision: within.precision, ..shape }), within, case);
}

/// Trains on both sides a transformer that magnifies the differences of steps, in steps that are small enough for it.
/// Norms after the parts do so, and the sharp attention in a window of few tokens.
fn in_small_steps(name: &str, kind: &str, within: &Tolerances, shape: GptShape) {
    let mut case = case(kind, &shape);
    let rate = if within.precision == Precision::Bf16 { 0.0003 } else { 0.002 };
    case["optimizer"]["lr"] = vec![rate; STEPS].into();
    compare(name, Kind::Gpt, Some(GptShape { precision: within.precision, ..shape }), within, case);
}
