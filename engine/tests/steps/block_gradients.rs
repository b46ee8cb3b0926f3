//! Gradients of the weights of blocks in bf16: those in f32, rounded after each microbatch, in less memory.

use device::ops::Rule;
use device::{DType, Device, bf16};
use engine::graph_options::{GraphOptions, Scope};
use engine::optimizer::ParamGroup;
use engine::params::{MasterForm, Sharding};
use engine::precision::Precision;
use engine::step::{Stage, StepResult};

use crate::models::{Kind, Layout, Run, tiny_llama};
use crate::optimizer::muon::muon_groups;

fn run(block_gradients: DType, microbatches: usize, scope: Scope) -> Run {
    let graphs = GraphOptions { scope, poison: true, ..GraphOptions::default() };
    let shape = Some(tiny_llama(0.1, Precision::Bf16));
    Run { shape, precision: Precision::Bf16, steps: 6, block_gradients, ..Run::new(Kind::Llama, microbatches, graphs) }
}

/// The gradients of a first step, each with whether it is of a weight of a block, before the update.
fn first_gradients(run: &Run) -> Vec<(bool, Vec<f32>)> {
    fn values(device: &Device, stage: &Stage) -> Vec<(bool, Vec<f32>)> {
        let of = |(spec, param): (&engine::params::ParamSpec, &engine::params::Param)| {
            let grad = param.grad?;
            let values = match grad.dtype {
                DType::Bf16 => device.download::<bf16>(&grad).unwrap().into_iter().map(bf16::to_f32).collect(),
                _ => device.download::<f32>(&grad).unwrap(),
            };
            Some((spec.is_block_weight, values))
        };
        stage.params().iter().filter_map(of).collect()
    }
    let device = run.device();
    let mut stage = run.stage(&device);
    run.step(&mut stage, run.settings(0));
    values(&device, &stage)
}

#[test]
fn a_microbatch_s_gradient_is_the_one_in_f32_rounded_once() {
    let scope = Scope::PerLayer;
    let (wide, rounded) = (first_gradients(&run(DType::F32, 1, scope)), first_gradients(&run(DType::Bf16, 1, scope)));
    assert!(wide.iter().any(|(of_block, _)| *of_block) && wide.iter().any(|(of_block, _)| !of_block));
    for ((of_block, wide), (_, ours)) in wide.into_iter().zip(rounded) {
        let expected: Vec<f32> = match of_block {
            true => wide.into_iter().map(|value| bf16::from_f32(value).to_f32()).collect(),
            false => wide,
        };
        assert!(expected == ours, "of a block {of_block}: {expected:?} and {ours:?}");
    }
}

/// All ranks' results and the bits of their masters; ranks agree on the numbers.
fn trained(layout: Layout, own: impl Fn() -> Run + Sync) -> (Vec<StepResult>, Vec<Vec<u32>>) {
    let ranks = layout.on_ranks(own, |run| run.train());
    assert!(ranks.iter().all(|(results, _)| *results == ranks[0].0), "{layout:?}");
    let results = ranks[0].0.clone();
    (results, ranks.into_iter().map(|(_, weights)| weights).collect())
}

#[test]
fn ranks_scopes_and_state_on_the_host_train_alike_and_near_f32() {
    let one = Layout::new(1, 1, 1, 1);
    for (layout, sharding) in [
        (one, Sharding::Nothing),
        (Layout::new(1, 1, 1, 2), Sharding::Weights),
        (Layout::new(2, 1, 1, 2), Sharding::State),
        (Layout::new(1, 2, 1, 1), Sharding::Nothing),
    ] {
        let of = |dtype, scope, state_on_host| {
            let own = || Run { sharding, state_on_host, ..run(dtype, 2, scope) };
            trained(layout, own)
        };
        let (wide, _) = of(DType::F32, Scope::PerLayer, 0.0);
        let rounded = of(DType::Bf16, Scope::PerLayer, 0.0);
        assert_eq!(rounded, of(DType::Bf16, Scope::FullIteration, 0.0), "{layout:?}");
        assert_eq!(rounded, of(DType::Bf16, Scope::PerLayer, 1.0), "{layout:?}");
        assert_ne!(wide, rounded.0);
        for (wide, ours) in wide.iter().zip(&rounded.0) {
            // A gradient is off by up to a 256th of itself; AdamW's updates hardly follow its size.
            assert!((wide.loss / ours.loss - 1.0).abs() < 2e-3, "{layout:?}: {wide:?} and {ours:?}");
        }
    }
}

#[test]
fn gradients_of_blocks_take_half_the_bytes() {
    let bytes = |dtype| {
        let run = run(dtype, 1, Scope::PerLayer);
        let stage = run.stage(&run.device());
        let of_block = stage.params().iter().filter(|(spec, _)| spec.is_block_weight);
        (stage.params().grads.bytes(), of_block.map(|(spec, _)| spec.shape.elements()).sum::<usize>())
    };
    let ((wide, elements), (narrow, _)) = (bytes(DType::F32), bytes(DType::Bf16));
    assert_eq!(wide - narrow, 2 * elements);
}

#[test]
fn other_rules_with_remainders_take_them_and_muon_does_not() {
    let groups = |rule| Some(ParamGroup::decay_matrices(rule, 0.1));
    for rule in [Rule::Lion { beta1: 0.9, beta2: 0.99 }, Rule::Sgd { momentum: 0.9 }] {
        let of =
            |master_form, dtype| Run { groups: groups(rule), master_form, ..run(dtype, 2, Scope::PerLayer) }.train().0;
        let (whole, halves) = (of(MasterForm::Whole, DType::F32), of(MasterForm::Remainder, DType::Bf16));
        for (whole, halves) in whole.iter().zip(&halves) {
            assert!(halves.applied && (whole.loss / halves.loss - 1.0).abs() < 2e-2, "{whole:?} and {halves:?}");
        }
    }
    let run = Run { groups: Some(muon_groups()), ..run(DType::Bf16, 1, Scope::PerLayer) };
    let error = run.try_stage(&run.device()).err().unwrap().to_string();
    assert!(error.contains("no gradients in bf16"), "{error}");
}
