//! The features that families of models add to Llama: heads of any width, biases on queries, keys and values alone,
//! norms of heads and over all heads, norms after the parts of blocks or around them, sinks, windows of attention with
//! frequencies of their own, scaled embeddings, and soft caps of scores and logits. They have the same
//! bits in every setting.

use engine::fp8::{Fp8, Fp8Format, Fp8Recipe};
use engine::graph_options::GraphOptions;
use engine::model::{AttentionKind, GptShape, QkNorm, Windows};
use engine::params::{Param, ParamSpec, Part};
use engine::precision::Precision;
use parallel::Axis;

use crate::models::{
    Kind, Layout, Run, all_settings, assert_graphs_change_no_bit, off, tiny_gemma2, tiny_gemma3, tiny_mistral,
    tiny_olmo2, tiny_qwen2, tiny_qwen3,
};

const STEPS: usize = 6;

/// With dropout: a mask that depends on the layout would show.
fn families() -> [(&'static str, GptShape); 6] {
    let (dropout, f32) = (0.1, Precision::F32);
    // As many heads of each kind as ranks share.
    let qwen2 = GptShape { heads: 8, kv_heads: 4, tied: true, ..tiny_qwen2(dropout, f32) };
    let qwen3 = GptShape { heads: 8, kv_heads: 4, ..tiny_qwen3(dropout, f32) };
    let attention = AttentionKind::Grouped { sinks: true };
    let mistral = GptShape { kv_heads: 4, attention, ..tiny_mistral(dropout, f32) };
    let olmo2 = GptShape { heads: 8, kv_heads: 4, ..tiny_olmo2(dropout, f32) };
    let gemma2 = GptShape { kv_heads: 4, ..tiny_gemma2(dropout, f32) };
    let gemma3 = GptShape { layers: 2, kv_heads: 4, windows: two_kinds(), ..tiny_gemma3(dropout, f32) };
    [
        ("Mistral", mistral),
        ("Qwen2", qwen2),
        ("OLMo 2", olmo2),
        ("Gemma 2", gemma2),
        ("Gemma 3", gemma3),
        ("Qwen3", qwen3),
    ]
}

/// A block with a window and one without.
fn two_kinds() -> Option<Windows> {
    Some(Windows { tokens: 3, pattern: vec![true, false] })
}

/// Four microbatches on all ranks together. The learning rate is so small that the steps do not stretch the rounding of
/// the first.
fn run(shape: &GptShape, data: usize, graphs: GraphOptions) -> Run {
    let (shape, precision) = (Some(shape.clone()), shape.precision);
    let new = Run::new(Kind::Llama, 4 / data, graphs);
    Run { shape, precision, steps: STEPS, learning_rate: 1e-3, ..new }
}

fn bits(weights: &[f32]) -> Vec<u32> {
    weights.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn a_family_has_the_same_bits_in_every_graph_setting() {
    for (name, shape) in families() {
        let train = |graphs| run(&shape, 1, graphs).train();
        let (plain, _) = assert_graphs_change_no_bit(name, &all_settings()[1..], train);
        assert!(plain[STEPS - 1].loss < plain[0].loss, "{name} does not learn: {plain:?}");
    }
}

#[test]
fn a_family_has_the_same_bits_whatever_is_recomputed_and_on_any_number_of_threads() {
    for (name, shape) in families() {
        let plain = run(&shape, 1, off()).train();
        let selective = GptShape { recompute: true, ..shape.clone() };
        for (what, run) in [
            ("selective", run(&selective, 1, GraphOptions::default())),
            ("full", Run { recompute: Some(2), ..run(&shape, 1, GraphOptions::default()) }),
            (
                "all but attention",
                Run { recompute: Some(2), keeps_attention: true, ..run(&shape, 1, GraphOptions::default()) },
            ),
            ("threads", Run { threads: 3, ..run(&shape, 1, off()) }),
        ] {
            assert!(run.train() == plain, "{name}, {what}");
        }
    }
}

#[test]
fn ranks_with_their_own_heads_keep_the_same_norms_of_heads() {
    let [.., (_, shape)] = families();
    let norms = |run: Run| {
        let device = run.device();
        let (_, stage) = run.train_on(&device);
        let params = stage.params().iter().filter(|(spec, _)| spec.name.contains("_norm."));
        params.flat_map(|(_, param)| bits(&device.download::<f32>(&param.master).unwrap())).collect::<Vec<u32>>()
    };
    let layout = Layout { sequence: false, ..Layout::new(2, 1, 1, 1) };
    let ranks = layout.on_ranks(|| run(&shape, 1, off()), norms);
    // Two norms of 12 channels in each of two blocks. Training has moved them away from 1.
    assert_eq!(ranks[0].len(), 2 * 2 * 12);
    assert!(ranks[0].iter().all(|&bits| f32::from_bits(bits) != 1.0), "{:?}", ranks[0]);
    assert_eq!(ranks[0], ranks[1]);
}

/// Fewer key heads than ranks, in each of the ways that they can be stored.
fn few_key_heads() -> [(GptShape, Layout); 8] {
    let (dropout, f32) = (0.1, Precision::F32);
    let one = GptShape { tied: true, ..tiny_qwen2(dropout, f32) };
    let two = GptShape { kv_heads: 2, qkv_bias: true, ..tiny_qwen3(dropout, f32) };
    let joint = GptShape { kv_heads: 1, ..tiny_olmo2(dropout, f32) };
    [
        (one.clone(), Layout::new(2, 1, 1, 1)),
        (one, Layout { sequence: false, ..Layout::new(4, 1, 1, 1) }),
        (two.clone(), Layout::new(4, 1, 1, 1)),
        (two, Layout { zero_bubble: true, ..Layout::new(4, 2, 1, 2) }),
        (joint.clone(), Layout::new(4, 1, 1, 1)),
        (joint, Layout { sequence: false, ..Layout::new(2, 2, 1, 1) }),
        (tiny_gemma2(dropout, f32), Layout::new(2, 1, 1, 1)),
        (GptShape { layers: 2, windows: two_kinds(), ..tiny_gemma3(dropout, f32) }, Layout::new(2, 2, 1, 1)),
    ]
}

#[test]
fn copies_of_a_key_head_start_the_same_and_stay_the_same() {
    for (shape, layout) in few_key_heads().into_iter().filter(|(_, layout)| layout.stages == 1) {
        // Of each parameter with copies: the part, whether it is the first copy, and the bits before and after training.
        let copies = |run: Run| {
            let device = run.device();
            let of = |stage: &engine::step::Stage| {
                let (params, ranks) = (stage.params(), stage.params().ranks());
                let copies = ranks.axes(Axis::KeyHeadCopies);
                let part = ranks.place(ranks.axes(Axis::Tensor) - copies).index;
                let of_param = |(spec, param): (&ParamSpec, &Param)| {
                    let is_copied = |part: &Part| !part.cuts.is_empty() && part.partial == copies;
                    let first = spec.spread.parts.iter().position(is_copied)?;
                    let values = device.download::<f32>(&param.master).unwrap();
                    Some((part, ranks.place(copies).is_first(), bits(&values[spec.stored_parts(ranks)[first].start..])))
                };
                params.iter().filter_map(of_param).collect::<Vec<_>>()
            };
            let before = of(&run.stage(&device));
            let (_, stage) = run.train_on(&device);
            (before, of(&stage))
        };
        let ranks = layout.on_ranks(|| run(&shape, 1, off()), copies);
        for (before, after) in &ranks {
            // Of each block the weight, and the bias or the norm of keys that there is for each head.
            let of_block = 1 + usize::from(shape.qkv_bias || shape.qk_norm == Some(QkNorm::AllHeads));
            assert_eq!(before.len(), of_block * shape.layers);
            assert!(before.iter().zip(after).all(|(before, after)| before.2 != after.2), "nothing is learned");
        }
        for (at, first) in ranks[0].1.iter().enumerate() {
            let firsts = ranks.iter().filter(|(_, after)| after[at].1).count();
            assert_eq!(firsts, shape.kv_heads, "{layout:?}: each part is counted once");
            for (before, after) in ranks.iter().filter(|(_, after)| after[at].0 == first.0) {
                assert_eq!((&before[at].2, &after[at].2), (&ranks[0].0[at].2, &first.2), "{layout:?}");
            }
        }
    }
}

#[test]
fn heads_of_any_width_multiply_in_8_bits_on_one_rank_and_on_two() {
    // With one key head two ranks store copies of it.
    let qwen3 = tiny_qwen3(0.0, Precision::Bf16);
    let olmo2 = tiny_olmo2(0.0, Precision::Bf16);
    // A residual stream of 32: products in 8 bits need it.
    let gemma3 = GptShape { hidden: 32, ..tiny_gemma3(0.0, Precision::Bf16) };
    for (recipe, kv_heads, family) in [
        (Fp8Recipe::Tensorwise, 2, &qwen3),
        (Fp8Recipe::Delayed, 2, &qwen3),
        (Fp8Recipe::Delayed, 1, &qwen3),
        (Fp8Recipe::Delayed, 2, &olmo2),
        (Fp8Recipe::Tensorwise, 2, &gemma3),
        (Fp8Recipe::Delayed, 1, &gemma3),
    ] {
        let fp8 = Fp8 { recipe, format: Fp8Format::Hybrid, bf16_blocks: [0, 0], ..Fp8::default() };
        // Four heads of 16 channels beside a residual stream of 32.
        let base = GptShape { head_dim: Some(16), ffn: 64, fp8: Some(fp8), ..family.clone() };
        let shape = GptShape { qkv_bias: true, kv_heads, ..base };
        let graphs = [("graphs".into(), GraphOptions::default())];
        let train = |graphs| run(&shape, 1, graphs).train();
        let (plain, _) = assert_graphs_change_no_bit(&recipe.to_string(), &graphs, train);
        assert!(plain[STEPS - 1].loss < plain[0].loss, "{recipe}: {plain:?}");
        let layout = Layout::new(2, 1, 1, 1);
        let ranks = layout.on_ranks(|| run(&shape, 1, GraphOptions::default()), |run| run.train().0);
        for (step, (a, b)) in plain.iter().zip(&ranks[0]).enumerate() {
            // Two ranks sum halves in bf16.
            assert!((a.loss / b.loss - 1.0).abs() < 1e-2, "{recipe}, step {step}: {} and {}", a.loss, b.loss);
        }
    }
}
