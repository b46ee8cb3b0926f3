//! Feed-forward layers in tiles of tokens change when values are computed, never a bit, and need less memory.

use device::HostValues;
use engine::fp8::Fp8;
use engine::graph_options::{GraphOptions, Scope};
use engine::model::{GptShape, is_adapter};
use engine::precision::Precision;

use crate::lora::with_adapters;
use crate::models::{Kind, Layout, MICRO_BATCH, Run, SEQ, batch, tiny_gpt, tiny_llama};

/// A run of a model with so many tiles.
fn run(kind: Kind, precision: Precision, mlp_tiles: usize) -> Run {
    let own = if kind == Kind::Gpt { tiny_gpt } else { tiny_llama };
    let shape = Some(GptShape { mlp_tiles, ..own(0.1, precision) });
    let graphs = GraphOptions { poison: true, ..GraphOptions::default() };
    Run { shape, precision, steps: 3, micro_batch_size: SAMPLES, ..Run::new(kind, 2, graphs) }
}

/// Samples of a microbatch. Their tokens are those of two tiles.
const SAMPLES: usize = 256 / SEQ;

#[test]
fn tiles_change_no_bit_kept_or_computed_again() {
    for (kind, precision) in
        [(Kind::Gpt, Precision::F32), (Kind::Llama, Precision::F32), (Kind::Llama, Precision::Bf16)]
    {
        let whole = run(kind, precision, 1).train();
        for (selective, recompute, scope) in [
            (false, None, Scope::PerLayer),
            (true, None, Scope::FullIteration),
            (false, Some(1), Scope::PerLayer),
            (true, Some(2), Scope::PerChunk),
        ] {
            let tiled = run(kind, precision, 2);
            let shape = tiled.shape.clone().map(|shape| GptShape { recompute: selective, ..shape });
            let graphs = GraphOptions { scope, ..tiled.graphs.clone() };
            let tiled = Run { shape, recompute, graphs, shuffle: Some(3), ..tiled };
            let what = format!("{kind:?} {precision:?}, selective {selective}, full {recompute:?}, {scope:?}");
            assert!(tiled.train() == whole, "{what}");
        }
    }
}

#[test]
fn tiles_change_no_bit_of_a_model_whose_feed_forward_layers_are_frozen() {
    let of = |tiles| Run { frozen: |name| name.contains("mlp"), ..run(Kind::Llama, Precision::F32, tiles) }.train();
    assert!(of(1) == of(2));
}

#[test]
fn tiles_change_no_bit_of_adapters() {
    for kind in [Kind::Gpt, Kind::Llama] {
        let of = |tiles, graphs| {
            let own = run(kind, Precision::F32, tiles);
            let shape = own.shape.clone().map(|shape| with_adapters(shape, 0.2));
            Run { shape, recompute: Some(1), frozen: |name| !is_adapter(name), graphs, ..own }.train()
        };
        let whole = GraphOptions { scope: Scope::FullIteration, ..GraphOptions::default() };
        assert!(of(1, GraphOptions::default()) == of(2, whole), "{kind:?}");
    }
}

/// Losses of steps whose second half of samples is the first one again. So tiles have the first step's scales of all
/// tokens.
fn losses_in_8_bits(kind: Kind, tiles: usize) -> Vec<f64> {
    let own = if kind == Kind::Gpt { tiny_gpt } else { tiny_llama };
    let fp8 = Some(Fp8 { amax_history: 4, ..Fp8::default() });
    let shape = GptShape { mlp_tiles: tiles, fp8, ffn: 64, kv_heads: 4, ..own(0.0, Precision::Bf16) };
    let graphs = GraphOptions { poison: true, ..GraphOptions::default() };
    let run = Run { shape: Some(shape), recompute: Some(1), micro_batch_size: SAMPLES, ..Run::new(kind, 1, graphs) };
    let mut stage = run.stage(&run.device());
    let mut loss = |step: usize| {
        let HostValues::I32(half) = batch(kind, (step * SAMPLES) as u64, SAMPLES / 2 / MICRO_BATCH) else {
            unreachable!("tokens")
        };
        let samples = HostValues::I32(half.iter().chain(half.iter()).copied().collect());
        stage.train_step(run.settings(step), Some(&samples)).unwrap().wait().unwrap().loss
    };
    (0..4).map(&mut loss).collect()
}

#[test]
fn tiles_change_no_bit_of_8_bit_products_with_the_same_scales() {
    for kind in [Kind::Gpt, Kind::Llama] {
        assert_eq!(losses_in_8_bits(kind, 1), losses_in_8_bits(kind, 2), "{kind:?}");
    }
}

#[test]
fn tiles_change_no_bit_on_ranks_that_share_layers_batch_and_stages() {
    for (layout, distributed_optimizer, overlaps) in [
        (Layout::new(2, 1, 1, 2), true, false),
        (Layout { sequence: false, ..Layout::new(2, 1, 1, 1) }, false, true),
        (Layout::new(1, 2, 1, 1), false, false),
        (Layout { zero_bubble: true, ..Layout::new(1, 2, 1, 1) }, false, false),
    ] {
        let of = |tiles| {
            let recompute = (!layout.zero_bubble).then_some(1);
            let own = || Run {
                microbatches: 2,
                recompute,
                distributed_optimizer,
                overlaps,
                ..run(Kind::Llama, Precision::Bf16, tiles)
            };
            layout.on_ranks(own, |run| run.train())
        };
        assert!(of(1) == of(2), "{layout:?}");
    }
}

/// Bytes of activations of a recomputed model whose feed-forward layers are so wide that nothing needs as much.
fn planned(tiles: usize) -> usize {
    let shape = GptShape { ffn: WIDTH, max_seq_len: TOKENS, mlp_tiles: tiles, ..tiny_llama(0.0, Precision::Bf16) };
    let graphs = GraphOptions { scope: Scope::FullIteration, ..GraphOptions::default() };
    let run = Run { shape: Some(shape), recompute: Some(1), ..Run::new(Kind::Llama, 1, graphs) };
    let mut stage = run.stage(&run.device());
    stage.record(1, false).unwrap();
    stage.graphs().memory().iter().map(|area| area.bytes).sum()
}

const WIDTH: usize = 1024;
const TOKENS: usize = 1024;

#[test]
fn scratch_falls_with_the_number_of_tiles_to_what_weight_gradients_read() {
    // Of a token backward has twice the width before the activation, and its gradient; once after it, and its gradient.
    // The weight gradients read half of that: the activated values, and the gradient of those before.
    let (half, whole) = (3 * WIDTH * TOKENS * MICRO_BATCH * 2, planned(1));
    for tiles in [2, 4, 8] {
        assert_eq!(whole - planned(tiles), half - half / tiles, "{tiles} tiles");
    }
}
