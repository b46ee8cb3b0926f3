//! Steps that are verified: with graphs and eagerly they leave the same bits, in every layout, and a tensor that
//! differs is named.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier};

use device::ops::{self, Rule, RuleState};
use engine::graph_options::{GraphOptions, Scope};
use engine::model::GptShape;
use engine::optimizer::{ParamGroup, ParamUpdate, StepControl, Update, UpdateRule};
use engine::params::{ParamSpec, Params};
use engine::precision::Precision;
use engine::regions::Mode;
use engine::step::{StepResult, StepSettings};
use graph_manager::{EagerMemory, Mempool, Verification, Verified};

use crate::models::{Kind, Layout, Run, all_settings, batch, tiny_gpt};

/// Trains, and verifies each step before it is run. Returns the results of `train`, and those of the verifications.
fn train_verified(run: &Run, memory: EagerMemory, any: &dyn Fn(bool) -> bool) -> (Vec<StepResult>, Vec<Verified>) {
    let device = run.device();
    let mut stage = run.stage(&device);
    let step = |step| {
        let settings = run.settings(step);
        let batch = stage.needs_batch().then(|| batch(run.kind, settings.first_sample, run.microbatches));
        let found = stage
            .verify_step(
                Mode::Train,
                settings,
                batch.as_ref(),
                &Verification { memory, any, ..Verification::default() },
            )
            .unwrap();
        (stage.train_step(settings, batch.as_ref()).unwrap().wait().unwrap(), found)
    };
    (0..run.steps).map(step).unzip()
}

/// Fails unless all steps with graphs were verified and found the same.
fn assert_clean(found: &[Verified], warm_up: usize, what: &str) {
    for (step, found) in found.iter().enumerate() {
        match found {
            Verified::NotYet => assert!(step <= warm_up, "{what}: step {step} was not verified"),
            Verified::Same { tensors, bytes } => {
                assert!(step > warm_up && *tensors > 10 && *bytes > 10_000, "{what}: {tensors} tensors, {bytes} bytes");
            }
            Verified::Differs(difference) => panic!("{what}, step {step}: {difference}"),
        }
    }
}

#[test]
fn fifty_steps_of_every_layout_are_the_same_both_ways_and_verifying_them_changes_no_bit() {
    let layouts = [
        ("pipeline 2, 2 chunks", Layout::new(1, 2, 2, 1)),
        ("tensor 2, data 2", Layout::new(2, 1, 1, 2)),
        ("zero bubble", Layout { zero_bubble: true, ..Layout::new(1, 2, 1, 1) }),
    ];
    for (at, (name, layout)) in layouts.into_iter().enumerate() {
        let memory = if at == 1 { EagerMemory::Shared } else { EagerMemory::Apart };
        let run = || Run {
            shape: Some(GptShape { layers: 4, ..tiny_gpt(0.1, Precision::F32) }),
            steps: if at == 2 { 6 } else { 52 },
            check: false,
            distributed_optimizer: layout.data > 1,
            watched: true,
            ..Run::new(Kind::Gpt, 4, GraphOptions::default())
        };
        let plain = layout.on_ranks(run, |run| run.train().0);
        let verified = layout.on_ranks(run, |run| train_verified(&run, memory, &|differs| differs));
        for (rank, (results, found)) in verified.iter().enumerate() {
            assert_eq!(*results, plain[rank], "{name}, rank {rank}");
            assert_clean(found, 1, name);
        }
    }
}

#[test]
fn every_way_to_run_a_step_is_verified() {
    for (at, (name, graphs)) in all_settings().into_iter().enumerate() {
        for overlaps in [false, true] {
            let kind = [Kind::Gpt, Kind::Llama, Kind::Mlp][at % 3];
            let run = Run { steps: 4, overlaps, ..Run::new(kind, 3, graphs.clone()) };
            let (results, found) = train_verified(&run, EagerMemory::Apart, &|differs| differs);
            assert_eq!(results, run.train().0, "{kind:?}, {name}");
            match graphs.enable {
                true => assert_clean(&found, 1, &name),
                false => assert_eq!(found, vec![Verified::NotYet; 4]),
            }
        }
    }
}

#[test]
fn what_runs_again_after_a_difference_finds_none_in_a_sound_step() {
    for scope in Scope::ALL {
        for memory in [EagerMemory::Apart, EagerMemory::Shared] {
            for layout in [Layout::new(1, 1, 1, 1), Layout::new(2, 2, 1, 1), Layout::new(1, 2, 2, 1)] {
                let graphs = GraphOptions { scope, mempool: Mempool::Single, ..GraphOptions::default() };
                let shape = GptShape { layers: 4, ..tiny_gpt(0.1, Precision::F32) };
                let run = || Run { shape: Some(shape.clone()), steps: 4, ..Run::new(Kind::Gpt, 4, graphs.clone()) };
                // As if another rank had found one. The first question is whether another rank's list is another.
                let found = layout.on_ranks(run, |run| {
                    let asked = Cell::new(0);
                    train_verified(&run, memory, &|_| asked.replace(asked.get() + 1) % 2 == 1).1
                });
                found.iter().for_each(|found| assert_clean(found, 1, &format!("{scope:?} {memory:?} {layout:?}")));
            }
        }
    }
}

/// SGD with a momentum, in sixteenths, that is a number of the host: it freezes when the step is recorded.
#[derive(Debug)]
struct HostMomentum(Arc<AtomicU32>);

impl UpdateRule for HostMomentum {
    fn state(&self) -> &'static [RuleState] {
        Rule::Sgd { momentum: 1.0 }.state()
    }

    fn update(&self, params: Vec<ParamUpdate>, control: StepControl, _: &Params) -> Box<Update> {
        let momentum = self.0.clone();
        let StepControl { control, status } = control;
        Box::new(move |cx| {
            let of = |param: &ParamUpdate| ops::UpdateTensors {
                master: param.master,
                compute: param.weight,
                grad: param.grad,
                state: param.state.clone().into(),
                weight_decay: param.weight_decay,
                lr_multiplier: param.lr_multiplier,
            };
            let rule = Rule::Sgd { momentum: momentum.load(Ordering::Relaxed) as f32 / 16.0 };
            cx.run(ops::Update { rule, tensors: params.iter().map(of).collect(), control, status })
        })
    }
}

#[test]
fn a_momentum_that_froze_is_named_by_the_rank_that_has_it_and_the_others_run_nothing() {
    for scope in Scope::ALL {
        let momentum = Arc::new(AtomicU32::new(8));
        let mut groups = ParamGroup::decay_matrices(Rule::Sgd { momentum: 0.0 }, 0.1);
        let is_norm = |spec: &ParamSpec| spec.name == "h.1.ln_2.weight";
        groups.insert(0, ParamGroup::new(is_norm, Arc::new(HostMomentum(momentum.clone())), 0.0));
        let run = || Run {
            groups: Some(groups.clone()),
            shape: Some(tiny_gpt(0.1, Precision::F32)),
            learning_rate: 0.1,
            ..Run::new(Kind::Gpt, 2, GraphOptions { scope, ..GraphOptions::default() })
        };
        let votes = AtomicU32::new(0);
        let barrier = Barrier::new(2);
        // The second of two stages has the norm.
        let found = Layout::new(1, 2, 1, 1).on_ranks(run, |run| {
            let device = run.device();
            let (_, mut stage) = Run { steps: 3, ..run }.train_on(&device);
            barrier.wait();
            momentum.store(12, Ordering::Relaxed);
            barrier.wait();
            let any = |differs: bool| {
                votes.fetch_add(u32::from(differs), Ordering::Relaxed);
                barrier.wait();
                votes.load(Ordering::Relaxed) > 0
            };
            let settings = StepSettings {
                step: 3,
                microbatches: 2,
                first_sample: 12,
                learning_rate: 0.1,
                clip: 1.0,
                ..StepSettings::default()
            };
            let batch = batch(Kind::Gpt, settings.first_sample, 2);
            let how = Verification { any: &any, ..Verification::default() };
            stage.verify_step(Mode::Train, settings, Some(&batch), &how).map_err(|error| error.to_string())
        });
        assert_eq!(found[0], Ok(Verified::NotYet), "{scope:?}");
        let text = found[1].as_ref().unwrap_err();
        let words = "`sgd`: `momentum` was 0.5 when recorded and is now 0.75. Rule: a step repeats the list";
        assert!(text.starts_with("optimizer: operation ") && text.contains(words), "{scope:?}: {text}");
    }
}

/// SGD, and a number of the device's host that it writes in place of one gradient: how often it did.
#[derive(Debug)]
struct CountsRuns;

#[derive(Debug)]
struct WriteRuns {
    runs: Arc<AtomicU32>,
    output: device::Tensor,
}

impl ops::CustomOp for WriteRuns {
    fn name(&self) -> &'static str {
        "write_runs"
    }

    fn check(&self) -> device::Result<()> {
        Ok(())
    }

    fn accesses(&self) -> ops::Accesses {
        ops::Accesses::new([], [self.output])
    }

    fn run_host(&self, tensors: &mut device::HostTensors<'_>) -> device::Result<()> {
        tensors.write::<f32>(&self.output)?.fill((self.runs.fetch_add(1, Ordering::Relaxed) % 2) as f32);
        Ok(())
    }
}

impl UpdateRule for CountsRuns {
    fn state(&self) -> &'static [RuleState] {
        &[]
    }

    fn update(&self, updates: Vec<ParamUpdate>, control: StepControl, params: &Params) -> Box<Update> {
        let output = updates[0].grad;
        let (sgd, runs) = (Rule::Sgd { momentum: 0.0 }.update(updates, control, params), Arc::new(AtomicU32::new(0)));
        Box::new(move |cx| {
            sgd(cx)?;
            cx.run(ops::Custom::new(std::rc::Rc::new(WriteRuns { runs: runs.clone(), output })))
        })
    }
}

#[test]
fn a_difference_is_named_with_region_operation_and_parameter() {
    let mut groups = ParamGroup::decay_matrices(Rule::Sgd { momentum: 0.0 }, 0.1);
    let is_norm = |spec: &ParamSpec| spec.name == "h.1.ln_2.weight";
    groups.insert(0, ParamGroup::new(is_norm, Arc::new(CountsRuns), 0.0));
    let shape = Some(tiny_gpt(0.1, Precision::F32));
    let run = Run { steps: 3, groups: Some(groups), shape, ..Run::new(Kind::Gpt, 2, GraphOptions::default()) };
    let (_, mut stage) = run.train_on(&run.device());
    let batch = batch(Kind::Gpt, 12, 2);
    let found = stage.verify_step(Mode::Train, run.settings(3), Some(&batch), &Verification::default()).unwrap();
    let Verified::Differs(difference) = found else { panic!("{found:?}") };
    let text = difference.to_string();
    let words =
        " of h.1.ln_2.weight` (32 x f32, written by `write_runs`) has other bits with graphs: 32 elements differ";
    assert!(text.starts_with("optimizer: `") && text.contains(words) && !difference.hidden_by_waits, "{text}");
}
