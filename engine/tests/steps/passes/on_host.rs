//! Saved tensors on the host between forward and backward: the same bits, with less memory of the device.

use device::{Home, Op};
use engine::graph_options::{GraphOptions, Scope};
use engine::model::GptShape;
use engine::passes::PassName;
use engine::precision::Precision;
use engine::regions::Mode;
use graph_manager::{ListedEntry, Mempool};

use crate::digests::cases::cases;
use crate::digests::recorded::trained;
use crate::models::{Kind, MICRO_BATCH, Run, SEQ, all_settings, tiny_gpt, tiny_llama};

const LAYERS: usize = 5;
const ALL: usize = 100;

fn run(kind: Kind, graphs: GraphOptions) -> Run {
    let own = if kind == Kind::Gpt { tiny_gpt } else { tiny_llama };
    let shape = Some(GptShape { layers: LAYERS, heads: 8, kv_heads: 4, ..own(0.1, Precision::F32) });
    Run { shape, steps: 3, ..Run::new(kind, 3, graphs) }
}

#[test]
fn what_leaves_and_comes_back_has_the_same_bits_in_every_setting() {
    for kind in [Kind::Gpt, Kind::Llama] {
        let (_, off) = all_settings().swap_remove(0);
        let stay = run(kind, off).train();
        // Activations do not meet the optimizer.
        let settings = all_settings().into_iter().filter(|(name, _)| !name.contains("optimizer false"));
        for (number, (name, graphs)) in settings.enumerate() {
            let ways = [(None, false, ALL), (Some(1), false, ALL), (Some(2), true, 1)];
            for (recompute, keeps_attention, layers_on_host) in ways {
                let moved = run(kind, graphs.clone());
                // Replays in random orders would show a copy that nothing waits for.
                let shuffle = Some(number as u64);
                let moved = Run { recompute, keeps_attention, layers_on_host, shuffle, ..moved };
                assert!(moved.train() == stay, "{kind:?}, {name}, {recompute:?} blocks computed again");
            }
        }
    }
}

/// Layouts and features in which something leaves that is unlike what leaves in others.
const CASES: [&str; 18] = [
    "tensor 2",
    "stages 2, chunks 2",
    "stages 2, zero bubble",
    "tensor 2, stages 2, zero bubble, data 2",
    "MLP",
    "Gemma 3",
    "overlap, stages 2",
    "fp8 delayed, tensor 2, sequence",
    "fp8 delayed, data 2, distributed optimizer",
    "LoRA",
    "experts, stages 2, zero bubble, data 2",
    "packing",
    "graphs of some modules",
    "selective recompute",
    "hooks, tensor 2, data 2",
    "moments in bf16",
    "Muon",
    "Muon, data 2, distributed optimizer",
];

#[test]
fn layouts_and_features_have_the_same_bits_with_all_on_the_host_that_can_be() {
    let all = cases();
    for name in CASES {
        let case = all.iter().find(|case| case.name == name).unwrap();
        let of = |layers_on_host, state_on_host| {
            let make = || Run { steps: 3, layers_on_host, state_on_host, ..case.run("per layer") };
            case.layout.on_ranks(make, |run| trained(&run))
        };
        let stay = of(0, 0.0);
        assert_eq!(of(ALL, 1.0), stay, "{name}");
        assert_eq!(of(0, 0.4), stay, "{name}, a part of the state");
    }
}

/// Bytes of activations on the device and on the host.
fn memory(run: &Run) -> [usize; 2] {
    let mut stage = run.stage(&run.device());
    stage.record(run.microbatches, false).unwrap();
    [Home::Device, Home::Host].map(|home| stage.graphs().memory_in(home).iter().map(|area| area.bytes).sum())
}

#[test]
fn a_recomputed_block_keeps_nothing_on_the_device_in_every_scope_and_pool() {
    for scope in Scope::ALL {
        for mempool in [Mempool::PerMicrobatch, Mempool::Single] {
            let of = |layers, layers_on_host| {
                let graphs = GraphOptions { scope, mempool, ..GraphOptions::default() };
                let run = run(Kind::Gpt, graphs);
                let shape = run.shape.clone().map(|shape| GptShape { layers, ..shape });
                memory(&Run { shape, recompute: Some(1), layers_on_host, ..run })
            };
            let stream = MICRO_BATCH * SEQ * 32 * 4;
            let [few, many] = [of(6, ALL), of(14, ALL)];
            assert_eq!(few[0], many[0], "{scope:?} {mempool:?}: the device has two blocks' at a time");
            // Of each microbatch in flight all but the last block's.
            assert_eq!((many[1] - few[1]) % (8 * stream), 0, "{scope:?} {mempool:?}");
            assert!(few[1] >= 5 * stream && many[1] >= 13 * stream, "{scope:?} {mempool:?}: {few:?} {many:?}");
            let stay = of(14, 0);
            assert_eq!(stay[1], 0);
            assert!(stay[0] >= many[0] + 9 * stream, "{scope:?} {mempool:?}: {stay:?} {many:?}");
            // A part of the blocks.
            let some = of(14, 4);
            assert!(some[1] < many[1] && some[1] > 0 && some[0] < stay[0], "{scope:?} {mempool:?}: {some:?}");
        }
    }
}

#[test]
fn each_block_but_the_last_sends_one_tensor_and_gets_it_back_beside_its_neighbour() {
    let run = run(Kind::Llama, GraphOptions::default());
    let run = Run { recompute: Some(1), layers_on_host: ALL, microbatches: 2, ..run };
    let mut stage = run.stage(&run.device());
    stage.record(2, false).unwrap();
    let mut moves = Vec::new();
    let moved = |entry: ListedEntry| {
        if let Some(Op::Move(_)) = entry.op {
            moves.push(entry.region.to_string());
        }
    };
    stage.graphs().list(Mode::Train.into(), 2, moved);
    // Layer 0 is the embedding, layer 5 the last block.
    let forward = (2..=LAYERS).map(|layer| ("forward", layer));
    let backward = (2..=LAYERS).rev().map(|layer| ("backward", layer));
    let of_one: Vec<(&str, usize)> = forward.chain(backward).collect();
    let of = |microbatch: usize| {
        let region = move |(kind, layer): &(&str, usize)| format!("{kind} of layer {layer}, microbatch {microbatch}");
        of_one.iter().map(region).collect::<Vec<_>>()
    };
    assert_eq!(moves, [of(0), of(1)].concat());
}

#[test]
fn state_on_the_host_is_updated_on_the_device_to_the_same_bits() {
    for precision in [Precision::F32, Precision::Bf16] {
        let of = |state_on_host, graphs: GraphOptions| {
            let run = run(Kind::Llama, graphs);
            let shape = run.shape.clone().map(|shape| GptShape { precision, ..shape });
            Run { shape, precision, state_on_host, ..run }
        };
        let (_, off) = all_settings().swap_remove(0);
        let stay = of(0.0, off).train();
        for (number, (name, graphs)) in all_settings().into_iter().enumerate() {
            let share = [1.0, 0.5, 0.01][number % 3];
            let away = Run { shuffle: Some(number as u64), ..of(share, graphs) };
            assert!(away.train() == stay, "{precision:?}, {name}, {share} of the state");
        }
        for left_out in [vec![PassName::HostState], PassName::ALL.to_vec()] {
            let away = Run { left_out, ..of(1.0, GraphOptions::default()) };
            assert!(away.train() == stay, "{precision:?}, moves on the region's own queue");
        }
    }
}

#[test]
fn three_parts_of_the_state_are_on_the_device_at_a_time() {
    let of = |state_on_host| {
        let run = run(Kind::Llama, GraphOptions::default());
        let shape = run.shape.clone().map(|shape| GptShape { precision: Precision::Bf16, ..shape });
        let run = Run { shape, precision: Precision::Bf16, state_on_host, ..run };
        let device = run.device();
        let mut stage = run.stage(&device);
        let before = [device.allocated_bytes(), device.bytes_on_host()];
        stage.record(run.microbatches, false).unwrap();
        let state = [Home::Device, Home::Host]
            .map(|home| stage.params().master_bytes_in(home) + stage.optimizer().state_bytes_in(home));
        let scratch: usize = stage.graphs().memory().iter().map(|area| area.bytes).sum();
        (before, state, scratch)
    };
    let ([here, none], [state, _], alone) = of(0.0);
    let ([left, away], there, with_parts) = of(1.0);
    assert_eq!((none, away), (0, state));
    assert_eq!((here - left, there), (state, [0, state]));
    // A part of it leaves, in whole buckets.
    let ([some, part], there, _) = of(0.25);
    assert_eq!((here - some, there), (part, [state - part, part]));
    assert!((state / 4..state / 2).contains(&part), "{part} of {state}");
    // Of eight parts; where backwards had memory they cost nothing.
    assert!(with_parts <= alone + state * 3 / 8 + 4096, "{with_parts} {alone} {state}");
}
