//! Zero bubble changes when gradients of weights are made, and nothing else: every number has 1F1B's bits.

use device::DType;
use engine::graph_options::{GraphOptions, Scope};
use engine::model::GptShape;
use engine::precision::Precision;
use engine::regions::Mode;
use engine::step::{StepResult, StepSettings};
use graph_manager::Mempool;

use crate::models::{Kind, Layout, MICRO_BATCH, Run, Trained, off, tiny_gpt, tiny_llama};

const STEPS: usize = 5;

/// A layout of ranks, and the model that they train. With dropout and clipping, and the checker on.
#[derive(Clone, Debug)]
struct Case {
    layout: Layout,
    kind: Kind,
    layers: usize,
    tied: bool,
    /// Backward computes activations and normed values again.
    selective: bool,
    /// Blocks that backward computes again together.
    full: Option<usize>,
    /// Of each rank.
    microbatches: usize,
    precision: Precision,
    divided: bool,
    grad_reduce: DType,
    graphs: GraphOptions,
    shuffle: Option<u64>,
    rehearses: bool,
}

impl Case {
    /// Without graphs.
    fn new(kind: Kind, stages: usize, microbatches: usize) -> Case {
        Case {
            layout: Layout { zero_bubble: true, ..Layout::new(1, stages, 1, 1) },
            kind,
            layers: 4,
            tied: kind == Kind::Gpt,
            selective: false,
            full: None,
            microbatches,
            precision: Precision::F32,
            divided: false,
            grad_reduce: DType::F32,
            graphs: off(),
            shuffle: None,
            rehearses: false,
        }
    }

    /// With so many ranks that share layers, and the rows between them, and so many that share the batch.
    fn shared(self, tensor: usize, data: usize) -> Case {
        let stages = self.layout.stages;
        Case { layout: Layout { zero_bubble: true, ..Layout::new(tensor, stages, 1, data) }, ..self }
    }

    /// The same in 1F1B, each step submitted anew.
    fn plain(&self) -> Case {
        let layout = Layout { zero_bubble: false, ..self.layout };
        Case { layout, graphs: off(), shuffle: None, rehearses: false, ..self.clone() }
    }

    fn run(&self) -> Run {
        let own = if self.kind == Kind::Gpt { tiny_gpt } else { tiny_llama };
        let Case { layers, tied, selective: recompute, .. } = *self;
        Run {
            shape: Some(GptShape { layers, tied, recompute, ..own(0.1, self.precision) }),
            precision: self.precision,
            steps: STEPS,
            shuffle: self.shuffle,
            rehearses: self.rehearses,
            recompute: self.full,
            distributed_optimizer: self.divided,
            grad_reduce: self.grad_reduce,
            clip: 0.5,
            ..Run::new(self.kind, self.microbatches, self.graphs.clone())
        }
    }

    fn on_ranks<T: Send>(&self, work: impl Fn(Run) -> T + Sync) -> Vec<T> {
        self.layout.on_ranks(|| self.run(), work)
    }

    /// The results of all steps, and the bits of the weights, by rank.
    fn train(&self) -> Vec<Trained> {
        self.on_ranks(|run| run.train())
    }
}

/// Fails unless losses, norms and weights are 1F1B's, whatever the graphs.
fn assert_bits_of_one_f_one_b(case: &Case, settings: &[GraphOptions]) {
    let plain = case.plain().train();
    let losses: Vec<f64> = plain[0].0.iter().map(|step| step.loss).collect();
    assert!(losses.iter().all(|loss| loss.is_finite()) && losses[0] != losses[STEPS - 1], "{case:?}: {losses:?}");
    for graphs in settings {
        let case = Case { graphs: graphs.clone(), ..case.clone() };
        assert!(case.train() == plain, "{case:?}: other numbers than in 1F1B");
    }
}

/// Graphs off, per layer and per chunk with both pools, and all of the iteration; dead buffers are poisoned.
fn scopes() -> Vec<GraphOptions> {
    let with = |scope, mempool| GraphOptions { scope, mempool, poison: true, ..GraphOptions::default() };
    vec![
        GraphOptions { poison: true, ..off() },
        with(Scope::PerLayer, Mempool::PerMicrobatch),
        with(Scope::PerLayer, Mempool::Single),
        with(Scope::PerChunk, Mempool::PerMicrobatch),
        with(Scope::PerChunk, Mempool::Single),
        with(Scope::FullIteration, Mempool::Single),
    ]
}

#[test]
fn any_number_of_stages_and_microbatches_has_the_bits_of_1f1b() {
    for (kind, stages, microbatches) in
        [(Kind::Gpt, 2, 1), (Kind::Llama, 2, 4), (Kind::Gpt, 3, 5), (Kind::Llama, 4, 2), (Kind::Gpt, 4, 8)]
    {
        assert_bits_of_one_f_one_b(&Case::new(kind, stages, microbatches), &scopes());
    }
}

#[test]
fn tied_or_not_with_anything_computed_again_and_in_bf16_the_bits_are_those_of_1f1b() {
    for case in [
        Case { tied: false, ..Case::new(Kind::Gpt, 2, 4) },
        Case { tied: true, selective: true, ..Case::new(Kind::Llama, 2, 4) },
        Case { selective: true, precision: Precision::Bf16, ..Case::new(Kind::Gpt, 2, 4) },
        Case { full: Some(1), ..Case::new(Kind::Llama, 2, 4) },
        Case { full: Some(2), ..Case::new(Kind::Gpt, 2, 4) },
    ] {
        assert_bits_of_one_f_one_b(&case, &scopes());
    }
}

/// Layouts that combine stages with every other way to divide the work.
fn mixed() -> Vec<Case> {
    vec![
        Case::new(Kind::Gpt, 2, 2).shared(1, 2),
        Case { divided: true, ..Case::new(Kind::Gpt, 2, 4).shared(1, 2) },
        Case { grad_reduce: DType::Bf16, ..Case::new(Kind::Llama, 2, 1).shared(1, 2) },
        Case::new(Kind::Llama, 2, 4).shared(2, 1),
        Case { divided: true, ..Case::new(Kind::Gpt, 2, 2).shared(2, 2) },
    ]
}

#[test]
fn with_layers_batch_and_state_shared_by_ranks_the_bits_are_those_of_1f1b() {
    for case in mixed() {
        assert_bits_of_one_f_one_b(&case, &scopes());
    }
}

#[test]
fn no_setting_of_graphs_and_no_order_of_replay_changes_a_bit() {
    let case = Case { divided: true, ..Case::new(Kind::Gpt, 2, 4).shared(1, 2) };
    let settings: Vec<GraphOptions> = crate::models::all_settings().into_iter().map(|(_, graphs)| graphs).collect();
    assert_bits_of_one_f_one_b(&case, &settings);
    for seed in 0..3 {
        assert_bits_of_one_f_one_b(&Case { shuffle: Some(seed), ..case.clone() }, &scopes()[1..]);
    }
}

#[test]
fn a_rehearsal_captures_every_layer_and_changes_no_bit() {
    for case in mixed().into_iter().chain([Case::new(Kind::Gpt, 4, 4)]) {
        let case = Case { rehearses: true, ..case };
        assert_bits_of_one_f_one_b(&case, &scopes());
        let left = Case { graphs: GraphOptions::default(), ..case }.on_ranks(|run| {
            let device = run.device();
            let mut stage = run.stage(&device);
            stage.record(run.microbatches, false).unwrap();
            stage.rehearse(&[run.microbatches], false).unwrap();
            stage.graphs().expected_graphs(Mode::Train.into()) - stage.graphs().report().graphs.len()
        });
        assert!(left.iter().all(|left| *left == 1), "the update alone is left to capture: {left:?}");
    }
}

/// The first microbatch overwrites gradients, so its backwards put off other work than later ones do: here the weights
/// of a slot's microbatch that is not the last are first captured after such a step, with a backward captured before.
#[test]
fn steps_of_any_number_of_microbatches_go_by_the_slots_of_the_largest() {
    let train = |case: &Case| {
        case.on_ranks(|run| {
            let device = run.device();
            let mut stage = run.stage(&device);
            stage.record(run.microbatches, false).unwrap();
            let mut first_sample = 0;
            let steps = [8, 2, 1, 8, 8, 3, 1, 5, 2].into_iter().enumerate();
            let losses = steps.map(|(step, microbatches)| {
                let settings = StepSettings { microbatches, first_sample, ..run.settings(step) };
                first_sample += (microbatches * MICRO_BATCH) as u64;
                run.step(&mut stage, settings)
            });
            losses.collect::<Vec<StepResult>>()
        })
    };
    for case in [Case::new(Kind::Gpt, 3, 8), Case::new(Kind::Llama, 2, 8).shared(1, 2)] {
        let captured = Case { graphs: GraphOptions { poison: true, ..GraphOptions::default() }, ..case.clone() };
        assert_eq!(train(&captured), train(&case.plain()), "{case:?}");
    }
}

#[test]
fn every_stage_has_as_many_slots_as_there_are_stages_and_only_graphs_of_weights_reduce() {
    let counts = |case: Case| {
        let case = Case { graphs: GraphOptions::default(), ..case };
        case.on_ranks(|run| {
            let (_, mut stage) = run.train_on(&run.device());
            let slots = stage.graphs().memory().iter().filter(|area| area.area.starts_with("slot")).count();
            let graphs = stage.graphs().report().graphs;
            let named = |word: &str| graphs.iter().filter(|graph| graph.name.starts_with(word)).count();
            (slots, ["forward", "backward", "weights"].map(named))
        })
    };
    // Two blocks a stage, the embedding or the head beside. These two defer no gradients. The first microbatch's slot
    // has one more graph of each kind that computes gradients: that microbatch overwrites them.
    let alone = Case { layers: 8, ..Case::new(Kind::Gpt, 4, 8) };
    assert_eq!(counts(alone), [(4, [12, 14, 10]), (4, [8, 10, 10]), (4, [8, 10, 10]), (4, [13, 15, 10])]);
    // The last microbatch's slot also has a graph of each layer that reduces the gradients that the layer after it
    // completed.
    let shared = counts(Case::new(Kind::Gpt, 2, 4).shared(1, 2));
    assert_eq!(shared, [(2, [6, 8, 8]), (2, [6, 8, 8]), (2, [7, 9, 8]), (2, [7, 9, 8])]);
}

#[test]
fn gradients_of_weights_are_made_by_graphs_of_their_own_with_the_same_operations() {
    let nodes = |case: Case| {
        case.on_ranks(|run| {
            let (_, mut stage) = run.train_on(&run.device());
            let graphs = stage.graphs().report().graphs;
            ["backward", "weights"].map(|word| {
                let of_word = graphs.iter().filter(|graph| graph.name.starts_with(word));
                let operation = |node: &String| node.rsplit('/').next().unwrap().to_string();
                let mut nodes: Vec<String> = of_word.flat_map(|graph| graph.nodes.iter().map(operation)).collect();
                nodes.sort();
                nodes
            })
        })
    };
    // One microbatch has one slot in either schedule.
    let case = Case { graphs: GraphOptions::default(), ..Case::new(Kind::Gpt, 2, 1) };
    let plain = Case { layout: Layout { zero_bubble: false, ..case.layout }, ..case.clone() };
    for ([backward, weights], [whole, none]) in nodes(case).into_iter().zip(nodes(plain)) {
        let count = |name: &str| weights.iter().filter(|node| node.as_str() == name).count();
        // Of each linear layer of two blocks.
        assert_eq!((weights.len(), count("gemm"), count("bias_grad")), (16, 8, 8), "{weights:?}");
        let mut both = [backward, weights].concat();
        both.sort();
        assert_eq!((both, none), (whole, vec![]));
    }
}
