//! Full recompute changes when activations are computed, never a bit, and needs less memory.

use engine::graph_options::{GraphOptions, Scope};
use engine::model::GptShape;
use engine::precision::Precision;
use engine::regions::Mode;
use graph_manager::{ListedEntry, Mempool};

use crate::models::{Kind, Layout, Run, all_settings, tiny_gpt, tiny_llama};

const LAYERS: usize = 5;

fn shape(kind: Kind, dtype: Precision) -> GptShape {
    let own = if kind == Kind::Gpt { tiny_gpt } else { tiny_llama };
    GptShape { layers: LAYERS, heads: 8, kv_heads: 4, ..own(0.1, dtype) }
}

fn run(kind: Kind, recompute: Option<usize>, graphs: GraphOptions) -> Run {
    let shape = Some(shape(kind, Precision::F32));
    Run { shape, recompute, steps: 4, ..Run::new(kind, 3, graphs) }
}

/// Bytes of activations.
fn memory(run: &Run) -> usize {
    let mut stage = run.stage(&run.device());
    stage.record(run.microbatches, false).unwrap();
    stage.graphs().memory().iter().map(|area| area.bytes).sum()
}

#[test]
fn blocks_computed_again_alone_or_together_give_the_same_bits_in_every_setting() {
    for kind in [Kind::Gpt, Kind::Llama] {
        let (_, off) = all_settings().swap_remove(0);
        let kept = run(kind, None, off).train();
        assert!(kept.0.iter().all(|step| step.applied && step.loss.is_finite()));
        for (name, graphs) in all_settings() {
            let some = Some(LAYERS - 2);
            let ways = [(1, false, None), (2, false, some), (LAYERS, false, None), (2, true, None), (1, true, some)];
            for (together, keeps_attention, recomputed_blocks) in ways {
                let what = format!("{kind:?}, {together} of {recomputed_blocks:?} blocks, {keeps_attention}, {name}");
                let again = run(kind, Some(together), graphs.clone());
                let again = Run { keeps_attention, recomputed_blocks, ..again };
                assert!(again.train() == kept, "{what}");
            }
        }
    }
}

#[test]
fn bf16_has_the_same_bits_too_with_graphs_replayed_in_random_orders() {
    let of = |recompute, keeps_attention, shuffle| {
        let shape = Some(shape(Kind::Llama, Precision::Bf16));
        let run = run(Kind::Llama, recompute, GraphOptions { poison: true, ..GraphOptions::default() });
        Run { shape, precision: Precision::Bf16, shuffle, keeps_attention, ..run }.train()
    };
    let kept = of(None, false, None);
    for (together, keeps_attention, shuffle) in [(1, false, None), (2, true, Some(7)), (3, false, Some(8))] {
        assert!(of(Some(together), keeps_attention, shuffle) == kept, "{together} blocks");
    }
}

#[test]
fn less_is_kept_in_every_scope_and_pool() {
    for scope in Scope::ALL {
        for mempool in [Mempool::PerMicrobatch, Mempool::Single] {
            let bytes = |layers, recompute, keeps_attention| {
                let shape = Some(GptShape { layers, ..shape(Kind::Gpt, Precision::F32) });
                let graphs = GraphOptions { scope, mempool, ..GraphOptions::default() };
                memory(&Run { shape, keeps_attention, ..run(Kind::Gpt, recompute, graphs) })
            };
            let (few, many) = (4, 12);
            let each = |recompute, keeps_attention| {
                (bytes(many, recompute, keeps_attention) - bytes(few, recompute, keeps_attention)) / (many - few)
            };
            let (kept, again, pairs) = (each(None, false), each(Some(1), false), each(Some(2), false));
            // A block keeps one tensor, the residual stream, of some thirty of that size.
            let stream = crate::models::MICRO_BATCH * crate::models::SEQ * 32 * 4;
            let slots = again / stream;
            // Beside it the output of attention, of the same size, and an f32 for each token and head.
            let log_sums = crate::models::MICRO_BATCH * crate::models::SEQ * 8 * 4;
            assert_eq!(each(Some(1), true), slots * (2 * stream + log_sums), "{scope:?} {mempool:?}, {slots}");
            assert_eq!((again, pairs * 2), (slots * stream, again), "{scope:?} {mempool:?}, {slots}");
            assert!(kept > 10 * again, "{scope:?} {mempool:?}: {kept} bytes a block kept, {again} computed again");
            assert!(bytes(many, Some(2), false) < bytes(many, None, false) / 2, "{scope:?} {mempool:?}");
        }
    }
}

#[test]
fn attention_whose_output_is_kept_runs_once() {
    let times = |recompute, keeps_attention| {
        let run = Run { keeps_attention, ..run(Kind::Llama, recompute, GraphOptions::default()) };
        let mut stage = run.stage(&run.device());
        stage.record(run.microbatches, false).unwrap();
        let mut times = 0;
        let attention = |entry: ListedEntry| times += usize::from(entry.name == "attention");
        stage.graphs().list(Mode::Train.into(), run.microbatches, attention);
        times
    };
    let once = run(Kind::Llama, None, GraphOptions::default()).microbatches * LAYERS;
    assert_eq!([times(None, false), times(Some(2), true), times(Some(2), false)], [once, once, 2 * once]);
}

#[test]
fn the_graphs_are_as_many_as_there_are_groups() {
    // Embedding and head beside the groups; forward and backward of each, and but for the embedding the first
    // microbatch's backward, because it overwrites gradients, as the head's forward does; the optimizer. One rank
    // reduces nothing.
    for (together, groups) in [(1, 5), (2, 3), (3, 2), (9, 1)] {
        let run = run(Kind::Gpt, Some(together), GraphOptions::default());
        let mut stage = run.stage(&run.device());
        stage.record(run.microbatches, false).unwrap();
        assert_eq!(stage.graphs().expected_graphs(Mode::Train.into()), 3 * (groups + 2) + 1, "{together}");
    }
}

/// Losses of each rank.
fn losses(layout: Layout, divided: bool, recompute: Option<usize>, keeps_attention: bool) -> Vec<Vec<String>> {
    let own = || Run {
        distributed_optimizer: divided,
        keeps_attention,
        microbatches: 4,
        // Other buckets divide the state otherwise, and so the sum of the norm.
        clip: if divided { 0.0 } else { 1.0 },
        ..run(Kind::Gpt, recompute, GraphOptions::default())
    };
    layout.on_ranks(own, |run| run.train().0.iter().map(|step| format!("{}", step.loss)).collect())
}

#[test]
fn ranks_that_share_layers_batch_state_and_stages_have_the_same_bits() {
    for (layout, divided) in [
        (Layout::new(1, 1, 1, 2), false),
        (Layout::new(1, 1, 1, 2), true),
        (Layout::new(2, 1, 1, 1), false),
        (Layout::new(2, 1, 1, 2), true),
        (Layout::new(1, 2, 1, 1), false),
        (Layout::new(1, 2, 2, 2), false),
        (Layout { zero_bubble: true, ..Layout::new(1, 2, 1, 1) }, false),
    ] {
        let kept = losses(layout, divided, None, false);
        for (together, keeps_attention) in [(1, false), (2, true)] {
            let again = losses(layout, divided, Some(together), keeps_attention);
            assert_eq!(kept, again, "{layout:?}, divided {divided}, {together} blocks, {keeps_attention}");
        }
    }
}
