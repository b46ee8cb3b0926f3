//! Parameter groups with a learning rate and a weight decay of their own. `parity` compares them with PyTorch's.

use std::sync::Arc;

use device::ops::Rule;
use engine::graph_options::{GraphOptions, Scope};
use engine::model::{GptShape, gpt};
use engine::optimizer::ParamGroup;
use engine::precision::Precision;

use super::muon::muon_groups;
use crate::models::{Kind, Layout, Run, all_settings, off, tiny_gpt};

const STEPS: usize = 5;

/// The factor of a learning rate, and a weight decay; without one it is the usual one.
type Rate = (f32, Option<f32>);

/// The rate of the parameter of a name, if it has its own.
type Own = fn(&str) -> Option<Rate>;

/// The rates of these tests.
pub fn own(name: &str) -> Option<Rate> {
    match name {
        _ if name.starts_with("wte") || name.starts_with("layers.1") => Some((0.1, None)),
        _ if name.contains("attn") || name.starts_with("layers.0") => Some((0.5, Some(0.3))),
        _ if name.contains("ln_") => Some((2.0, None)),
        _ => None,
    }
}

/// These groups, and before them those of the parameters that have their own.
pub fn with_own(usual: Vec<ParamGroup>, names: &[String], own: Own) -> Vec<ParamGroup> {
    let named = |name: &String| Some((name.clone(), own(name)?));
    let apart = |(name, (lr_multiplier, weight_decay)): (String, Rate)| {
        let names = Some(Arc::new([name].into()));
        let group = move |group: &ParamGroup| ParamGroup {
            names: names.clone(),
            lr_multiplier,
            weight_decay: weight_decay.unwrap_or(group.weight_decay),
            ..group.clone()
        };
        usual.iter().map(group).collect::<Vec<_>>()
    };
    names.iter().filter_map(named).flat_map(apart).chain(usual.clone()).collect()
}

fn shape() -> GptShape {
    tiny_gpt(0.1, Precision::F32)
}

fn adamw() -> Vec<ParamGroup> {
    ParamGroup::decay_matrices(Rule::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 }, 0.1)
}

/// The groups of every kind of optimizer.
fn kinds() -> [(&'static str, Vec<ParamGroup>); 4] {
    [
        ("adamw", adamw()),
        ("lion", ParamGroup::decay_matrices(Rule::Lion { beta1: 0.9, beta2: 0.99 }, 0.1)),
        ("sgd", ParamGroup::decay_matrices(Rule::Sgd { momentum: 0.9 }, 0.1)),
        ("muon", muon_groups()),
    ]
}

fn run(usual: &[ParamGroup], own: Own, data: usize, graphs: GraphOptions) -> Run {
    let names: Vec<String> = gpt(shape()).specs.into_iter().map(|spec| spec.name).collect();
    let groups = Some(with_own(usual.to_vec(), &names, own));
    Run { shape: Some(shape()), groups, steps: STEPS, ..Run::new(Kind::Gpt, 4 / data, graphs) }
}

#[test]
fn graphs_change_no_bit_and_a_group_of_the_usual_rate_neither() {
    for (name, usual) in kinds() {
        let plain = run(&usual, own, 1, off()).train().1;
        let without = run(&usual, |_| None, 1, off()).train().1;
        assert_ne!(plain, without, "{name}");
        assert_eq!(run(&usual, |_| Some((1.0, None)), 1, off()).train().1, without, "{name}");
        for (setting, graphs) in all_settings().into_iter().skip(1).step_by(6) {
            assert_eq!(run(&usual, own, 1, graphs).train().1, plain, "{name}, {setting}");
        }
    }
}

#[test]
fn a_rate_of_0_keeps_values_and_other_parameters_are_updated() {
    for (name, usual) in kinds() {
        let of = |own: Own| {
            let run = run(&usual, own, 1, GraphOptions::default());
            let device = run.device();
            let (_, stage) = run.train_on(&device);
            let all = stage.params().iter();
            all.map(|(spec, param)| (spec.name.clone(), device.download::<f32>(&param.master).unwrap()))
                .collect::<Vec<_>>()
        };
        let first = of(|_| Some((0.0, None)));
        let trained = of(|name| name.starts_with("h.0.").then_some((0.0, Some(0.5))));
        for ((name_of, before), (_, after)) in first.iter().zip(&trained) {
            assert_eq!(before == after, name_of.starts_with("h.0."), "{name}: {name_of}");
        }
    }
}

#[test]
fn ranks_train_as_one_and_a_distributed_optimizer_has_the_bits_of_a_plain_one() {
    let graphs = || GraphOptions { scope: Scope::FullIteration, poison: true, ..GraphOptions::default() };
    for (name, usual) in kinds() {
        let train = |layout: Layout, divided: bool| {
            let run = || Run { clip: 0.0, distributed_optimizer: divided, ..run(&usual, own, layout.data, graphs()) };
            let ranks = layout.on_ranks(run, |run| run.train().0);
            assert!(ranks.iter().all(|results| *results == ranks[0]), "{name}, {layout:?}: ranks disagree");
            ranks[0].iter().map(|result| result.loss).collect::<Vec<_>>()
        };
        let alone = train(Layout::new(1, 1, 1, 1), false);
        let two = Layout::new(1, 1, 1, 2);
        assert_eq!(train(two, true), train(two, false), "{name}");
        for (layout, divided) in [(two, true), (Layout::new(2, 1, 1, 1), false), (Layout::new(2, 2, 1, 2), true)] {
            for (ours, one) in train(layout, divided).iter().zip(&alone) {
                assert!((ours / one - 1.0).abs() < 1e-4, "{name}, {layout:?}: {ours}, alone {one}");
            }
        }
    }
}
