//! Ranks that divide sequences: the losses of all positions, and what follows from them, are those of one rank.

use device::HostValues;
use device::ops::SequenceShare;
use engine::graph_options::GraphOptions;
use engine::model::{AttentionKind, ContextTransfers, GptShape, SampleRow};
use engine::precision::Precision;
use engine::step::{StepResult, StepSettings};
use parallel::{Axis, Place};

use crate::models::{
    Kind, Layout, MICRO_BATCH, Run, SEQ, all_settings, batch, noise, off, packed, tiny_gemma2, tiny_gemma3, tiny_gpt,
    tiny_llama, tiny_mistral, tiny_olmo2, tiny_qwen3,
};

const MICROBATCHES: usize = 2;

/// Layouts of two to eight ranks. A rank has two tokens of a sequence and more.
fn layouts() -> [Layout; 5] {
    let context = |context: usize, layout: Layout| Layout { context, ..layout };
    [
        context(2, Layout::new(1, 1, 1, 1)),
        context(4, Layout::new(1, 1, 1, 1)),
        context(2, Layout::new(2, 1, 1, 1)),
        context(2, Layout::new(1, 2, 1, 2)),
        context(2, Layout { zero_bubble: true, ..Layout::new(2, 2, 1, 1) }),
    ]
}

/// Learned positions, rotary ones with and without scaling, grouped heads, windows, caps, sinks and norms of heads.
fn shapes() -> Vec<(&'static str, GptShape)> {
    let f32 = Precision::F32;
    let attention = AttentionKind::Grouped { sinks: true };
    let shapes = [
        ("GPT", tiny_gpt(0.1, f32)),
        ("Llama", tiny_llama(0.1, f32)),
        ("Mistral", GptShape { attention, ..tiny_mistral(0.0, f32) }),
        ("Qwen3", tiny_qwen3(0.0, f32)),
        ("OLMo 2", GptShape { attention, ..tiny_olmo2(0.0, f32) }),
        ("Gemma 2", tiny_gemma2(0.0, f32)),
        ("Gemma 3", tiny_gemma3(0.0, f32)),
    ];
    shapes.into_iter().map(|(name, shape)| (name, GptShape { attention_dropout: 0.0, ..shape })).collect()
}

fn run(shape: &GptShape, data: usize, row: Option<SampleRow>, graphs: GraphOptions) -> Run {
    let (shape, keeps_losses) = (Some(shape.clone()), true);
    Run { shape, row, keeps_losses, steps: 1, ..Run::new(Kind::Llama, MICROBATCHES / data, graphs) }
}

fn samples(run: &Run, settings: StepSettings) -> HostValues {
    match run.row {
        Some(_) => packed(settings.first_sample, run.microbatches * MICRO_BATCH),
        None => batch(run.kind, settings.first_sample, run.microbatches),
    }
}

/// A token, as sample and position, and its loss.
type LossOfToken = ((u64, usize), f32);

/// The losses of an evaluation by sample and position, as far as this rank has them; then a run's results.
fn trained(run: &Run) -> (Vec<LossOfToken>, Vec<StepResult>) {
    let device = run.device();
    let mut stage = run.stage(&device);
    stage.record(run.microbatches, true).unwrap();
    let settings = run.settings(0);
    stage.evaluate(settings, Some(&samples(run, settings))).unwrap().wait().unwrap();
    let losses = stage.losses(run.microbatches).unwrap().map(|losses| losses.wait().unwrap());
    let Place { index: rank, count: ranks } = run.ranks.at(Axis::Context);
    let (share, tokens) = (SequenceShare { rank, ranks }, SEQ / ranks);
    let at = |at: usize| (settings.first_sample + (at / tokens) as u64, share.position(at % tokens, tokens));
    let losses = losses.unwrap_or_default().into_iter().enumerate().map(|(number, loss)| (at(number), loss)).collect();
    (losses, run.train_stage(&mut stage))
}

fn assert_same(what: &str, alone: &[StepResult], ranks: &[StepResult]) {
    for (alone, here) in alone.iter().zip(ranks) {
        let close = |a: f64, b: f64| (a / b - 1.0).abs() < 2e-5;
        assert!(close(here.loss, alone.loss), "{what}: {} and {}", here.loss, alone.loss);
        assert!(close(here.grad_norm.into(), alone.grad_norm.into()), "{what}: {here:?} and {alone:?}");
    }
}

/// The losses of all positions in these layouts are those of one rank.
fn assert_alike(name: &str, shape: &GptShape, row: Option<&SampleRow>, layouts: &[Layout], context: ContextTransfers) {
    let make = |data: usize| Run { context, ..run(shape, data, row.cloned(), off()) };
    let (losses, results) = trained(&make(1));
    assert_eq!(losses.len(), MICROBATCHES * MICRO_BATCH * SEQ);
    for layout in layouts {
        let what = format!("{name}, {layout:?}, {context:?}, packed {}", row.is_some());
        let all = layout.on_ranks(|| make(layout.data), |run| trained(&run));
        let mut seen = 0;
        for (rank, (here, of_rank)) in all.iter().enumerate() {
            assert_same(&what, &results, of_rank);
            for (at, loss) in here {
                let (_, alone) = losses.iter().find(|(of, _)| of == at).unwrap();
                assert!((loss - alone).abs() < 1e-4, "{what}, {at:?}: {loss} and {alone}");
            }
            seen += if layout.position(rank, Axis::Tensor) == 0 { here.len() } else { 0 };
        }
        assert_eq!(seen, losses.len(), "{what}");
    }
}

#[test]
fn losses_of_all_positions_are_those_of_one_rank() {
    let packed = SampleRow::packed(SEQ, SEQ);
    for (name, shape) in shapes() {
        let fits = |layout: &Layout| shape.kv_heads % layout.tensor == 0;
        let layouts: Vec<Layout> = layouts().into_iter().filter(fits).collect();
        for row in [None, Some(&packed)] {
            assert_alike(name, &shape, row, &layouts, ContextTransfers::Keys);
        }
    }
}

/// Layers with windows, and documents, have keys gathered.
#[test]
fn losses_of_all_positions_are_those_of_one_rank_with_keys_that_travel_round() {
    let shapes = shapes();
    for name in ["GPT", "Llama", "Gemma 2", "Qwen3"] {
        let (_, shape) = shapes.iter().find(|(of, _)| *of == name).unwrap();
        let fits = |layout: &Layout| shape.kv_heads % layout.tensor == 0;
        let layouts: Vec<Layout> = layouts().into_iter().filter(fits).collect();
        assert_alike(name, shape, None, &layouts, ContextTransfers::Ring);
    }
    let (name, llama) = &shapes[1];
    assert_alike(name, llama, Some(&SampleRow::packed(SEQ, SEQ)), &layouts()[1..2], ContextTransfers::Ring);
}

#[test]
fn losses_of_all_positions_are_those_of_one_rank_with_exchanged_heads() {
    let packed = SampleRow::packed(SEQ, SEQ);
    for (name, shape) in shapes() {
        let fits = |layout: &Layout| shape.kv_heads % (layout.tensor * layout.context) == 0;
        let layouts: Vec<Layout> = layouts().into_iter().filter(fits).collect();
        for row in [None, Some(&packed)] {
            assert_alike(name, &shape, row, &layouts, ContextTransfers::Heads);
        }
    }
}

/// Only the last quarter of each sequence has targets: one of the ranks has none.
#[test]
fn a_rank_without_targets_has_a_share_of_the_work() {
    let shape = GptShape { attention_dropout: 0.0, ..tiny_llama(0.0, Precision::F32) };
    let row = |sample: u64| {
        let token = |at: usize| (noise(sample, at as u64) % 50) as i32;
        let targets = (0..SEQ).map(move |at| if at < SEQ - SEQ / 4 { -1 } else { token(at + 1) });
        (0..SEQ).map(token).chain(targets).collect::<Vec<i32>>()
    };
    let count = MICROBATCHES * MICRO_BATCH;
    let batch = HostValues::I32((0..count as u64).flat_map(row).collect());
    let step = |run: Run| {
        let device = run.device();
        let mut stage = run.stage(&device);
        let settings = StepSettings { targets: Some((count * SEQ / 4) as u64), ..run.settings(0) };
        vec![stage.train_step(settings, Some(&batch)).unwrap().wait().unwrap()]
    };
    let make = || Run { row: Some(SampleRow::conversations(SEQ)), ..run(&shape, 1, None, off()) };
    let alone = step(make());
    for layout in &layouts()[..2] {
        layout.on_ranks(make, step).iter().for_each(|here| assert_same(&format!("{layout:?}"), &alone, here));
    }
}

#[test]
fn every_setting_of_graphs_has_the_same_bits() {
    let shape = GptShape { attention_dropout: 0.0, ..tiny_llama(0.1, Precision::Bf16) };
    for (layout, context) in [(layouts()[0], ContextTransfers::Keys), (layouts()[1], ContextTransfers::Ring)] {
        let of = |graphs: &GraphOptions| {
            let make = || Run { steps: 4, context, ..run(&shape, 1, None, graphs.clone()) };
            layout.on_ranks(make, |run| run.train())
        };
        let plain = of(&off());
        for (name, graphs) in all_settings().into_iter().skip(1).step_by(5) {
            assert!(of(&graphs) == plain, "{name}, {context:?}");
        }
    }
}
