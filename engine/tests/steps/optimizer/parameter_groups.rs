//! Each parameter is updated by the rule of the first group that takes it, and by one launch for each rule.

use std::collections::BTreeMap;
use std::sync::Arc;

use device::ops::{Control, Rule, RuleState, Status, WriteControl};
use device::{DType, Device, bf16};
use engine::graph_options::GraphOptions;
use engine::optimizer::{MomentTypes, Optimizer, ParamGroup, ParamUpdate, StepControl, Update, UpdateRule};
use engine::params::{Init, ParamSpec, Params};
use engine::precision::Precision;
use engine::regions::{Mode, Region};
use engine::step::{Stage, StageOptions};
use engine::step_policy::{StepContext, StepPolicy, StepShape};
use parallel::{Axes, Ranks};

use crate::models::{Kind, Layout, Run, noise, tiny_mlp};

const ADAMW: Rule = Rule::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 };
const SGD: Rule = Rule::Sgd { momentum: 0.0 };

fn is_norm(spec: &ParamSpec) -> bool {
    spec.name.contains("ln_")
}

fn group(takes: fn(&ParamSpec) -> bool, rule: impl UpdateRule + 'static) -> ParamGroup {
    ParamGroup::new(takes, Arc::new(rule), 0.0)
}

/// Norms are updated by another rule than the rest.
fn norms_by(rule: impl UpdateRule + 'static) -> Vec<ParamGroup> {
    [vec![group(is_norm, rule)], ParamGroup::decay_matrices(ADAMW, 0.1)].concat()
}

/// The bits of all master weights by name after so many steps on two ranks, and on each rank how many updates of each kind
/// the optimizer's graph has.
fn train(groups: &[ParamGroup], divided: bool, steps: usize) -> (BTreeMap<String, Vec<u32>>, Vec<[usize; 2]>) {
    let run = || Run {
        groups: Some(groups.to_vec()),
        distributed_optimizer: divided,
        steps,
        ..Run::new(Kind::Gpt, 2, GraphOptions::default())
    };
    let ranks = Layout::new(1, 1, 1, 2).on_ranks(run, |run| {
        let device = run.device();
        let (_, mut stage) = run.train_on(&device);
        let report = stage.graphs().report();
        let nodes = report.graphs.iter().filter(|graph| graph.name == "optimizer").flat_map(|graph| &graph.nodes);
        let nodes: Vec<&String> = nodes.collect();
        let launches = ["adamw", "sgd"].map(|name| nodes.iter().filter(|node| node.contains(name)).count());
        (owned(&device, &stage), launches)
    });
    let mut all: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for (name, bits) in
        ranks.iter().flat_map(|(weights, _)| weights).take(if divided { usize::MAX } else { ranks[0].0.len() })
    {
        all.entry(name.clone()).or_default().extend(bits);
    }
    (all, ranks.iter().map(|(_, launches)| *launches).collect())
}

/// The elements of each parameter that a rank owns.
fn owned(device: &Device, stage: &Stage) -> Vec<(String, Vec<u32>)> {
    let owned = stage.params().iter().filter(|(_, param)| param.owned.elements > 0);
    let bits = |tensor| device.download::<f32>(tensor).unwrap().into_iter().map(f32::to_bits).collect();
    owned.map(|(spec, param)| (spec.name.clone(), bits(&param.master))).collect()
}

#[test]
fn after_a_step_each_parameter_is_as_if_all_were_updated_by_its_groups_rule() {
    for divided in [false, true] {
        let (mixed, _) = train(&norms_by(SGD), divided, 1);
        let (adamw, _) = train(&ParamGroup::decay_matrices(ADAMW, 0.1), divided, 1);
        let (sgd, _) = train(&[group(|_| true, SGD)], divided, 1);
        for (name, bits) in &mixed {
            let [expected, other] = if name.contains("ln_") { [&sgd, &adamw] } else { [&adamw, &sgd] };
            assert!(*bits == expected[name] && *bits != other[name], "{name}, divided {divided}");
        }
    }
}

#[test]
fn groups_of_one_rule_are_updated_by_one_launch() {
    for divided in [false, true] {
        assert_eq!(train(&ParamGroup::decay_matrices(ADAMW, 0.1), divided, 3).1, [[1, 0]; 2]);
        // Norms are the last parameters of each bucket: the second rank has them.
        let of_first = usize::from(!divided);
        assert_eq!(train(&norms_by(SGD), divided, 3).1, [[1, of_first], [1, 1]]);
    }
}

/// A rule of a user's own: its parameters stay as they are.
#[derive(Debug)]
struct Frozen;

impl UpdateRule for Frozen {
    fn state(&self) -> &'static [RuleState] {
        &[]
    }

    fn update(&self, _: Vec<ParamUpdate>, _: StepControl, _: &Params) -> Box<Update> {
        Box::new(|_| Ok(()))
    }
}

#[test]
fn a_rule_of_a_users_own_updates_its_group_alone() {
    let (before, after) = (train(&norms_by(Frozen), false, 1).0, train(&norms_by(Frozen), false, 4).0);
    for (name, bits) in &before {
        assert_eq!(*bits == after[name], name.contains("ln_"), "{name}");
    }
}

#[test]
fn a_parameter_that_no_group_takes_is_named() {
    let run = Run::new(Kind::Mlp, 1, GraphOptions::default());
    let options = StageOptions { optimizer: vec![group(ParamSpec::is_matrix, SGD)], ..StageOptions::default() };
    let stage = Stage::new(&run.device(), &tiny_mlp(0.0, Precision::F32, &run.ranks), options);
    let error = stage.err().unwrap().to_string();
    assert!(error.contains("no parameter group takes `layers.0.bias`"), "{error}");
}

#[test]
fn parameters_of_unlike_types_are_updated_together() {
    let run = Run::new(Kind::Mlp, 1, GraphOptions::default());
    let device = run.device();
    // Master weights and weights after three updates, of parameters of these types.
    let train = |dtypes: [DType; 3]| {
        let shapes: [&[usize]; 3] = [&[24, 7], &[24], &[9, 24]];
        let spec = |(number, shape): (usize, &[usize])| ParamSpec {
            dtype: dtypes[number],
            ..ParamSpec::new(format!("p{number}"), device::Shape::new(shape), Init::Normal(0.5), 1 + number)
        };
        let specs = shapes.into_iter().enumerate().map(spec).collect();
        let params = Params::new(&device, specs, Some(7), 0, Ranks::alone(), Axes::NONE).unwrap();
        for (number, (_, param)) in params.iter().enumerate() {
            let value = |at: u64| (noise(number as u64, at) >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
            let grad: Vec<f32> = (0..param.grad.unwrap().elements() as u64).map(value).collect();
            device.upload(&param.grad.unwrap(), &grad).unwrap();
        }
        let mut areas = Vec::new();
        let mut block = |name, bytes| device.allocate_tensor(&mut areas, name, [bytes], DType::U8).unwrap();
        let (control, status) = (block("control", size_of::<Control>()), block("status", size_of::<Status>()));
        let (step_control, groups) = (StepControl { control, status }, ParamGroup::decay_matrices(ADAMW, 0.1));
        let optimizer = Optimizer::new(&device, &params, &groups, MomentTypes::default(), step_control).unwrap();
        let compute = device.stream("compute");
        let mut graphs = StepPolicy::manager(compute.clone(), &GraphOptions::default(), StepShape::default()).unwrap();
        for step in 0..3 {
            let value =
                Control { step, microbatches: 1, learning_rate: 0.1, inverse_loss_scale: 1.0, ..Control::default() };
            compute.submit(WriteControl { control, value }).unwrap();
            let update =
                &mut |cx: &mut StepContext<'_>| cx.region(Region::Optimizer, (), |cx, ()| optimizer.update(cx));
            graphs.step(Mode::Train.into(), 1, update).unwrap();
        }
        let values = |(_, param): (&ParamSpec, &engine::params::Param)| {
            let masters = device.download::<f32>(&param.master).unwrap();
            let weights = match param.weight.dtype {
                DType::F32 => device.download::<f32>(&param.weight).unwrap(),
                _ => device.download::<bf16>(&param.weight).unwrap().into_iter().map(f32::from).collect(),
            };
            (masters, weights)
        };
        params.iter().map(values).collect::<Vec<_>>()
    };
    let plain = train([DType::F32; 3]);
    let mixed = train([DType::Bf16, DType::F32, DType::Bf16]);
    for (number, ((masters, _), (mixed_masters, mixed_weights))) in plain.iter().zip(&mixed).enumerate() {
        assert_eq!(masters, mixed_masters, "parameter {number}");
        let rounded = |value: &f32| if number == 1 { *value } else { bf16::from_f32(*value).into() };
        assert_eq!(*mixed_weights, masters.iter().map(rounded).collect::<Vec<f32>>(), "parameter {number}");
    }
}
