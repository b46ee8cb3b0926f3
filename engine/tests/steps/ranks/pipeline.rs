//! Stages of a pipeline train as one rank that has all layers, to the same bits: in every schedule, with dropout, with graphs
//! or without.

use std::collections::BTreeMap;

use engine::graph_options::{GraphOptions, Scope};
use engine::model::GptShape;
use engine::precision::Precision;
use engine::regions::Mode;
use engine::step::{StepResult, StepSettings};
use graph_manager::Mempool;
use parallel::Axis;

use crate::models::{Kind, Layout, MICRO_BATCH, Run, tiny_gpt, tiny_llama};

const STEPS: usize = 6;

/// A layout of ranks, and the model that they train.
#[derive(Clone, Debug)]
struct Case {
    kind: Kind,
    layers: usize,
    tied: bool,
    stages: usize,
    chunks: usize,
    /// Blocks of each part; as even as can be if empty.
    blocks: Vec<usize>,
    group: Option<usize>,
    tensor: usize,
    data: usize,
    /// Of each rank.
    microbatches: usize,
    precision: Precision,
    clip: f32,
    divided: bool,
    graphs: GraphOptions,
    shuffle: Option<u64>,
    /// Forwards run next to backwards of other microbatches.
    overlaps: bool,
    rehearses: bool,
    watched: bool,
}

impl Case {
    /// Without graphs; without clipping, so that no weight depends on the norm.
    fn new(kind: Kind, stages: usize, chunks: usize, microbatches: usize) -> Case {
        let graphs = GraphOptions { enable: false, ..GraphOptions::default() };
        Case {
            kind,
            layers: 4,
            tied: kind == Kind::Gpt,
            stages,
            chunks,
            blocks: Vec::new(),
            group: None,
            tensor: 1,
            data: 1,
            microbatches,
            precision: Precision::F32,
            clip: 0.0,
            divided: false,
            graphs,
            shuffle: None,
            overlaps: false,
            rehearses: false,
            watched: false,
        }
    }

    /// The same samples on one rank.
    fn alone(&self) -> Case {
        let microbatches = self.microbatches * self.data;
        let (blocks, group, overlaps) = (Vec::new(), None, false);
        let whole = Case { stages: 1, chunks: 1, tensor: 1, data: 1, divided: false, ..self.clone() };
        Case { microbatches, blocks, group, overlaps, ..whole }
    }

    fn shape(&self) -> GptShape {
        let (layers, tied) = (self.layers, self.tied);
        match self.kind {
            Kind::Llama => GptShape { layers, tied, recompute: true, ..tiny_llama(0.1, self.precision) },
            _ => GptShape { layers, tied, ..tiny_gpt(0.1, self.precision) },
        }
    }

    fn layout(&self) -> Layout {
        let layout = Layout::new(self.tensor, self.stages, self.chunks, self.data);
        Layout { group: self.group.unwrap_or(self.stages), ..layout }
    }

    fn run(&self) -> Run {
        Run {
            shape: Some(self.shape()),
            precision: self.precision,
            steps: STEPS,
            shuffle: self.shuffle,
            overlaps: self.overlaps,
            rehearses: self.rehearses,
            watched: self.watched,
            distributed_optimizer: self.divided,
            blocks: self.blocks.clone(),
            clip: self.clip,
            ..Run::new(self.kind, self.microbatches, self.graphs.clone())
        }
    }

    /// Does `work` on a thread for each rank. Returns the results by rank.
    fn on_ranks<T: Send>(&self, work: impl Fn(Run) -> T + Sync) -> Vec<T> {
        self.layout().on_ranks(|| self.run(), work)
    }

    /// The results, the same on all ranks, and the bits of every parameter's parts by name and rank. Stages that share
    /// a parameter must have the same bits of it.
    fn train(&self) -> (Vec<StepResult>, BTreeMap<String, Vec<Vec<u32>>>) {
        let ranks = self.on_ranks(|run| {
            let device = run.device();
            let (results, stage) = run.train_on(&device);
            let bits = |tensor| device.download::<f32>(tensor).unwrap().into_iter().map(f32::to_bits).collect();
            let owned = stage.params().iter().filter(|(_, param)| param.owned.elements > 0);
            let weights = owned.map(|(spec, param)| (spec.name.clone(), bits(&param.master))).collect();
            (results, weights)
        });
        let layout = self.layout();
        let mut all: BTreeMap<String, Vec<Vec<u32>>> = BTreeMap::new();
        let mut tables: BTreeMap<(usize, usize), Vec<u32>> = BTreeMap::new();
        for (rank, (results, weights)) in ranks.iter().enumerate() {
            let replica = (layout.position(rank, Axis::Tensor), layout.position(rank, Axis::Data));
            let weights: &Vec<(String, Vec<u32>)> = weights;
            assert_eq!(*results, ranks[0].0, "{self:?}: ranks disagree on the numbers");
            for (name, bits) in weights {
                if self.tied && name == "wte.weight" {
                    let table = tables.entry(replica).or_insert_with(|| bits.clone());
                    assert!(table == bits, "{self:?}: first and last stage disagree on the table");
                }
                all.entry(name.clone()).or_default().push(bits.clone());
            }
        }
        (ranks[0].0.clone(), all)
    }
}

/// Fails unless losses and weights have the bits of one rank's, and norms differ by no more than the order of their sum.
fn assert_bits_of_one_rank(case: &Case) {
    let (ours, weights) = case.train();
    let (theirs, whole) = case.alone().train();
    for (step, (a, b)) in ours.iter().zip(&theirs).enumerate() {
        assert_eq!(a.loss.to_bits(), b.loss.to_bits(), "{case:?}, step {step}: {} and {}", a.loss, b.loss);
        let norm = (a.grad_norm / b.grad_norm - 1.0).abs();
        assert!(norm < 1e-6, "{case:?}, step {step}: gradient norms {} and {}", a.grad_norm, b.grad_norm);
    }
    assert!(weights == whole, "{case:?}: other weights");
}

/// Stages, chunks of each and microbatches.
const SCHEDULES: [(usize, usize, usize); 9] =
    [(2, 1, 1), (2, 1, 4), (2, 1, 8), (4, 1, 1), (4, 1, 4), (4, 1, 8), (2, 2, 4), (4, 2, 4), (4, 2, 8)];

#[test]
fn without_clipping_stages_of_an_untied_model_have_the_bits_of_one_rank_in_every_schedule() {
    for kind in [Kind::Gpt, Kind::Llama] {
        for (stages, chunks, microbatches) in SCHEDULES {
            let layers = (stages * chunks).max(4);
            let case = Case { tied: false, layers, ..Case::new(kind, stages, chunks, microbatches) };
            assert_bits_of_one_rank(&case);
        }
    }
}

#[test]
fn in_bf16_the_boundary_rounds_as_the_norm_behind_it_does() {
    for (kind, chunks) in [(Kind::Gpt, 1), (Kind::Llama, 2)] {
        assert_bits_of_one_rank(&Case { tied: false, precision: Precision::Bf16, ..Case::new(kind, 2, chunks, 4) });
    }
}

#[test]
fn uneven_parts_odd_rings_and_large_groups_have_the_bits_of_one_rank() {
    let untied =
        |stages, chunks, microbatches| Case { tied: false, ..Case::new(Kind::Gpt, stages, chunks, microbatches) };
    for case in [
        Case { blocks: vec![1, 2, 1, 3], layers: 7, ..untied(4, 1, 4) },
        Case { blocks: vec![2, 1, 1, 2], layers: 6, ..untied(2, 2, 4) },
        Case { layers: 7, ..untied(3, 2, 6) },
        Case { group: Some(4), ..untied(2, 2, 8) },
        Case { group: Some(3), ..untied(2, 2, 5) },
        Case { group: Some(8), layers: 6, ..untied(2, 3, 8) },
    ] {
        assert_bits_of_one_rank(&case);
        for scope in [Scope::PerChunk, Scope::FullIteration] {
            let graphs = GraphOptions { scope, ..GraphOptions::default() };
            assert!(Case { graphs, ..case.clone() }.train() == case.train(), "{case:?}: {scope:?} changes numbers");
        }
    }
}

#[test]
fn marks_of_receives_that_wait_hold_up_no_rank_in_groups_larger_than_the_stages() {
    let untied =
        |stages, microbatches| Case { tied: false, watched: true, ..Case::new(Kind::Gpt, stages, 2, microbatches) };
    for case in [
        Case { group: Some(3), ..untied(2, 5) },
        Case { group: Some(3), ..untied(2, 6) },
        Case { group: Some(4), layers: 6, ..untied(3, 8) },
        Case { group: Some(5), layers: 6, ..untied(3, 8) },
    ] {
        let bits = Case { watched: false, ..case.clone() }.train();
        for scope in Scope::ALL {
            let graphs = GraphOptions { scope, ..GraphOptions::default() };
            for (shuffle, overlaps) in [(None, false), (Some(3), false), (None, true), (Some(3), true)] {
                let case = Case { graphs: graphs.clone(), shuffle, overlaps, ..case.clone() };
                assert!(case.train() == bits, "{case:?}");
            }
        }
    }
}

/// Layouts that combine stages with every other way to divide the work.
fn mixed() -> Vec<Case> {
    vec![
        Case { data: 2, ..Case::new(Kind::Gpt, 2, 1, 2) },
        Case { data: 2, divided: true, ..Case::new(Kind::Gpt, 2, 1, 2) },
        Case { data: 2, divided: true, ..Case::new(Kind::Llama, 2, 2, 4) },
        Case { tensor: 2, ..Case::new(Kind::Gpt, 2, 1, 4) },
        Case { tensor: 2, ..Case::new(Kind::Llama, 2, 2, 2) },
        Case { tensor: 2, data: 2, divided: true, ..Case::new(Kind::Gpt, 2, 2, 2) },
    ]
}

#[test]
fn graphs_change_no_bit_of_a_pipeline_in_any_setting() {
    let case = Case { clip: 1.0, ..Case::new(Kind::Gpt, 2, 2, 4) };
    let eager = case.train();
    for (name, graphs) in &crate::models::all_settings()[1..] {
        assert!(Case { graphs: graphs.clone(), ..case.clone() }.train() == eager, "{name}");
    }
    let plain = [Case::new(Kind::Gpt, 4, 1, 1), Case::new(Kind::Llama, 4, 1, 8)];
    for case in plain.into_iter().chain(mixed()) {
        let case = Case { clip: 0.5, ..case };
        let eager = case.train();
        for (scope, mempool) in [
            (Scope::PerLayer, Mempool::PerMicrobatch),
            (Scope::PerLayer, Mempool::Single),
            (Scope::PerChunk, Mempool::PerMicrobatch),
            (Scope::PerChunk, Mempool::Single),
            (Scope::FullIteration, Mempool::PerMicrobatch),
        ] {
            let graphs = GraphOptions { scope, mempool, poison: true, ..GraphOptions::default() };
            for overlaps in [false, true] {
                let case = Case { graphs: graphs.clone(), overlaps, ..case.clone() };
                assert!(case.train() == eager, "{case:?}");
            }
        }
    }
}

#[test]
fn a_rehearsal_transfers_and_updates_nothing_and_captures_every_layer_or_chunk() {
    for case in mixed().into_iter().chain([Case::new(Kind::Gpt, 4, 1, 1), Case::new(Kind::Gpt, 2, 2, 4)]) {
        let eager = case.train();
        for (enable, scope, overlaps) in [
            (false, Scope::PerLayer, false),
            (true, Scope::PerLayer, false),
            (true, Scope::PerLayer, true),
            (true, Scope::PerChunk, false),
            (true, Scope::PerChunk, true),
            (true, Scope::FullIteration, false),
            (true, Scope::FullIteration, true),
        ] {
            let graphs = GraphOptions { enable, scope, ..GraphOptions::default() };
            let case = Case { graphs, overlaps, rehearses: true, ..case.clone() };
            assert!(case.train() == eager, "{case:?}");
            let left = case.on_ranks(|run| {
                let device = run.device();
                let mut stage = run.stage(&device);
                stage.record(run.microbatches, false).unwrap();
                // No stage waits for another: each goes through its part whenever it likes.
                stage.rehearse(&[run.microbatches], false).unwrap();
                stage.graphs().expected_graphs(Mode::Train.into()) - stage.graphs().report().graphs.len()
            });
            let update = usize::from(enable);
            assert!(left.iter().all(|left| *left == update), "{case:?}: {left:?} graphs are left to capture");
        }
    }
}

#[test]
fn random_replay_orders_change_no_bit_of_a_pipeline() {
    for case in [Case::new(Kind::Gpt, 2, 2, 4), Case { data: 2, divided: true, ..Case::new(Kind::Llama, 2, 1, 4) }] {
        for scope in Scope::ALL {
            let graphs = GraphOptions { scope, ..GraphOptions::default() };
            let case = Case { graphs, ..case.clone() };
            let plain = case.train();
            for seed in 0..3 {
                assert!(Case { shuffle: Some(seed), ..case.clone() }.train() == plain, "{case:?} seed {seed}");
            }
        }
    }
}

#[test]
fn an_evaluation_between_steps_has_the_loss_of_one_rank_and_changes_none() {
    let losses = |case: &Case| {
        let ranks = case.on_ranks(|run| {
            let device = run.device();
            let mut stage = run.stage(&device);
            stage.record(run.microbatches, true).unwrap();
            let mut losses = Vec::new();
            for step in 0..4 {
                losses.push(run.step(&mut stage, run.settings(step)).loss.to_bits());
                losses.push(run.evaluate(&mut stage, run.settings(step)).loss.to_bits());
            }
            losses
        });
        assert!(ranks.iter().all(|losses| *losses == ranks[0]), "{case:?}: ranks disagree");
        ranks[0].clone()
    };
    for (stages, chunks) in [(2, 1), (2, 2), (4, 1)] {
        let case = Case { tied: false, ..Case::new(Kind::Gpt, stages, chunks, 4) };
        let alone = losses(&case.alone());
        assert!(f64::from_bits(alone[1]) < f64::from_bits(alone[0]), "an update makes its batch likelier");
        assert_eq!(losses(&case), alone, "{case:?}");
        for (scope, overlaps) in Scope::ALL.into_iter().flat_map(|scope| [(scope, false), (scope, true)]) {
            let case = Case { graphs: GraphOptions { scope, ..GraphOptions::default() }, overlaps, ..case.clone() };
            assert_eq!(losses(&case), alone, "{case:?}");
        }
    }
}

#[test]
fn slots_take_steps_of_any_number_of_microbatches() {
    let train = |case: &Case| {
        let ranks = case.on_ranks(|run| {
            let device = run.device();
            let mut stage = run.stage(&device);
            stage.record(run.microbatches, false).unwrap();
            let mut first_sample = 0;
            let steps = [8, 8, 3, 1, 8, 5, 1, 2, 3].into_iter().enumerate();
            let losses: Vec<u64> = steps
                .map(|(step, microbatches)| {
                    let settings = StepSettings { microbatches, first_sample, ..run.settings(step) };
                    first_sample += (microbatches * MICRO_BATCH) as u64;
                    run.step(&mut stage, settings).loss.to_bits()
                })
                .collect();
            losses
        });
        assert!(ranks.iter().all(|losses| *losses == ranks[0]), "{case:?}: ranks disagree");
        ranks[0].clone()
    };
    for stages in [2, 4] {
        let eager = Case { tied: false, ..Case::new(Kind::Gpt, stages, 1, 8) };
        let captured = Case { graphs: GraphOptions { poison: true, ..GraphOptions::default() }, ..eager.clone() };
        assert_eq!(train(&captured), train(&eager.alone()), "{stages} stages");
        assert_eq!(train(&captured), train(&eager), "{stages} stages");
        assert_eq!(train(&Case { overlaps: true, ..captured }), train(&eager), "{stages} stages, overlapping");
    }
}

#[test]
fn only_the_first_and_the_last_stage_need_samples() {
    for chunks in [1, 2] {
        let case = Case { layers: 8, ..Case::new(Kind::Gpt, 4, chunks, 4) };
        let needs = case.on_ranks(|run| run.stage(&run.device()).needs_batch());
        assert_eq!(needs, [true, false, false, true], "{chunks} chunks");
    }
}

#[test]
fn a_number_of_microbatches_that_the_schedule_does_not_take_is_an_error_and_no_hang() {
    let errors = Case::new(Kind::Gpt, 2, 2, 4).on_ranks(|run| {
        let device = run.device();
        let mut stage = run.stage(&device);
        let settings = StepSettings { microbatches: 3, ..run.settings(0) };
        let batch = crate::models::batch(run.kind, 0, 3);
        stage.train_step(settings, Some(&batch)).map(|_| ()).unwrap_err().to_string()
    });
    assert!(errors.iter().all(|error| error.contains("3 microbatches") && error.contains("Fix: ")), "{errors:?}");
}

#[test]
fn a_chunk_has_a_slot_for_each_microbatch_it_has_in_flight_and_graphs_for_each_slot() {
    let graphs = GraphOptions::default();
    let slots = |case: Case| {
        case.on_ranks(|run| {
            let (_, mut stage) = run.train_on(&run.device());
            let areas = stage.graphs().memory();
            let names = areas.iter().map(|area| area.area.as_str()).filter(|name| name.starts_with("slot"));
            let late = names.clone().filter(|name| name.ends_with("of chunk 1")).count();
            let forwards =
                stage.graphs().report().graphs.iter().filter(|graph| graph.name.starts_with("forward")).count();
            (names.count() - late, late, forwards)
        })
    };
    // In 1F1B a stage runs ahead by the stages behind it. Each has three layers or two. The head's forward computes
    // gradients, so it has a graph for the first microbatch too.
    let plain = Case { layers: 8, graphs: graphs.clone(), ..Case::new(Kind::Gpt, 4, 1, 8) };
    assert_eq!(slots(plain), [(4, 0, 4 * 3), (3, 0, 3 * 2), (2, 0, 2 * 2), (1, 0, 3 + 1)]);
    // If forwards overlap with backwards, twice as many microbatches are in flight: all of them on the first stage.
    let overlapping = Case { layers: 8, overlaps: true, graphs: graphs.clone(), ..Case::new(Kind::Gpt, 4, 1, 8) };
    assert_eq!(slots(overlapping), [(8, 0, 8 * 3), (6, 0, 6 * 2), (4, 0, 4 * 2), (2, 0, 2 * 3 + 1)]);
    // The interleaved numbers are those of the schedule's known table; a block a chunk, embedding and head beside.
    let interleaved = Case { layers: 8, graphs, ..Case::new(Kind::Gpt, 4, 2, 8) };
    assert_eq!(slots(interleaved), [(8, 4, 8 * 2 + 4), (8, 4, 8 + 4), (7, 3, 7 + 3), (5, 1, 5 + 2 + 1)]);
}

#[test]
fn a_gradient_that_is_not_finite_on_one_stage_skips_the_update_on_all() {
    let results = Case::new(Kind::Gpt, 4, 1, 4).on_ranks(|run| {
        let device = run.device();
        let mut stage = run.stage(&device);
        // The first stage's positions reach the later stages' activations; the last stage's gradients reach all.
        let poisoned = stage.params().iter().find(|(spec, _)| spec.name == "wpe.weight").map(|(_, param)| *param);
        if let Some(param) = poisoned {
            device.upload(&param.weight, &vec![f32::NAN; param.weight.elements()]).unwrap();
        }
        let weights = |stage: &engine::step::Stage| -> Vec<u32> {
            let all = stage.params().iter().flat_map(|(_, param)| device.download::<f32>(&param.master).unwrap());
            all.map(f32::to_bits).collect()
        };
        let before = weights(&stage);
        let result = run.step(&mut stage, run.settings(0));
        (result.applied, weights(&stage) == before)
    });
    assert_eq!(results, [(false, true); 4]);
}

#[test]
fn the_stages_have_the_parameters_of_one_rank_and_the_table_twice_if_it_is_tied() {
    let names = |case: &Case| {
        let ranks = case.on_ranks(|run| {
            let device = run.device();
            let stage = run.stage(&device);
            let specs = stage.params().specs.iter().map(|spec| spec.name.clone());
            assert!(stage.params_elsewhere().iter().all(|name| specs.clone().all(|here| here != *name)));
            specs.collect::<Vec<String>>()
        });
        let mut all: Vec<String> = ranks.into_iter().flatten().collect();
        all.sort();
        all
    };
    for tied in [false, true] {
        let case = Case { tied, ..Case::new(Kind::Gpt, 2, 2, 4) };
        let mut expected = names(&case.alone());
        expected.extend(tied.then(|| "wte.weight".to_string()));
        expected.sort();
        assert_eq!(names(&case), expected);
    }
}
