//! A multi-layer perceptron trained on squared error: linear, ReLU and dropout between layers.

use device::ops::{Activation, ActivationBackward, ActivationKind, Dropout, DropoutPart, DropoutSite, Epilogue};
use device::{DType, Tensor};
use graph_manager::Result;

use super::head::RegressionHead;
use super::linear::Linear;
use super::{Architecture, Chunk, Dropouts, Hidden, Layer, Model, SampleRow, StepTensors, TensorParallel, undropped};
use crate::layer_partition::StageLayers;
use crate::params::{Init, ParamSpec, Params};
use crate::step_policy::StepContext;

/// The sizes of an MLP.
#[derive(Clone, Debug)]
pub struct MlpShape {
    /// Width of the input, of each hidden layer and of the output.
    pub sizes: Vec<usize>,
    /// Dropout after each hidden layer, from the first on; missing ones are 0.
    pub dropouts: Vec<f32>,
    /// Rows of a microbatch.
    pub batch: usize,
    /// Seed of weights and dropout.
    pub seed: u64,
    /// Type of activations and weights in layers.
    pub dtype: DType,
}

/// An MLP of that shape; its last layer is the loss.
pub fn mlp(shape: MlpShape) -> Architecture {
    let mut specs = Vec::new();
    for (layer, pair) in shape.sizes.windows(2).enumerate() {
        let init = Init::Normal((2.0 / pair[0] as f32).sqrt()); // He et al., 2015
        specs.push(ParamSpec::new(format!("layers.{layer}.weight"), [pair[1], pair[0]], init, layer));
        specs.push(ParamSpec::new(format!("layers.{layer}.bias"), [pair[1]], Init::Constant(0.0), layer));
    }
    specs.iter_mut().for_each(|spec| spec.dtype = shape.dtype);
    // The loss is a layer too.
    let layers = StageLayers::whole(shape.sizes.len());
    Architecture {
        specs,
        elsewhere: Vec::new(),
        layers,
        tensor: TensorParallel::alone(),
        rotary: None,
        build: Box::new(move |params, step| build(&shape, params, step)),
    }
}

fn build(shape: &MlpShape, params: &Params, step: StepTensors) -> Model {
    let last = shape.sizes.len() - 2;
    let mut layers: Vec<Box<dyn Layer>> = Vec::new();
    for layer in 0..=last {
        let rate = if layer == last { 0.0 } else { shape.dropouts.get(layer).copied().unwrap_or(0.0) };
        layers.push(Box::new(Perceptron {
            linear: Linear {
                weight: params.get(&format!("layers.{layer}.weight")),
                bias: Some(params.get(&format!("layers.{layer}.bias"))),
            },
            first: layer == 0,
            activated: layer != last,
            dropout: Dropouts { rate, seed: shape.seed, layer: layer as u16, site: 0, part: DropoutPart::default() },
        }));
    }
    layers.push(Box::new(RegressionHead { step }));
    Model {
        chunks: vec![Chunk { first: 0, layers }],
        residual: None,
        sample: SampleRow::regression(shape.sizes[0], shape.sizes[last + 1]),
        inputs: ([shape.batch, shape.sizes[0]].into(), shape.dtype),
        targets: ([shape.batch, shape.sizes[last + 1]].into(), shape.dtype),
        losses: shape.batch,
    }
}

/// One layer: `dropout(relu(x W^T + b))`, or just the linear part.
struct Perceptron {
    linear: Linear,
    /// Nothing before it wants a gradient.
    first: bool,
    activated: bool,
    dropout: Dropouts,
}

#[derive(Clone, Copy)]
struct Saved {
    input: Tensor,
    pre: Tensor,
    dropout: Option<DropoutSite>,
}

impl Layer for Perceptron {
    fn forward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<Hidden> {
        let shape = [input.x.shape.rows(), self.linear.width()];
        let pre = cx.tensor("pre", shape, input.x.dtype)?;
        self.linear.forward(cx, input.x, pre)?;
        let mut x = pre;
        let dropout = self.dropout.site(cx, input.record);
        if self.activated {
            x = cx.tensor("activated", shape, input.x.dtype)?;
            cx.run(Activation { kind: ActivationKind::Relu, input: pre, output: x })?;
            if let Some(site) = dropout {
                cx.run(Dropout { input: x, output: x, site })?;
            }
        }
        cx.save_for_backward(Saved { input: input.x, pre, dropout })?;
        Ok(Hidden { x, ..input })
    }

    fn backward(&self, cx: &mut StepContext<'_>, grad: Tensor) -> Result<Tensor> {
        let saved: Saved = cx.saved()?;
        let mut grad_pre = grad;
        if self.activated {
            let grad_output = undropped(cx, "grad_activated", grad, saved.dropout)?;
            grad_pre = cx.tensor("grad_pre", saved.pre.shape, grad.dtype)?;
            cx.run(ActivationBackward {
                kind: ActivationKind::Relu,
                input: saved.pre,
                grad_output,
                grad_input: grad_pre,
            })?;
        }
        if self.first {
            self.linear.backward(cx, saved.input, grad_pre, None)?;
            return Ok(grad_pre);
        }
        let grad_input = cx.tensor("grad_input", saved.input.shape, grad.dtype)?;
        self.linear.backward(cx, saved.input, grad_pre, Some((grad_input, Epilogue::None)))?;
        Ok(grad_input)
    }
}
