//! Ranks that divide the optimizer's state train as ranks that each have all of it: the same bits of losses and weights
//! if no norm enters them, and with clipping the same up to the order of the norm's sum. So do ranks that divide
//! gradients and weights too, but that they add the gradients of microbatches in another order.

use device::{DType, Device, Home, bf16};
use engine::fp8::{Fp8, Fp8Recipe};
use engine::graph_options::{GraphOptions, Scope};
use engine::model::GptShape;
use engine::params::{Param, ParamSpec, Sharding};
use engine::precision::Precision;
use engine::step::{Stage, StepResult};
use graph_manager::Mempool;

use crate::models::{Kind, Layout, Run, all_settings, tiny_gpt, tiny_llama};

const STEPS: usize = 6;

#[test]
fn a_rank_makes_first_weights_of_its_own_part_alone_and_gathers_the_others() {
    for precision in [Precision::F32, Precision::Bf16] {
        let shape = || Some(GptShape { layers: 3, ..tiny_gpt(0.0, precision) });
        let run =
            || Run { shape: shape(), distributed_optimizer: true, ..Run::new(Kind::Gpt, 1, GraphOptions::default()) };
        let values = |stage: &Stage| -> Vec<Vec<f32>> {
            stage.params().iter().map(|(_, param)| weights(stage.device(), param)).collect()
        };
        let whole = Run { distributed_optimizer: false, ..run() };
        let whole = values(&whole.stage(&whole.device()));
        let missing = Layout::new(1, 1, 1, 2).on_ranks(run, |run| {
            let device = run.device();
            let mut stage = run.stage(&device);
            let mut missing = 0;
            for (index, (values, whole)) in values(&stage).iter().zip(&whole).enumerate() {
                let needed = stage.params().needed(index);
                missing += whole.len() - needed.len();
                assert_eq!(values[needed.clone()], whole[needed.clone()]);
                let others = values.iter().enumerate().filter(|(at, _)| !needed.contains(at));
                assert!(others.map(|(_, value)| value).all(|value| *value == 0.0), "parameter {index}");
            }
            run.evaluate(&mut stage, run.settings(0));
            assert!(values(&stage) == whole, "a step gathers the weights of other ranks");
            missing
        });
        assert!(missing.iter().all(|missing| *missing > 10_000), "{missing:?}");
    }
}

/// The weights that layers read.
fn weights(device: &Device, param: &Param) -> Vec<f32> {
    match param.weight.dtype {
        DType::Bf16 => device.download::<bf16>(&param.weight).unwrap().into_iter().map(f32::from).collect(),
        _ => device.download(&param.weight).unwrap(),
    }
}

/// A layout of ranks, and the model that they train.
#[derive(Clone, Debug)]
struct Case {
    kind: Kind,
    tensor: usize,
    data: usize,
    /// Of each rank.
    microbatches: usize,
    precision: Precision,
    fp8: Option<Fp8>,
    clip: f32,
    sharding: Sharding,
    graphs: GraphOptions,
    shuffle: Option<u64>,
}

impl Case {
    /// Data-parallel ranks without clipping, so that no number depends on the norm, and without graphs.
    fn new(kind: Kind, data: usize, microbatches: usize) -> Case {
        let graphs = GraphOptions { enable: false, ..GraphOptions::default() };
        let precision = Precision::F32;
        Case {
            kind,
            tensor: 1,
            data,
            microbatches,
            precision,
            fp8: None,
            clip: 0.0,
            sharding: Sharding::State,
            graphs,
            shuffle: None,
        }
    }

    /// The same with 8-bit products, over bf16.
    fn in_8_bits(self, recipe: Fp8Recipe) -> Case {
        Case { precision: Precision::Bf16, fp8: Some(Fp8 { recipe, ..Fp8::default() }), ..self }
    }

    /// The same, each rank with the whole optimizer.
    fn plain(&self) -> Case {
        Case { sharding: Sharding::Nothing, ..self.clone() }
    }

    fn run(&self) -> Run {
        let shape = match self.kind {
            // Enough key and value heads for two ranks.
            Kind::Llama => Some(tiny_llama(0.1, self.precision)),
            Kind::Gpt => Some(tiny_gpt(0.1, self.precision)),
            Kind::Mlp => None,
        };
        // Products of 8-bit factors need multiples of 16.
        let in_8_bits = |shape| GptShape { ffn: 64, kv_heads: 4, layers: 4, fp8: self.fp8, ..shape };
        let shape = if self.fp8.is_some() { shape.map(in_8_bits) } else { shape };
        Run {
            shape,
            precision: self.precision,
            steps: STEPS,
            shuffle: self.shuffle,
            sharding: self.sharding,
            clip: self.clip,
            ..Run::new(self.kind, self.microbatches, self.graphs.clone())
        }
    }

    /// Does `work` on a thread for each rank. Returns the results by rank.
    fn on_ranks<T: Send>(&self, work: impl Fn(Run) -> T + Sync) -> Vec<T> {
        Layout::new(self.tensor, 1, 1, self.data).on_ranks(|| self.run(), work)
    }

    /// The numbers of all steps, the same on all ranks, and the final weights and moments put together from the ranks
    /// that have them, by tensor-parallel rank.
    fn train(&self) -> (Vec<StepResult>, Vec<State>) {
        let ranks = self.on_ranks(|run| {
            let device = run.device();
            let (results, stage) = run.train_on(&device);
            (results, parts(&device, &stage))
        });
        assert!(ranks.iter().all(|(results, _)| *results == ranks[0].0), "{self:?}: ranks disagree on the numbers");
        let whole = |tensor: usize| {
            let of_tensor = ranks.iter().skip(tensor).step_by(self.tensor).map(|(_, parts)| parts);
            join(of_tensor, self.sharding > Sharding::Nothing)
        };
        (ranks[0].0.clone(), (0..self.tensor).map(whole).collect())
    }
}

/// Bits of master weights and moments of each parameter.
type State = Vec<Vec<u32>>;

/// A rank's part of each: the number of elements of the whole, the first one here, and the bits.
type Parts = Vec<(usize, usize, Vec<u32>)>;

fn parts(device: &Device, stage: &Stage) -> Parts {
    let params = stage.params();
    let mut all = Vec::new();
    for (index, (spec, param)) in params.iter().enumerate().filter(|(_, (_, param))| param.owned.elements > 0) {
        let moments = stage.optimizer().state(index).iter().map(|state| state.tensor);
        for (number, tensor) in std::iter::once(param.master).chain(moments).enumerate() {
            let bits = device.download::<f32>(&tensor).unwrap().into_iter().map(f32::to_bits).collect();
            all.push((spec.shape.elements(), param.owned.first, bits, index, number));
        }
    }
    let kinds = 1 + stage.optimizer().state_names().len();
    let mut placed: Parts =
        params.specs.iter().flat_map(|spec| vec![(spec.shape.elements(), 0, vec![]); kinds]).collect();
    for (elements, first, bits, index, number) in all {
        placed[index * kinds + number] = (elements, first, bits);
    }
    placed
}

/// Puts the parts of ranks together; if each has all, they must be the same.
fn join<'p>(ranks: impl Iterator<Item = &'p Parts>, divided: bool) -> State {
    let ranks: Vec<&Parts> = ranks.collect();
    let whole = |index: usize| {
        let mut values: Vec<Option<u32>> = vec![None; ranks[0][index].0];
        for (_, first, bits) in ranks.iter().map(|parts| &parts[index]) {
            for (value, bits) in values[*first..].iter_mut().zip(bits) {
                assert!(value.is_none_or(|other| !divided && other == *bits), "an element that two ranks update");
                *value = Some(*bits);
            }
        }
        values.into_iter().map(|value| value.expect("an element that no rank updates")).collect()
    };
    (0..ranks[0].len()).map(whole).collect()
}

/// Fails unless losses and weights have the same bits, and norms differ by no more than the order of their sum.
fn assert_same_but_for_the_norm(case: &Case) {
    let (ours, state) = case.train();
    let (theirs, plain) = case.plain().train();
    for (step, (a, b)) in ours.iter().zip(&theirs).enumerate() {
        assert_eq!(a.loss.to_bits(), b.loss.to_bits(), "{case:?}, step {step}: {} and {}", a.loss, b.loss);
        let norm = (a.grad_norm / b.grad_norm - 1.0).abs();
        assert!(norm < 1e-6, "{case:?}, step {step}: gradient norms {} and {}", a.grad_norm, b.grad_norm);
    }
    assert!(state == plain, "{case:?}: other weights or moments");
}

#[test]
fn without_clipping_2_and_4_ranks_that_divide_the_state_have_the_bits_of_those_that_do_not() {
    for kind in [Kind::Gpt, Kind::Llama, Kind::Mlp] {
        for (data, microbatches) in [(2, 1), (2, 4), (4, 1), (4, 4)] {
            assert_same_but_for_the_norm(&Case::new(kind, data, microbatches));
        }
    }
}

#[test]
fn without_clipping_ranks_that_also_share_layers_have_the_bits_of_those_that_do_not_divide_the_state() {
    for kind in [Kind::Gpt, Kind::Llama] {
        for microbatches in [1, 4] {
            assert_same_but_for_the_norm(&Case { tensor: 2, ..Case::new(kind, 2, microbatches) });
        }
    }
}

#[test]
fn in_bf16_master_weights_and_moments_have_the_same_bits_too() {
    for (kind, tensor) in [(Kind::Gpt, 1), (Kind::Llama, 2), (Kind::Mlp, 1)] {
        assert_same_but_for_the_norm(&Case { tensor, precision: Precision::Bf16, ..Case::new(kind, 2, 2) });
    }
}

#[test]
fn in_8_bits_master_weights_and_moments_have_the_same_bits_too() {
    for recipe in [Fp8Recipe::Tensorwise, Fp8Recipe::Delayed] {
        for (kind, data, microbatches) in [(Kind::Gpt, 2, 2), (Kind::Llama, 4, 1)] {
            let graphs = GraphOptions::default();
            assert_same_but_for_the_norm(&Case { graphs, ..Case::new(kind, data, microbatches) }.in_8_bits(recipe));
        }
    }
}

#[test]
fn ranks_that_divide_gradients_and_weights_have_the_same_bits_with_one_microbatch() {
    for sharding in [Sharding::Gradients, Sharding::Weights] {
        for (kind, tensor, data, precision) in [
            (Kind::Gpt, 1, 2, Precision::F32),
            (Kind::Gpt, 2, 2, Precision::Bf16),
            (Kind::Llama, 1, 4, Precision::Bf16),
            (Kind::Mlp, 1, 4, Precision::F32),
        ] {
            assert_same_but_for_the_norm(&Case { tensor, precision, sharding, ..Case::new(kind, data, 1) });
        }
    }
    for (sharding, recipe) in [
        (Sharding::Gradients, Fp8Recipe::Tensorwise),
        (Sharding::Weights, Fp8Recipe::Delayed),
        (Sharding::Weights, Fp8Recipe::Rowwise),
    ] {
        assert_same_but_for_the_norm(&Case { sharding, ..Case::new(Kind::Llama, 2, 1) }.in_8_bits(recipe));
    }
}

#[test]
fn ranks_that_divide_gradients_and_weights_agree_with_more_microbatches_up_to_the_order_of_sums() {
    for (kind, sharding) in [(Kind::Gpt, Sharding::Gradients), (Kind::Llama, Sharding::Weights)] {
        let case = Case { clip: 0.05, sharding, ..Case::new(kind, 2, 4) };
        let (ours, theirs) = (case.train().0, case.plain().train().0);
        for (step, (a, b)) in ours.iter().zip(&theirs).enumerate() {
            let (loss, norm) = ((a.loss / b.loss - 1.0).abs(), (a.grad_norm / b.grad_norm - 1.0).abs());
            assert!(loss < 1e-6 && norm < 2e-5, "{case:?}, step {step}: {a:?} and {b:?}");
        }
    }
}

#[test]
fn with_clipping_losses_and_norms_agree_up_to_the_order_of_the_norms_sum() {
    for (kind, tensor) in [(Kind::Gpt, 1), (Kind::Gpt, 2), (Kind::Llama, 2), (Kind::Mlp, 1)] {
        let case = Case { tensor, clip: 0.05, ..Case::new(kind, 2, 2) };
        let (ours, theirs) = (case.train().0, case.plain().train().0);
        assert!(theirs.iter().all(|step| step.grad_norm > 0.05), "{case:?}: every step is clipped");
        for (step, (a, b)) in ours.iter().zip(&theirs).enumerate() {
            let (loss, norm) = ((a.loss / b.loss - 1.0).abs(), (a.grad_norm / b.grad_norm - 1.0).abs());
            assert!(loss < 1e-6 && norm < 2e-5, "{case:?}, step {step}: {a:?} and {b:?}");
        }
    }
}

#[test]
fn graphs_change_no_bit_in_any_setting() {
    let case = Case { clip: 1.0, ..Case::new(Kind::Gpt, 2, 2) };
    let eager = case.train();
    for (name, graphs) in &all_settings()[1..] {
        assert!(Case { graphs: graphs.clone(), ..case.clone() }.train() == eager, "{name}");
    }
    for case in [
        Case { precision: Precision::Bf16, ..Case::new(Kind::Llama, 4, 1) },
        Case { tensor: 2, ..Case::new(Kind::Llama, 2, 4) },
        Case::new(Kind::Mlp, 4, 4),
        Case { sharding: Sharding::Gradients, ..Case::new(Kind::Gpt, 2, 2) },
        // Embedding and head take turns.
        Case { sharding: Sharding::Weights, precision: Precision::Bf16, ..Case::new(Kind::Llama, 4, 2) },
    ] {
        let eager = case.train();
        for scope in Scope::ALL {
            for mempool in [Mempool::PerMicrobatch, Mempool::Single] {
                let graphs = GraphOptions { scope, mempool, poison: true, ..GraphOptions::default() };
                assert!(Case { graphs, ..case.clone() }.train() == eager, "{case:?} {scope:?} {mempool:?}");
            }
        }
    }
}

#[test]
fn random_replay_orders_change_no_bit() {
    for (kind, tensor) in [(Kind::Gpt, 1), (Kind::Llama, 2), (Kind::Mlp, 1)] {
        for scope in Scope::ALL {
            let graphs = GraphOptions { scope, ..GraphOptions::default() };
            let sharding = if kind == Kind::Gpt { Sharding::Weights } else { Sharding::State };
            let case = Case { tensor, graphs, sharding, ..Case::new(kind, 2, 2) };
            let plain = case.train();
            for seed in 0..3 {
                assert!(Case { shuffle: Some(seed), ..case.clone() }.train() == plain, "{case:?} seed {seed}");
            }
        }
    }
}

#[test]
fn transfers_run_inside_forward_and_backward_graphs() {
    let case = Case { graphs: GraphOptions::default(), ..Case::new(Kind::Gpt, 2, 4) };
    for report in case.on_ranks(|run| run.train_on(&run.device()).1.graphs().report()) {
        let with = |word: &str| -> Vec<&str> {
            let has = |nodes: &[String]| nodes.iter().any(|node| node.contains(word));
            report.graphs.iter().filter(|graph| has(&graph.nodes)).map(|graph| graph.name.as_str()).collect()
        };
        // Embedding, two blocks and a head, a bucket each; but the head's norm goes with the block before it.
        assert_eq!(with("reduce_scatter").len(), 3, "{report}");
        let gathering = with("all_gather");
        // The embedding's own forward gathers its bucket, and the next one.
        assert_eq!(gathering.len(), 2, "{report}");
        let is_first = |name: &&str| name.starts_with("forward") && name.ends_with("microbatch 0");
        assert!(gathering.iter().all(is_first), "{gathering:?}");
    }
    let case = Case { sharding: Sharding::Weights, ..case };
    for report in case.on_ranks(|run| run.train_on(&run.device()).1.graphs().report()) {
        let of = |phase: &str, word: &str| {
            let graphs = report.graphs.iter().filter(|graph| graph.name.starts_with(phase));
            graphs.filter(|graph| graph.nodes.iter().any(|node| node.contains(word))).count()
        };
        // Each layer's graph gathers for the next block: in forward embedding and block, in backward head and block.
        assert!(of("forward", "all_gather") >= 2 && of("backward", "all_gather") >= 2, "{report}");
        assert!(of("backward", "reduce_scatter") >= 2, "{report}");
    }
}

#[test]
fn evaluation_reads_the_weights_of_the_last_update() {
    let case = Case::new(Kind::Gpt, 2, 2);
    let divided = Case { sharding: Sharding::Weights, ..Case::new(Kind::Gpt, 2, 1) };
    for case in [case.clone(), case.in_8_bits(Fp8Recipe::Tensorwise), divided] {
        for enable in [false, true] {
            let case = Case { graphs: GraphOptions { enable, ..GraphOptions::default() }, ..case.clone() };
            let losses = |case: Case| {
                case.on_ranks(|run| {
                    let device = run.device();
                    let mut stage = run.stage(&device);
                    stage.record(run.microbatches, true).unwrap();
                    let mut losses = Vec::new();
                    for step in 0..3 {
                        losses.push(run.step(&mut stage, run.settings(step)).loss);
                        losses.push(run.evaluate(&mut stage, run.settings(step)).loss);
                    }
                    losses
                })
            };
            let ours = losses(case.clone());
            assert!(ours[0][1] < ours[0][0], "an update makes its batch likelier: {ours:?}");
            assert_eq!(ours, losses(case.plain()), "graphs {enable}");
        }
    }
}

#[test]
fn a_gradient_that_is_not_finite_on_one_ranks_part_skips_the_update_on_all() {
    let case = Case::new(Kind::Gpt, 4, 1);
    let results = case.on_ranks(|run| {
        let device = run.device();
        let mut stage = run.stage(&device);
        let before = parts(&device, &stage);
        // The final norm's gain is read by all, and its gradient lies in one rank's part.
        let gain = stage.params().get("ln_f.weight").weight;
        device.upload(&gain, &vec![f32::NAN; gain.elements()]).unwrap();
        let poisoned = parts(&device, &stage);
        let result = run.step(&mut stage, run.settings(0));
        assert!(before.iter().flat_map(|part| &part.2).all(|bits| f32::from_bits(*bits).is_finite()));
        (result.applied, parts(&device, &stage) == poisoned)
    });
    assert_eq!(results, [(false, true); 4]);
}

#[test]
fn master_weights_and_moments_take_the_memory_of_one_part() {
    for (precision, data) in [(Precision::F32, 2), (Precision::Bf16, 2), (Precision::Bf16, 4)] {
        let case = Case { precision, ..Case::new(Kind::Gpt, data, 2) };
        let measure = |case: &Case| {
            case.on_ranks(|run| {
                let device = run.device();
                let stage = run.stage(&device);
                let params = stage.params();
                let state = stage.optimizer().state_bytes_in(Home::Device) + params.master_bytes_in(Home::Device);
                (device.allocated_bytes(), state, params.weight_bytes(), params.grads.bytes())
            })
        };
        let (plain, divided) = (measure(&case.plain()), measure(&case));
        for ((all, state, weights, grads), (own_all, own_state, own_weights, own_grads)) in
            plain.into_iter().zip(divided)
        {
            // Buckets are padded to equal parts of 64 elements: much for a model so small.
            assert!(own_state * data < state * 11 / 10, "{precision} {data}: {own_state} of {state} bytes of state");
            let padding = own_weights - weights + own_grads - grads;
            assert!(own_all < all + padding - state * (data - 1) / data + state / 10, "{own_all} of {all} bytes");
        }
    }
}

#[test]
fn divided_gradients_and_weights_take_the_memory_of_one_part_and_two_layers() {
    let of = |sharding: Sharding, data: usize| {
        let shape = || Some(GptShape { layers: 12, ..tiny_llama(0.0, Precision::Bf16) });
        let run = || Run { shape: shape(), sharding, ..Run::new(Kind::Llama, 1, GraphOptions::default()) };
        let all = Layout::new(1, 1, 1, data).on_ranks(run, |run| {
            let stage = run.stage(&run.device());
            let of_layer = |layer| stage.params().specs.iter().filter(move |spec| spec.layer == layer);
            let [end, block] = [0, 1].map(|layer| of_layer(layer).map(|spec| spec.shape.elements()).sum::<usize>());
            assert_eq!(of_layer(0).any(|spec| spec.sharding > Sharding::State), sharding > Sharding::State && data > 2);
            (stage.params().weight_bytes(), stage.params().grads.bytes(), block, end)
        });
        all[0]
    };
    of(Sharding::Weights, 2);
    let [(weights, gradients, block, end), (same, of_part, ..), (of_weights, again, ..)] =
        [Sharding::State, Sharding::Gradients, Sharding::Weights].map(|sharding| of(sharding, 4));
    assert_eq!((same, again), (weights, of_part));
    // Of twelve blocks three stay, and two are there in turn; of two ends a half stays, and one is there in turn. Padding
    // is much for blocks so small.
    let (saved, padding) = (7 * block + end / 2, 5 * block / 4);
    assert!(gradients - of_part > 4 * (saved - padding), "{gradients} and {of_part} bytes, {block} elements");
    assert!(weights - of_weights > 2 * (saved - padding), "{weights} and {of_weights} bytes, {block} elements");
}

#[test]
fn of_8_bit_weights_only_masters_and_copies_take_memory() {
    let case = Case::new(Kind::Llama, 2, 2).in_8_bits(Fp8Recipe::Delayed);
    let measure = |case: &Case| {
        case.on_ranks(|run| {
            let device = run.device();
            let stage = run.stage(&device);
            let params = stage.params();
            let elements = |(spec, _): (&ParamSpec, &Param)| spec.shape.elements();
            let eight_bit: Vec<usize> = params.iter().filter(|(_, param)| param.fp8.is_some()).map(elements).collect();
            let others: usize = params.iter().filter(|(_, param)| param.fp8.is_none()).map(elements).sum();
            let largest_layer = eight_bit.iter().sum::<usize>() / 4;
            let in_16_bits = params.weight_bytes() - params.own_master_bytes();
            (in_16_bits, others, eight_bit.iter().sum::<usize>(), largest_layer, params.master_bytes_in(Home::Device))
        })
    };
    let padding = 8 << 10;
    for (in_16_bits, others, ..) in measure(&case.plain()) {
        assert!(in_16_bits < 2 * others + padding, "{in_16_bits} bytes for {others} weights");
    }
    for (in_16_bits, others, eight_bit, layer, masters) in measure(&case) {
        // Half of them, and two layers on their way.
        let allowed = 2 * (others + eight_bit / 2 + 2 * layer) + padding;
        assert!(in_16_bits < allowed, "{in_16_bits} bytes, {allowed} allowed");
        assert!(masters < 4 * (others + eight_bit) / 2 + 2 * padding, "{masters} bytes of master weights");
    }
}
