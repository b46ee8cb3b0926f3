//! A feed-forward layer with squared ReLU (So et al., 2021) between two matrices, and a term of the loss that keeps its
//! values small.

use std::sync::Arc;

use common::UserError;
use device::ops::{Epilogue, Gemm, SumInto};
use device::{DType, Shape, Tensor};
use engine::model::{GptShape, LossTerm, OwnLayer, OwnParam, OwnPart, Saved, StepTensors, adds_to_gradients};
use engine::params::{Init, Param};
use engine::step_policy::StepContext;
use graph_manager::Result;
use trainer::config::RunConfig;

use crate::square::{Activity, Square, SquareBackward};

const ACTIVITY: LossTerm = LossTerm::minimised("activity");

/// The part of a run.
pub fn part(config: &RunConfig) -> std::result::Result<Arc<dyn OwnPart>, UserError> {
    Ok(Arc::new(SquaredRelu { activity: config.own.float("activity").unwrap_or_default() as f32 }))
}

#[derive(Debug)]
struct SquaredRelu {
    /// The term of a token is this times half the sum of its squared values.
    activity: f32,
}

impl OwnPart for SquaredRelu {
    fn params(&self, shape: &GptShape, _block: usize) -> Vec<OwnParam> {
        let init = Init::Normal(shape.init_std as f32);
        vec![
            OwnParam { name: "up", sizes: vec![shape.ffn, shape.hidden], init },
            OwnParam { name: "down", sizes: vec![shape.hidden, shape.ffn], init },
        ]
    }

    fn build(&self, params: &[Param], step: &StepTensors) -> Box<dyn OwnLayer> {
        let term = step.losses.of(ACTIVITY).map(|sum| Term { factor: self.activity, sum });
        Box::new(Layer { up: params[0], down: params[1], term, control: step.control })
    }

    fn multiplications(&self, shape: &GptShape) -> usize {
        2 * shape.ffn * shape.hidden
    }

    fn terms(&self) -> Vec<LossTerm> {
        if self.activity == 0.0 { Vec::new() } else { vec![ACTIVITY] }
    }
}

/// The term of the loss.
#[derive(Clone, Copy)]
struct Term {
    factor: f32,
    /// `(1)`, f32.
    sum: Tensor,
}

struct Layer {
    /// `(ffn, hidden)`.
    up: Param,
    /// `(hidden, ffn)`.
    down: Param,
    term: Option<Term>,
    control: Tensor,
}

/// `(batch, seq, ffn)`: the values before and after the activation.
struct SavedLayer {
    pre: Tensor,
    squared: Tensor,
}

/// The shape of a tensor with another width.
fn with_width(tensor: &Tensor, width: usize) -> Shape {
    let sizes = tensor.shape.sizes();
    Shape::new(&[&sizes[..sizes.len() - 1], &[width]].concat())
}

impl OwnLayer for Layer {
    fn forward(&self, cx: &mut StepContext<'_>, input: Tensor) -> Result<(Tensor, Saved)> {
        let ffn = self.up.weight.shape.rows();
        let pre = cx.tensor("pre", with_width(&input, ffn), input.dtype)?;
        let squared = cx.tensor("squared", pre.shape, input.dtype)?;
        let output = cx.tensor("output", input.shape, input.dtype)?;
        cx.run(Gemm::linear(input, self.up.weight, pre, Epilogue::None))?;
        cx.run(Square { pre, output: squared })?;
        cx.run(Gemm::linear(squared, self.down.weight, output, Epilogue::None))?;
        if let Some(Term { factor, sum }) = self.term.filter(|_| cx.mode().trains()) {
            let values = cx.tensor("activity", [pre.elements() / ffn], DType::F32)?;
            cx.run(Activity { pre, values, factor })?;
            cx.run(SumInto { input: values, total: sum, accumulate: true })?;
        }
        Ok((output, Saved::new(SavedLayer { pre, squared })))
    }

    fn backward(&self, cx: &mut StepContext<'_>, input: Tensor, saved: &Saved, grad: Tensor) -> Result<Tensor> {
        let &SavedLayer { pre, squared } = saved.get();
        let adds = adds_to_gradients(cx);
        let [grad_squared, grad_pre] =
            [cx.tensor("grad_squared", pre.shape, grad.dtype)?, cx.tensor("grad_pre", pre.shape, grad.dtype)?];
        let grad_input = cx.tensor("grad_input", input.shape, grad.dtype)?;
        // A frozen parameter has no gradient.
        if let Some(grad_down) = self.down.grad {
            cx.run(Gemm::wgrad(grad, squared, grad_down, adds))?;
        }
        cx.run(Gemm::dgrad(grad, self.down.weight, grad_squared, Epilogue::None))?;
        let factor = self.term.map_or(0.0, |term| term.factor);
        cx.run(SquareBackward { pre, grad: grad_squared, grad_pre, control: self.control, factor })?;
        if let Some(grad_up) = self.up.grad {
            cx.run(Gemm::wgrad(grad_pre, input, grad_up, adds))?;
        }
        cx.run(Gemm::dgrad(grad_pre, self.up.weight, grad_input, Epilogue::None))?;
        Ok(grad_input)
    }
}
