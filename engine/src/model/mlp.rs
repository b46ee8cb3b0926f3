//! A multi-layer perceptron trained on squared error: linear, ReLU and dropout between layers.

use std::rc::Rc;

use device::Tensor;
use device::ops::{
    Activation, ActivationKind, DropoutPart, DropoutSite, Epilogue, ReluDropout, ReluDropoutBackward, SequenceShare,
};
use graph_manager::Result;
use parallel::Ranks;

use super::architecture::{Architecture, Chunk, Model, StepTensors};
use super::dropout::DropoutLayer;
use super::gpt::RegressionHead;
use super::layer::{Layer, Saved};
use super::linear::{Linear, LinearSpec};
use super::loss_term::LossTerm;
use super::sequence::{Hidden, RotaryTables, SampleRow};
use super::tensor_parallel::{Packed, TensorParallel};
use crate::fp8::Operand;
use crate::layer_partition::StageLayers;
use crate::params::{Init, Params};
use crate::precision::Precision;
use crate::step_policy::StepContext;

/// The sizes of an MLP.
#[derive(Clone, Debug)]
pub struct MlpShape {
    /// Width of the input, of each hidden layer and of the output.
    pub sizes: Vec<usize>,
    /// Dropout after each hidden layer, from the first on; missing rates are 0.
    pub dropouts: Vec<f32>,
    /// Seed of dropout.
    pub seed: u64,
    /// The number formats of weights and activations.
    pub precision: Precision,
}

impl MlpShape {
    /// Training FLOPs per row: 6 per parameter.
    pub fn flops_per_row(&self) -> f64 {
        let parameters: usize = self.sizes.windows(2).map(|pair| (pair[0] + 1) * pair[1]).sum();
        (6 * parameters) as f64
    }

    /// The linear layers, in order.
    fn linears(&self) -> impl Iterator<Item = LinearSpec> {
        self.sizes.windows(2).enumerate().map(|(layer, pair)| {
            let init = Init::Normal((2.0 / pair[0] as f32).sqrt()); // He et al., 2015
            LinearSpec::column_parallel(format!("layers.{layer}"), pair[0], vec![Packed::channels(pair[1])], init, true)
        })
    }
}

/// An MLP of that shape, whole on each rank of `ranks`; the MLP's last layer is the loss.
pub fn mlp(shape: MlpShape, ranks: Rc<Ranks>) -> Architecture {
    let tensor = TensorParallel::alone();
    let params = shape.linears().enumerate().flat_map(|(layer, linear)| linear.params(&tensor, layer));
    Architecture {
        specs: shape.precision.apply(params),
        elsewhere: Vec::new(),
        // The loss is a layer too.
        layers: StageLayers::whole(shape.sizes.len()),
        ranks,
        modules: Vec::new(),
        rotary: RotaryTables::NONE,
        preference: None,
        loss_terms: vec![LossTerm::OF_TARGETS],
        experts: None,
        shares_table: false,
        gradients_outlive_layers: true,
        sample: SampleRow::regression(shape.sizes[0], shape.sizes[shape.sizes.len() - 1]),
        max_seq_len: 1,
        build: Box::new(move |params, step| build(&shape, params, step)),
    }
}

fn build(shape: &MlpShape, params: &Params, step: StepTensors) -> Model {
    let last = shape.sizes.len() - 2;
    let mut layers: Vec<Box<dyn Layer>> = Vec::new();
    for (layer, linear) in shape.linears().enumerate() {
        let rate = if layer == last { 0.0 } else { shape.dropouts.get(layer).copied().unwrap_or(0.0) };
        layers.push(Box::new(Perceptron {
            linear: linear.build(params, shape.precision),
            first: layer == 0,
            activated: layer != last,
            dropout: DropoutLayer {
                rate,
                seed: shape.seed,
                layer: layer as u16,
                site: 0,
                part: DropoutPart::default(),
                rows: None,
                sequence: SequenceShare::WHOLE,
            },
        }));
    }
    let head = RegressionHead { control: step.control, loss_sum: step.losses.loss() };
    Model {
        chunks: vec![Chunk { first: 0, layers, head: Some(Box::new(head)) }],
        residual: None,
        values: shape.precision.activations(),
        drops: shape.dropouts.iter().any(|rate| *rate > 0.0),
        asks_padding: false,
        further_tokens: 0,
        selection_biases: Vec::new(),
    }
}

/// One layer: `dropout(relu(x W^T + b))`, or just the linear part.
struct Perceptron {
    linear: Linear,
    /// Whether this is the first layer, whose backward computes no input gradient.
    first: bool,
    activated: bool,
    dropout: DropoutLayer,
}

struct SavedPerceptron {
    /// `(batch, in)`.
    input: Tensor,
    /// `(batch, out)`, after activation and dropout.
    output: Tensor,
    dropout: Option<DropoutSite>,
}

impl Layer for Perceptron {
    /// From `(batch, in)` to `(batch, out)`.
    fn forward(&self, cx: &mut StepContext<'_>, input: Hidden) -> Result<(Hidden, Saved)> {
        let output = self.linear.output(cx, "output", &input.x)?;
        self.linear.forward(cx, &Operand::Plain(input.x), output, input.samples.record)?;
        let dropout = self.dropout.site(cx, input.samples.record);
        let mut x = output;
        match (self.activated, dropout) {
            (false, _) => {}
            (true, Some(site)) => cx.run(ReluDropout { input: output, output, site })?,
            (true, None) => {
                x = cx.tensor("activated", output.shape, output.dtype)?;
                cx.run(Activation { kind: ActivationKind::Relu, input: output, output: x })?;
            }
        }
        Ok((Hidden { x, ..input }, Saved::new(SavedPerceptron { input: input.x, output: x, dropout })))
    }

    fn backward(&self, cx: &mut StepContext<'_>, saved: &Saved, grad: Tensor) -> Result<Tensor> {
        let saved: &SavedPerceptron = saved.get();
        let mut grad_product = grad;
        if self.activated {
            grad_product = cx.tensor("grad_product", saved.output.shape, grad.dtype)?;
            cx.run(ReluDropoutBackward {
                output: saved.output,
                grad_output: grad,
                grad_input: grad_product,
                scale: saved.dropout.map_or(1.0, |site| site.keep_scale()),
            })?;
        }
        // First, so that it need not wait for the input gradient. It takes longer than that one. The bias gradient
        // comes last, and runs on the compute stream.
        self.linear.weight_gradient(cx, Operand::Plain(saved.input), Operand::Plain(grad_product))?;
        let mut grad_input = grad_product;
        if !self.first {
            grad_input = self.linear.input_gradient(cx, "grad_input", &grad_product)?;
            self.linear.dgrad(cx, &Operand::Plain(grad_product), grad_input, Epilogue::None, None)?;
        }
        if let Some(bias) = self.linear.bias_gradient(cx, grad_product) {
            cx.run(bias)?;
        }
        Ok(grad_input)
    }
}
