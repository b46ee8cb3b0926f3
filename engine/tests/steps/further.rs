//! Layers that predict tokens beyond the next one: the same in graphs and on ranks, and left out where nothing is trained.
//! `parity` compares them with PyTorch.

use std::collections::HashMap;

use device::HostValues;
use engine::graph_options::GraphOptions;
use engine::model::{BalanceGroup, ContextTransfers, FurtherTokens, GptShape, SampleRow};
use engine::params::Sharding;
use engine::precision::Precision;
use engine::step::{Stage, StepResult};

use crate::experts::tiny_shared;
use crate::models::{Kind, Layout, Run, SEQ, assert_graphs_change_no_bit, off, packed, some_settings, tiny_llama};

const MICROBATCHES: usize = 4;

/// Two such layers, in which an embedded token and the stream are dropped, and the logits are made in pieces.
fn shape(dropout: f32, tied: bool) -> GptShape {
    let further_tokens = Some(FurtherTokens { depths: 2, factor: 0.5 });
    GptShape { layers: 3, further_tokens, loss_pieces: 2, tied, ..tiny_llama(dropout, Precision::F32) }
}

fn run(shape: &GptShape, row: Option<SampleRow>, microbatches: usize, graphs: GraphOptions) -> Run {
    Run { shape: Some(shape.clone()), row, steps: 3, ..Run::new(Kind::Llama, microbatches, graphs) }
}

#[test]
fn graphs_change_no_bit_of_a_training_with_further_tokens() {
    let row = || Some(SampleRow::packed(SEQ, SEQ));
    let train = |graphs| run(&shape(0.1, true), row(), 3, graphs).train();
    let (plain, _) = assert_graphs_change_no_bit("further tokens", &some_settings(5), train);
    let has_losses = |step: &StepResult| step.added["mtp_1_loss"] > 1.0 && step.added["mtp_2_loss"] > 0.5;
    assert!(plain.iter().all(has_losses), "{plain:?}");
}

/// Ranks of every kind have the numbers of one rank.
#[test]
fn ranks_have_the_losses_of_further_tokens_of_one_rank() {
    let plain = |run: Run| run;
    let pipeline = Layout::new(1, 2, 1, 1);
    type Change = fn(Run) -> Run;
    let layouts: [(Layout, Change); 9] = [
        (Layout::new(1, 1, 1, 2), |run| Run { distributed_optimizer: true, ..run }),
        (Layout::new(1, 1, 1, 2), |run| Run { sharding: Sharding::Weights, ..run }),
        (Layout::new(2, 1, 1, 1), plain),
        (Layout { sequence: false, ..Layout::new(2, 1, 1, 1) }, plain),
        (Layout { context: 2, ..Layout::new(1, 1, 1, 1) }, plain),
        (Layout { context: 2, ..Layout::new(1, 1, 1, 1) }, |run| Run { context: ContextTransfers::Heads, ..run }),
        (pipeline, |run| Run { recompute: Some(1), ..run }),
        (Layout { zero_bubble: true, ..pipeline }, plain),
        (Layout::new(2, 2, 1, 1), |run| Run { overlaps: true, ..run }),
    ];
    for tied in [true, false] {
        for row in [None, Some(SampleRow::packed(SEQ, SEQ))] {
            let shape = GptShape { attention_dropout: 0.0, ..shape(0.1, tied) };
            let (alone, _) = run(&shape, row.clone(), MICROBATCHES, off()).train();
            for (number, (layout, change)) in layouts.into_iter().enumerate() {
                // Each layout meets each kind of samples and of tables once.
                if number % 2 == usize::from(tied == row.is_some()) {
                    continue;
                }
                let make = || change(run(&shape, row.clone(), MICROBATCHES / layout.data, off()));
                for results in layout.on_ranks(make, |run| run.train().0) {
                    assert_alike(&format!("{number}: {layout:?}, tied {tied}"), &alone, &results);
                }
            }
        }
    }
}

#[test]
fn ranks_that_divide_experts_have_the_losses_of_further_tokens_of_one_rank() {
    let further_tokens = Some(FurtherTokens { depths: 1, factor: 0.5 });
    let shape = GptShape { further_tokens, ..tiny_shared(0.0, BalanceGroup::Sequence) };
    let (alone, _) = run(&shape, None, MICROBATCHES, off()).train();
    for layout in [Layout { expert: 2, ..Layout::new(1, 1, 1, 2) }, Layout { expert: 2, ..Layout::new(1, 2, 1, 2) }] {
        for results in layout.on_ranks(|| run(&shape, None, MICROBATCHES / 2, off()), |run| run.train().0) {
            assert_alike(&format!("{layout:?}"), &alone, &results);
        }
    }
}

fn assert_alike(what: &str, alone: &[StepResult], ranks: &[StepResult]) {
    let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-4;
    for (alone, here) in alone.iter().zip(ranks) {
        assert!(close(here.loss, alone.loss), "{what}: {here:?} and {alone:?}");
        assert!(close(here.grad_norm.into(), alone.grad_norm.into()), "{what}: {here:?} and {alone:?}");
        assert!(
            alone.added.iter().all(|(name, loss)| close(here.added[name], *loss)),
            "{what}: {here:?} and {alone:?}"
        );
    }
}

/// The gradients after a step, by name.
fn gradients(stage: &Stage, device: &device::Device) -> HashMap<String, Vec<f32>> {
    let of = |param: &engine::params::Param| device.download::<f32>(&param.grad.unwrap()).unwrap();
    stage.params().iter().map(|(spec, param)| (spec.name.clone(), of(param))).collect()
}

/// The gradient of a tied table is the sum of those of its three uses, which without a tie are in two tables.
#[test]
fn a_tied_table_has_the_gradients_of_embedding_and_head() {
    let of = |tied: bool| {
        let run = Run { steps: 1, clip: 0.0, ..run(&shape(0.0, tied), None, 2, off()) };
        let device = run.device();
        let mut stage = run.stage(&device);
        let table = stage.params().iter().position(|(spec, _)| spec.name == "wte.weight").unwrap();
        let head = stage.params().iter().position(|(spec, _)| spec.name == "lm_head.weight");
        let values = stage.params().iter().nth(table).unwrap().1.master_values(&device).unwrap();
        if let Some(head) = head {
            stage.params().set_needed(&device, head, &values).unwrap();
        }
        let results = run.train_stage(&mut stage);
        (results, gradients(&stage, &device))
    };
    let ((tied, of_tied), (apart, of_apart)) = (of(true), of(false));
    assert!((tied[0].loss / apart[0].loss - 1.0).abs() < 1e-6 && tied[0].added == apart[0].added);
    let sums = of_apart["wte.weight"].iter().zip(&of_apart["lm_head.weight"]).map(|(a, b)| a + b);
    for (sum, tied) in sums.zip(&of_tied["wte.weight"]) {
        assert!((sum - tied).abs() < 1e-6, "{sum} and {tied}");
    }
}

/// A model without such layers has the same losses in evaluation, and the first losses of its training are the same.
#[test]
fn evaluation_leaves_further_tokens_out() {
    let with = run(&shape(0.0, false), None, 2, off());
    let without = Run {
        shape: Some(GptShape { further_tokens: None, ..shape(0.0, false) }),
        ..run(&shape(0.0, false), None, 2, off())
    };
    let evaluated = [with, without].map(|run| {
        let device = run.device();
        let mut stage = run.stage(&device);
        stage.record(2, true).unwrap();
        run.evaluate(&mut stage, run.settings(0))
    });
    assert!(evaluated[0].added.is_empty());
    assert_eq!(evaluated[0].loss.to_bits(), evaluated[1].loss.to_bits());
}

/// A target in another document, or beyond the end, has no loss: a sample of documents of one and two tokens has none that
/// is two tokens further on.
#[test]
fn a_target_beyond_its_document_has_no_loss() {
    let row = SampleRow::packed(SEQ, SEQ);
    let HostValues::I32(rows) = packed(0, 4) else { unreachable!("tokens") };
    let mut rows = rows.to_vec();
    for row in rows.chunks_mut(3 * SEQ) {
        row[2 * SEQ..].iter_mut().enumerate().for_each(|(at, position)| *position = at as i32 % 2);
    }
    let run = run(&shape(0.0, false), Some(row), 2, off());
    let device = run.device();
    let mut stage = run.stage(&device);
    let result = stage.train_step(run.settings(0), Some(&HostValues::I32(rows.into()))).unwrap().wait().unwrap();
    assert!(result.added["mtp_1_loss"] > 1.0, "{result:?}");
    assert_eq!(result.added["mtp_2_loss"], 0.0, "{result:?}");
}
