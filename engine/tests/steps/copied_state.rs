//! The state is copied beside the next step: the copy has the bits from before the step, and the step those that it
//! has without a copy.

use device::{Staging, Tensor};
use engine::fp8::{Fp8, Fp8Format, Fp8Recipe};
use engine::graph_options::{GraphOptions, Scope};
use engine::model::GptShape;
use engine::precision::Precision;
use engine::step::Stage;

use crate::models::{Kind, Layout, Run, all_settings, batch, tiny_gpt};

/// The tensors that a checkpoint has.
fn state(stage: &Stage) -> Vec<Tensor> {
    let (params, optimizer) = (stage.params(), stage.optimizer());
    let masters = params.iter().map(|(_, param)| param.master);
    let moments = (0..params.iter().count()).flat_map(|index| optimizer.state(index).iter().map(|state| state.tensor));
    let fp8 = params.iter().filter_map(|(_, param)| param.fp8);
    let scales = fp8.flat_map(|fp8| [fp8.input, fp8.grad_output]).flatten().map(|cell| cell.history);
    masters.chain(moments).chain(scales).collect()
}

/// Trains, copies the state before each step from the second on, and returns losses. Every copy is compared with values
/// that were read while nothing ran.
fn train(run: &Run, copies: bool) -> Vec<f64> {
    let device = run.device();
    let mut stage = run.stage(&device);
    let step = |step: usize| {
        let settings = run.settings(step);
        let batch = stage.needs_batch().then(|| batch(run.kind, settings.first_sample, run.microbatches));
        let tensors = state(&stage);
        let mut before = Vec::new();
        for tensor in tensors.iter().filter(|_| copies) {
            device.look(tensor, |bytes| before.extend_from_slice(bytes)).unwrap();
        }
        let copy = (copies && step > 0).then(|| stage.copy_out(&tensors, &Staging::default()).unwrap());
        let loss = stage.train_step(settings, batch.as_ref()).unwrap().wait().unwrap().loss;
        if let Some(copy) = copy {
            let pieces = tensors.iter().flat_map(|tensor| copy.pieces(tensor).unwrap());
            let copied: Vec<u8> = pieces.flat_map(|piece| piece.unwrap().as_ref().to_vec()).collect();
            assert!(copied == before, "step {step}");
        }
        loss
    };
    (0..run.steps).map(step).collect()
}

#[test]
fn a_copy_beside_a_step_has_the_bits_from_before_it_in_every_setting() {
    for (at, (name, graphs)) in all_settings().into_iter().enumerate() {
        let run = |kind| Run { steps: 5, ..Run::new(kind, 2, graphs.clone()) };
        let kind = [Kind::Gpt, Kind::Llama, Kind::Mlp][at % 3];
        assert_eq!(train(&run(kind), true), train(&run(kind), false), "{name}");
    }
}

#[test]
fn a_copy_beside_a_step_has_the_bits_from_before_it_on_several_ranks_and_in_8_bits() {
    for scope in Scope::ALL {
        let graphs = GraphOptions { scope, ..GraphOptions::default() };
        for (precision, distributed_optimizer) in
            [(Precision::F32, true), (Precision::Bf16, true), (Precision::Bf16, false)]
        {
            let fp8 = Fp8 { recipe: Fp8Recipe::Delayed, format: Fp8Format::Hybrid, amax_history: 4, ..Fp8::default() };
            let fp8 = (precision == Precision::Bf16).then_some(fp8);
            let shape = GptShape { layers: 2, fp8, ..tiny_gpt(0.1, precision) };
            let run = || Run {
                steps: 5,
                shape: Some(shape.clone()),
                distributed_optimizer,
                ..Run::new(Kind::Gpt, 2, graphs.clone())
            };
            for layout in [Layout::new(1, 1, 1, 2), Layout::new(1, 2, 1, 2)] {
                let [with, without] = [true, false].map(|copies| layout.on_ranks(run, |run| train(&run, copies)));
                assert_eq!(with, without, "{scope:?} {precision:?} {layout:?}");
            }
        }
    }
}
