//! Master weights kept as a bf16 weight and 16 bits: the bits of f32 masters whose weights are rounded alike, in less
//! memory.

use device::ops::{Rule, split_master};
use device::{Device, Home, bf16};
use engine::graph_options::GraphOptions;
use engine::model::GptShape;
use engine::optimizer::ParamGroup;
use engine::params::{MasterForm, Sharding};
use engine::precision::Precision;
use engine::step::Stage;

use super::muon::muon_groups;
use crate::models::{Kind, Layout, Run, tiny_llama};

fn run(rule: Rule) -> Run {
    let graphs = GraphOptions { poison: true, ..GraphOptions::default() };
    let shape = Some(tiny_llama(0.1, Precision::Bf16));
    let groups = Some(ParamGroup::decay_matrices(rule, 0.1));
    Run { shape, precision: Precision::Bf16, steps: 6, groups, ..Run::new(Kind::Llama, 2, graphs) }
}

const ADAMW: Rule = Rule::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 };

/// Rounds the weights of f32 masters again, with ties away from 0.
fn round_away(stage: &Stage, device: &Device) {
    for (_, param) in stage.params().iter() {
        let Some(weight) = param.owned_weight.filter(|weight| weight.elements() > 0) else { continue };
        let masters = param.master_values(device).unwrap();
        let rounded: Vec<bf16> = masters.into_iter().map(|master| split_master(master).0).collect();
        device.upload(&weight, &rounded).unwrap();
    }
}

/// Losses and norms of all steps, and the bits of the last masters.
fn trained(run: &Run) -> (Vec<[u64; 2]>, Vec<u32>) {
    let device = run.device();
    let mut stage = run.stage(&device);
    let mut results = Vec::new();
    for step in 0..run.steps {
        if run.master_form == MasterForm::Whole {
            round_away(&stage, &device);
        }
        let result = run.step(&mut stage, run.settings(step));
        results.push([result.loss.to_bits(), u64::from(result.grad_norm.to_bits())]);
    }
    let masters = stage.params().iter().flat_map(|(_, param)| param.master_values(&device).unwrap());
    (results, masters.map(f32::to_bits).collect())
}

#[test]
fn remainders_have_the_bits_of_f32_masters_whose_weights_are_rounded_alike() {
    for rule in [ADAMW, Rule::Lion { beta1: 0.9, beta2: 0.99 }, Rule::Sgd { momentum: 0.9 }] {
        let whole = trained(&run(rule));
        let halves = trained(&Run { master_form: MasterForm::Remainder, ..run(rule) });
        assert!(whole == halves, "{rule:?}: {:?} and {:?}", whole.0, halves.0);
        assert_ne!(whole.0[0], whole.0[5], "{rule:?}: nothing was learned");
    }
}

#[test]
fn ranks_that_divide_the_state_and_state_on_the_host_have_the_same_bits() {
    let one = trained(&Run { master_form: MasterForm::Remainder, ..run(ADAMW) });
    let away = Run { master_form: MasterForm::Remainder, state_on_host: 1.0, ..run(ADAMW) };
    assert!(one == trained(&away), "state on the host");
    let divided = |master_form, state_on_host| {
        let own = || Run { master_form, state_on_host, sharding: Sharding::Weights, ..run(ADAMW) };
        Layout::new(1, 1, 1, 2).on_ranks(own, |run| trained(&run))
    };
    let whole = divided(MasterForm::Whole, 0.0);
    for share in [0.0, 0.5, 1.0] {
        assert!(whole == divided(MasterForm::Remainder, share), "divided, {share} on the host");
    }
}

#[test]
fn remainders_take_half_the_bytes_of_masters() {
    let bytes = |master_form| {
        let run = Run { master_form, ..run(ADAMW) };
        let stage = run.stage(&run.device());
        (stage.params().master_bytes_in(Home::Device), stage.params().weight_bytes())
    };
    let ((whole, weights), (halves, same)) = (bytes(MasterForm::Whole), bytes(MasterForm::Remainder));
    // Two bytes of a weight; four or two of its master.
    assert_eq!((whole, halves, same), (2 * weights, weights, weights));
}

#[test]
fn muon_takes_no_remainders() {
    let groups = Some(muon_groups());
    let run = Run { master_form: MasterForm::Remainder, groups, ..run(ADAMW) };
    let error = run.try_stage(&run.device()).err().unwrap().to_string();
    assert!(error.contains("takes no remainders of master weights"), "{error}");
    let shape = GptShape { precision: Precision::F32, ..tiny_llama(0.0, Precision::F32) };
    let f32 = Run { shape: Some(shape), precision: Precision::F32, ..run };
    assert!(f32.try_stage(&f32.device()).is_ok(), "without weights in bf16 there are none");
}
