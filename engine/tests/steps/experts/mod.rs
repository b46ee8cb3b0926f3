//! Layers of experts: the same bits in every setting and under every load. `parity` compares them with references.

pub mod balance;
pub mod capacity;
mod fp8;
mod modules;
mod ranks;

use device::HostValues;
use device::ops::{ExpertGroups, LatentHead, Router, Score};
use engine::graph_options::{GraphOptions, Scope};
use engine::model::{
    AttentionKind, BalanceGroup, BalanceLoss, Experts, FeedForward, GptShape, Keeps, Latent, NormPlacement, Position,
    QkNorm, SampleRow, Scaling, Windows,
};
use engine::precision::Precision;
use engine::regions::Mode;
use engine::step::{Stage, StepResult, StepSettings};
use graph_manager::{Verification, Verified};
use parallel::Axis;

use crate::models::{
    Kind, Layout, MICRO_BATCH, Run, SEQ, VOCAB, all_settings, assert_graphs_change_no_bit, documents, off, packed,
    tiny_llama, tiny_olmo2, tiny_qwen3,
};

/// Four experts, of which a token passes two; the weights of these add up to 1.
pub const FOUR: Experts = Experts {
    count: 4,
    per_token: 2,
    ffn: 24,
    shared_ffn: 0,
    pattern: Vec::new(),
    bias_update_rate: None,
    row_budget: None,
    router: Router { score: Score::Softmax, groups: None, normalise: true, scale: 1.0, forces_balance: false },
    capacity: None,
    balance: None,
    z_loss_multiplier: 0.0,
};

/// Experts as the reference must know them.
pub fn case(experts: &Experts, shape: &GptShape) -> serde_json::Value {
    let Experts { count, per_token, ffn, shared_ffn, router, balance, z_loss_multiplier, capacity, .. } = experts;
    let blocks: Vec<bool> = (0..shape.further_blocks().end).map(|block| shape.block_experts(block).is_some()).collect();
    let is_softmax = router.score == Score::Softmax;
    serde_json::json!({
        "count": count, "per_token": per_token, "ffn": ffn, "shared_ffn": shared_ffn,
        "score": if is_softmax { "softmax" } else { "sigmoid" },
        "normalise": router.normalise, "scale": router.scale, "blocks": blocks,
        "groups": router.groups.map_or(1, |groups| groups.count),
        "groups_per_token": router.groups.map_or(1, |groups| groups.per_token),
        "balance": balance.map_or(0.0, |balance| f64::from(balance.multiplier as f32)),
        "balance_over": match balance.map(|balance| balance.over) {
            Some(BalanceGroup::Sequence) => "sequence",
            Some(BalanceGroup::GlobalBatch) => "global_batch",
            _ => "microbatch",
        },
        "z_loss": f64::from(*z_loss_multiplier as f32),
        "capacity": capacity.map_or(0.0, |capacity| capacity.factor),
        "keeps": match capacity.map(|capacity| capacity.keeps) {
            Some(Keeps::FirstTokens) => "first",
            _ => "weights",
        },
    })
}

/// Mixtral: every block has experts.
pub fn tiny_mixtral(dropout: f32, precision: Precision) -> GptShape {
    GptShape { experts: Some(FOUR), ..tiny_llama(dropout, precision) }
}

/// Qwen3: the first block is dense.
pub fn tiny_qwen3_moe(dropout: f32, precision: Precision) -> GptShape {
    let experts = Experts { count: 6, per_token: 3, ffn: 20, pattern: vec![false, true], ..FOUR };
    GptShape { experts: Some(experts), windows: None, ..tiny_qwen3(dropout, precision) }
}

/// OLMoE: weights of experts do not add up to 1, and norms come before parts.
pub fn tiny_olmoe(dropout: f32, precision: Precision) -> GptShape {
    let router = Router { normalise: false, ..FOUR.router };
    GptShape {
        experts: Some(Experts { count: 8, per_token: 2, ffn: 16, router, ..FOUR }),
        head_dim: None,
        norm_placement: NormPlacement::Pre,
        qk_norm: Some(QkNorm::AllHeads),
        ..tiny_olmo2(dropout, precision)
    }
}

/// gpt-oss: sinks, biases everywhere, a window in every other block, YaRN that rounds nothing, and clamped SwiGLU.
pub fn tiny_gpt_oss(precision: Precision) -> GptShape {
    let (factor, original_context, beta_fast, beta_slow, attention_factor) = (4.0, 16.0, 2.0, 0.5, 1.2);
    let scaling =
        Some(Scaling::Yarn { factor, original_context, beta_fast, beta_slow, attention_factor, rounds: false });
    GptShape {
        experts: Some(Experts { count: 6, per_token: 3, ffn: 20, ..FOUR }),
        attention: AttentionKind::Grouped { sinks: true },
        bias: true,
        feed_forward: FeedForward::ClampedSwiGlu,
        head_dim: Some(12),
        windows: Some(Windows { tokens: 5, pattern: vec![true, false] }),
        position: Position::Rotary { base: 100.0, scaling, window_base: None },
        ..tiny_llama(0.0, precision)
    }
}

/// DeepSeek-V3: queries, keys and values from latents, and a shared expert behind a dense block. Some choose within groups.
pub fn tiny_deepseek(query_rank: Option<usize>, groups: Option<ExpertGroups>) -> GptShape {
    let head = LatentHead { plain: 6, rotated: 4, value: 8 };
    let experts = Experts {
        count: 6,
        ffn: 12,
        shared_ffn: 24,
        pattern: vec![false, true],
        router: Router { score: Score::Sigmoid, scale: 2.5, groups, ..FOUR.router },
        ..FOUR
    };
    GptShape {
        attention: AttentionKind::Latent(Latent { query_rank, rank: 18, head }),
        kv_heads: 1,
        head_dim: Some(10),
        experts: Some(experts),
        norm_eps: 1e-6,
        ..tiny_llama(0.0, Precision::F32)
    }
}

/// Sigmoids, a scale, a shared expert, a dense block, and both losses of routers, so large that without their gradients
/// norms and weights would be others.
pub fn tiny_shared(dropout: f32, over: BalanceGroup) -> GptShape {
    let experts = Experts {
        shared_ffn: 12,
        pattern: vec![false, true],
        router: Router { score: Score::Sigmoid, scale: 2.5, ..FOUR.router },
        balance: Some(BalanceLoss { multiplier: 0.5, over }),
        z_loss_multiplier: 0.05,
        ..FOUR
    };
    GptShape { experts: Some(experts), ..tiny_llama(dropout, Precision::F32) }
}

/// Four blocks of which every other has experts.
pub fn tiny_experts(precision: Precision) -> GptShape {
    GptShape { layers: 4, precision, ..tiny_shared(0.1, BalanceGroup::Sequence) }
}

const STEPS: usize = 4;

pub fn run_of(shape: &GptShape, data: usize, graphs: GraphOptions) -> Run {
    let precision = shape.precision;
    Run { shape: Some(shape.clone()), precision, check: true, steps: STEPS, ..Run::new(Kind::Gpt, 4 / data, graphs) }
}

#[test]
fn experts_have_the_same_bits_in_every_setting() {
    let shape = tiny_shared(0.1, BalanceGroup::Sequence);
    let train = |graphs| run_of(&shape, 1, graphs).train();
    let (plain, _) = assert_graphs_change_no_bit("experts", &all_settings()[1..], train);
    assert!(plain[STEPS - 1].loss < plain[0].loss, "{plain:?}");
    assert!(plain.iter().all(|step| step.applied && step.added["balance_loss"] > 0.0), "{plain:?}");
}

#[test]
fn experts_computed_again_in_backward_have_the_same_bits_and_the_same_losses_of_routers() {
    for precision in [Precision::F32, Precision::Bf16] {
        let shape = GptShape { precision, ..tiny_shared(0.1, BalanceGroup::Microbatch) };
        let plain = run_of(&shape, 1, off()).train();
        for scope in Scope::ALL {
            let graphs = GraphOptions { scope, poison: true, ..GraphOptions::default() };
            let selective = GptShape { recompute: true, ..shape.clone() };
            assert!(run_of(&selective, 1, graphs.clone()).train() == plain, "{precision} {scope:?}, selective");
            let full = Run { recompute: Some(2), ..run_of(&shape, 1, graphs) };
            assert!(full.train() == plain, "{precision} {scope:?}, full");
        }
    }
}

/// The numbers of a step that all layouts have in common.
pub fn numbers(result: &StepResult) -> Vec<f64> {
    [result.loss, f64::from(result.grad_norm)].into_iter().chain(result.added.values().copied()).collect()
}

/// The routers of a stage begin with the value that `value` gives each expert, whatever the channel.
pub fn set_routers(stage: &Stage, value: impl Fn(usize) -> f32) {
    for (spec, param) in stage.params().iter().filter(|(spec, _)| spec.name.ends_with("router.weight")) {
        let [experts, hidden] = spec.shape.sizes() else { unreachable!("a router is a matrix") };
        let values: Vec<f32> = (0..experts * hidden).map(|i| value(i / hidden)).collect();
        let device = stage.device();
        device.upload(&param.master, &values).unwrap();
        device.upload(&param.weight, &values).unwrap();
    }
}

/// The value that a router begins with for each expert.
type FirstValue = fn(usize) -> f32;

/// Routers that choose at first as the name says. With equal values all logits of a token are equal.
fn loads() -> [(&'static str, usize, FirstValue); 4] {
    [
        ("all tokens to the first experts: ties", 2, |_| 0.0),
        ("all tokens to one expert", 1, |_| 0.5),
        ("one of two experts, by the sign of a sum", 1, |expert| [1.0, -1.0, 0.0, 0.0][expert]),
        ("a hot expert that a large bias holds", 2, |expert| if expert == 2 { 30.0 } else { 0.01 * expert as f32 }),
    ]
}

#[test]
fn loads_of_all_kinds_have_the_same_bits_in_both_scopes_and_without_graphs() {
    for (name, per_token, value) in loads() {
        for precision in [Precision::F32, Precision::Bf16] {
            let balance = Some(BalanceLoss { multiplier: 0.1, over: BalanceGroup::Microbatch });
            let experts = Some(Experts { per_token, balance, ..FOUR });
            let shape = GptShape { experts, ..tiny_llama(0.0, precision) };
            let train = |graphs: GraphOptions| {
                let run = run_of(&shape, 1, graphs);
                let device = run.device();
                let mut stage = run.stage(&device);
                set_routers(&stage, value);
                let results = run.train_stage(&mut stage);
                let masters = stage.params().iter().map(|(_, param)| device.download::<f32>(&param.master).unwrap());
                let weights: Vec<u32> = masters.flatten().map(f32::to_bits).collect();
                (results, weights)
            };
            let plain = train(off());
            assert!(plain.0.iter().all(|step| step.applied && step.loss.is_finite()), "{name}: {plain:?}");
            // With equal scores the loss is that of equal loads, whatever the choice.
            let balance = plain.0[0].added["balance_loss"] / 0.1 / shape.layers as f64;
            assert!(!name.starts_with("all") || (balance - 1.0).abs() < 1e-5, "{name}: {balance}");
            for scope in Scope::ALL {
                let graphs = GraphOptions { scope, poison: true, ..GraphOptions::default() };
                assert!(train(graphs) == plain, "{name}, {precision}, {scope:?}");
            }
        }
    }
}

#[test]
fn forced_balance_gives_every_expert_the_same_load() {
    let router = Router { forces_balance: true, ..FOUR.router };
    let balance = Some(BalanceLoss { multiplier: 0.1, over: BalanceGroup::Sequence });
    let experts = Some(Experts { router, balance, ..FOUR });
    let shape = GptShape { experts, ..tiny_llama(0.0, Precision::F32) };
    let results = run_of(&shape, 1, GraphOptions::default()).train().0;
    let per_layer = results[0].added["balance_loss"] / 0.1 / shape.layers as f64;
    assert!((per_layer - 1.0).abs() < 1e-6, "{per_layer}");
}

#[test]
fn an_evaluation_has_no_losses_of_routers() {
    let shape = tiny_shared(0.0, BalanceGroup::Microbatch);
    let run = run_of(&shape, 1, GraphOptions::default());
    let mut stage = run.stage(&run.device());
    let settings = run.settings(0);
    let trained = run.step(&mut stage, StepSettings { learning_rate: 0.0, ..settings });
    let evaluated = run.evaluate(&mut stage, settings);
    assert_eq!((evaluated.loss, evaluated.added.len()), (trained.loss, 0));
}

/// The selection biases of a stage, block by block.
fn biases(stage: &Stage) -> Vec<Vec<f32>> {
    let of_routers = stage.params().iter().filter(|(spec, _)| spec.name.ends_with("router.bias"));
    of_routers.map(|(_, param)| stage.device().download::<f32>(&param.weight).unwrap()).collect()
}

/// With biases that move fast enough to change choices.
fn tiny_biased() -> GptShape {
    let mut shape = tiny_experts(Precision::F32);
    shape.experts.as_mut().unwrap().bias_update_rate = Some(0.05);
    shape
}

#[test]
fn every_step_moves_the_selection_biases_once_and_nothing_else_moves_them() {
    for scope in Scope::ALL {
        let run =
            Run { rehearses: true, ..run_of(&tiny_biased(), 1, GraphOptions { scope, ..GraphOptions::default() }) };
        let mut stage = run.stage(&run.device());
        stage.record(run.microbatches, true).unwrap();
        stage.rehearse(&[run.microbatches], true).unwrap();
        let mut expected = vec![vec![0.0f32; 4]; 2];
        assert_eq!(biases(&stage), expected, "a rehearsal");
        for step in 0..STEPS {
            let settings = run.settings(step);
            run.evaluate(&mut stage, settings);
            assert_eq!(biases(&stage), expected, "an evaluation before step {step}");
            let result = run.step(&mut stage, settings);
            assert_eq!(result.expert_loads.iter().map(|load| load.block).collect::<Vec<_>>(), [1, 3]);
            for (load, bias) in result.expert_loads.iter().zip(&mut expected) {
                // Every token passes two experts.
                let tokens = (MICRO_BATCH * SEQ * run.microbatches) as f32;
                assert_eq!(load.tokens.iter().sum::<f32>(), 2.0 * tokens);
                let mean = 2.0 * tokens / 4.0;
                for (bias, load) in bias.iter_mut().zip(&load.tokens).filter(|(_, load)| **load != mean) {
                    *bias += 0.05 * (mean - load).signum();
                }
            }
            assert_eq!(biases(&stage), expected, "step {step}");
        }
        assert!(expected.iter().flatten().any(|bias| bias.abs() > 0.07), "nothing moved far: {expected:?}");
    }
}

#[test]
fn a_frozen_router_keeps_its_bias() {
    let run =
        Run { frozen: |name| name.ends_with("router.weight"), ..run_of(&tiny_biased(), 1, GraphOptions::default()) };
    let (results, stage) = run.train_on(&run.device());
    assert!(results.iter().all(|step| step.applied));
    assert_eq!(biases(&stage), vec![vec![0.0; 4]; 2]);
}

#[test]
fn a_verified_step_leaves_biases_and_loads_as_they_were() {
    let run = run_of(&tiny_biased(), 1, GraphOptions::default());
    let (_, mut stage) = run.train_on(&run.device());
    let before = biases(&stage);
    let settings = run.settings(STEPS);
    let samples = run.samples(&stage, &settings);
    let verified = stage.verify_step(Mode::Train, settings, samples.as_ref(), &Verification::default()).unwrap();
    assert!(matches!(verified, Verified::Same { .. }), "{verified:?}");
    assert_eq!(biases(&stage), before);
}

#[test]
fn the_balance_loss_of_sequences_does_not_depend_on_how_many_a_microbatch_has() {
    let shape = tiny_shared(0.0, BalanceGroup::Sequence);
    let step = |sequences: usize, microbatches: usize| {
        let run = Run { microbatches, micro_batch_size: sequences, ..run_of(&shape, 1, GraphOptions::default()) };
        run.step(&mut run.stage(&run.device()), run.settings(0))
    };
    let two = step(MICRO_BATCH, 4);
    for (sequences, microbatches) in [(1, 8), (4, 2), (8, 1)] {
        let other = step(sequences, microbatches);
        let pairs: Vec<_> = numbers(&other).into_iter().zip(numbers(&two)).collect();
        assert!(pairs.iter().all(|(a, b)| (a / b - 1.0).abs() < 1e-5), "{sequences} sequences: {pairs:?}");
        assert_eq!(other.expert_loads, two.expert_loads);
    }
}

/// The conversations of a step, in rows with padding, and the number of their targets. Inputs beyond those of a
/// conversation are the token `padding`.
pub fn padded(padding: i32) -> (HostValues, usize) {
    let real = |sample: usize| 1 + sample * 5 % SEQ;
    let of_sample = |sample: usize| {
        let token = |at: usize| ((sample * 7 + at * 5) % VOCAB) as i32;
        let inputs = (0..SEQ).map(move |at| if at < real(sample) { token(at) } else { padding });
        let targets = (0..SEQ).map(move |at| if at < real(sample) { token(at + 1) } else { -1 });
        inputs.chain(targets).chain([real(sample) as i32]).collect::<Vec<_>>()
    };
    let samples = 0..4 * MICRO_BATCH;
    (HostValues::I32(samples.clone().flat_map(of_sample).collect()), samples.map(real).sum())
}

#[test]
fn padding_is_in_no_load_and_no_loss_of_routers_on_any_stage() {
    let row = SampleRow::conversations(SEQ).with_padding();
    for over in [BalanceGroup::Microbatch, BalanceGroup::Sequence] {
        let shape = GptShape { layers: 4, ..tiny_shared(0.0, over) };
        let step = |run: Run, padding: i32| {
            let (batch, targets) = padded(padding);
            let counts = Some(targets as u64);
            let settings = StepSettings { targets: counts, tokens: counts, ..run.settings(0) };
            let mut stage = run.stage(&run.device());
            assert!(stage.needs_batch(), "every stage asks for padding");
            stage.train_step(settings, Some(&batch)).unwrap().wait().unwrap()
        };
        let run = || Run { row: Some(row.clone()), ..run_of(&shape, 1, GraphOptions::default()) };
        let (one, other) = (step(run(), 0), step(run(), 1));
        // It moves the rows of others within an expert's, and so changes the last bits of products.
        let pairs: Vec<_> = numbers(&one).into_iter().zip(numbers(&other)).collect();
        assert!(pairs.iter().all(|(a, b)| (a / b - 1.0).abs() < 1e-6), "padding has an effect: {pairs:?}");
        assert_eq!(one.expert_loads, other.expert_loads);
        let (_, targets) = padded(0);
        for load in &one.expert_loads {
            assert_eq!(load.tokens.iter().sum::<f32>(), 2.0 * targets as f32, "block {}", load.block);
        }
        for of_stage in Layout::new(1, 4, 1, 1).on_ranks(run, |run| step(run, 0)) {
            let pairs: Vec<_> = numbers(&of_stage).into_iter().zip(numbers(&one)).collect();
            assert!(pairs.iter().all(|(a, b)| (a / b - 1.0).abs() < 1e-5), "{over:?}: {pairs:?}");
        }
    }
}

/// Losses and gradient norm of a step on `rows` with so many targets, which are all its tokens, of so many documents. A
/// microbatch has so many rows.
fn step_on(
    micro_batch_size: usize,
    row: &SampleRow,
    rows: &[Vec<i32>],
    of: Layout,
    (targets, documents): (u64, u64),
) -> Vec<f64> {
    let shape = GptShape { layers: 4, ..tiny_shared(0.0, BalanceGroup::Sequence) };
    let microbatches = rows.len() / micro_batch_size / of.data;
    let run = || Run {
        microbatches,
        micro_batch_size,
        row: Some(row.clone()),
        ..run_of(&shape, of.data, GraphOptions::default())
    };
    let step = |run: Run| {
        let device = run.device();
        let mut stage = run.stage(&device);
        let settings = StepSettings {
            targets: Some(targets),
            tokens: Some(targets),
            documents: Some(documents),
            ..run.settings(0)
        };
        let (rank, of_rank) = (run.ranks.at(Axis::Data).index, rows.len() / of.data);
        let share = rows[rank * of_rank..][..of_rank].concat();
        numbers(&stage.train_step(settings, Some(&HostValues::I32(share.into()))).unwrap().wait().unwrap())
    };
    of.on_ranks(run, step).remove(0)
}

#[test]
fn losses_of_routers_do_not_depend_on_the_cut_into_microbatches_and_ranks_or_on_packing() {
    let one_rank = Layout::new(1, 1, 1, 1);
    // Each document in a row of its own, filled with padding.
    let documents: Vec<Vec<i32>> = (0..8).flat_map(documents).collect();
    let alone = |document: &Vec<i32>| {
        let (mut inputs, mut targets) = ([0; SEQ], [-1; SEQ]);
        let length = document.len() - 1;
        inputs[..length].copy_from_slice(&document[..length]);
        targets[..length].copy_from_slice(&document[1..]);
        [&inputs[..], &targets, &[length as i32]].concat()
    };
    let rows: Vec<Vec<i32>> = documents.iter().map(alone).collect();
    let counts = ((8 * SEQ) as u64, documents.len() as u64);
    let padded = SampleRow::conversations(SEQ).with_padding();
    let expected = step_on(1, &padded, &rows, one_rank, counts);
    let HostValues::I32(values) = packed(0, 8) else { unreachable!("tokens") };
    let packs: Vec<Vec<i32>> = values.chunks(3 * SEQ).map(|row| [row, &[SEQ as i32]].concat()).collect();
    let row = SampleRow::packed(SEQ, SEQ).with_padding();
    let layouts =
        [(1, one_rank), (4, one_rank), (8, one_rank), (2, Layout::new(1, 1, 1, 2)), (2, Layout::new(2, 2, 1, 1))];
    let in_packs = layouts.map(|(size, layout)| step_on(size, &row, &packs, layout, counts));
    let at_once = step_on(rows.len(), &padded, &rows, one_rank, counts);
    // Loss, gradient norm, balance loss and z-loss.
    for ours in in_packs.iter().chain([&at_once]) {
        let close = ours.iter().zip(&expected).all(|(a, b)| (a / b - 1.0).abs() < 1e-5);
        assert!(close, "{ours:?} and {expected:?}; packed: {in_packs:?}");
    }
}
