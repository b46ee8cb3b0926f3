//! Gradients that data-parallel ranks sum in bf16: close to those summed in f32, and the same bits however steps are run.

use device::DType;
use engine::graph_options::{GraphOptions, Scope};
use engine::precision::Precision;
use engine::step::StepResult;

use crate::models::{Kind, Layout, Run, all_settings, tiny_gpt, tiny_llama};

/// bf16 rounds each element by up to 1/512 of it. Errors are random: they cancel in the first norm, so it is within a
/// quarter of this bound, and weights that ten updates of AdamW carry apart have losses and norms within a half of
/// these.
const FIRST_NORM: f64 = 1e-3;
const LATER_NORMS: f64 = 5e-2;
const LOSSES: f64 = 2e-3;

#[derive(Clone, Debug)]
struct Case {
    kind: Kind,
    layout: Layout,
    travels: DType,
    divided: bool,
    graphs: GraphOptions,
    shuffle: Option<u64>,
}

impl Case {
    /// Summed in bf16, without graphs.
    fn new(kind: Kind, layout: Layout) -> Case {
        let graphs = GraphOptions { enable: false, ..GraphOptions::default() };
        Case { kind, layout, travels: DType::Bf16, divided: false, graphs, shuffle: None }
    }

    /// The numbers of all steps. All ranks must agree on them. Nothing is clipped, so that no weight depends on the
    /// order of the norm's sum.
    fn train(&self) -> Vec<StepResult> {
        let own = || {
            let shape = if self.kind == Kind::Llama { tiny_llama } else { tiny_gpt };
            Run {
                shape: Some(shape(0.1, Precision::F32)),
                steps: 10,
                clip: 0.0,
                grad_reduce: self.travels,
                distributed_optimizer: self.divided,
                shuffle: self.shuffle,
                ..Run::new(self.kind, 2, self.graphs.clone())
            }
        };
        let mut ranks = self.layout.on_ranks(own, |run| run.train().0);
        assert!(ranks.iter().all(|results| *results == ranks[0]), "{self:?}: ranks disagree on the numbers");
        ranks.swap_remove(0)
    }
}

/// With other ranks that share layers, or have other stages and the same table.
fn cases() -> [Case; 4] {
    [
        Case::new(Kind::Gpt, Layout::new(1, 1, 1, 2)),
        Case::new(Kind::Llama, Layout::new(1, 1, 1, 4)),
        Case::new(Kind::Llama, Layout::new(2, 1, 1, 2)),
        Case::new(Kind::Gpt, Layout::new(1, 2, 1, 2)),
    ]
}

#[test]
fn losses_and_norms_differ_from_those_summed_in_f32_by_no_more_than_rounding() {
    for case in cases() {
        let (rounded, exact) = (case.train(), Case { travels: DType::F32, ..case.clone() }.train());
        assert_eq!(rounded[0].loss.to_bits(), exact[0].loss.to_bits(), "{case:?}: the first loss is of no gradient");
        assert!(rounded[1..].iter().zip(&exact[1..]).all(|(a, b)| a.loss != b.loss), "{case:?}: nothing was rounded");
        for (step, (a, b)) in rounded.iter().zip(&exact).enumerate() {
            let loss = (a.loss / b.loss - 1.0).abs();
            let norm = f64::from((a.grad_norm / b.grad_norm - 1.0).abs());
            let allowed = if step == 0 { FIRST_NORM } else { LATER_NORMS };
            assert!(loss < LOSSES, "{case:?}, step {step}: losses {} and {}", a.loss, b.loss);
            assert!(norm < allowed, "{case:?}, step {step}: norms {} and {}", a.grad_norm, b.grad_norm);
        }
    }
}

#[test]
fn a_distributed_optimizer_gets_the_same_sums() {
    for case in cases() {
        let losses = |case: Case| case.train().iter().map(|step| step.loss.to_bits()).collect::<Vec<u64>>();
        assert_eq!(losses(Case { divided: true, ..case.clone() }), losses(case.clone()), "{case:?}");
    }
}

#[test]
fn graphs_and_replay_orders_change_no_bit() {
    for case in cases() {
        for divided in [false, true] {
            let case = Case { divided, ..case.clone() };
            let eager = case.train();
            for scope in Scope::ALL {
                for shuffle in [None, Some(5)] {
                    let graphs = GraphOptions { scope, poison: true, ..GraphOptions::default() };
                    let replayed = Case { graphs, shuffle, ..case.clone() }.train();
                    assert!(replayed == eager, "{case:?} {scope:?} {shuffle:?}");
                }
            }
        }
    }
    let case = Case::new(Kind::Gpt, Layout::new(1, 1, 1, 2));
    let eager = case.train();
    for (name, graphs) in &all_settings()[1..] {
        assert!(Case { graphs: graphs.clone(), ..case.clone() }.train() == eager, "{name}");
    }
}

#[test]
fn ranks_that_share_no_batch_round_nothing() {
    let case = Case::new(Kind::Gpt, Layout::new(2, 1, 1, 1));
    assert!(case.train() == Case { travels: DType::F32, ..case.clone() }.train());
}
