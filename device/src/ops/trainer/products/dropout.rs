//! Dropout. Its mask is a function of position and step, not of the state of a generator.

mod host;

use crate::cuda::{KernelFile, KernelOperation, LoadWidth, Queue, args, kernel_file, over_packs, over_rows};
use crate::ops::{HasTensors, Operation, SequenceShare, ensure, ensure_dtype, ensure_elements, ensure_float, tensors};
use crate::{DType, Result, Tensor};

/// A place in the model at which a mask is drawn. Together with the step and the global sample number, which are read
/// from `record` on the device, it determines every mask bit. So the bits are the same in any parallel layout, and
/// again in backward and recompute.
///
/// The bits are Philox4x32-10 (Salmon et al., 2011): key = `(seed low, seed high)` xor `(layer, site)` in the high
/// and low 16 bits of the second word; counter = `(channel / 4, token, sample, step)`; word `channel % 4` of the result
/// is kept when it is at least `rate * 2^32`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DropoutSite {
    /// Probability of zeroing, in `[0, 1)`.
    pub rate: f32,
    /// The run's seed.
    pub seed: u64,
    /// Global layer number.
    pub layer: u16,
    /// The number of the dropout within the layer.
    pub site: u16,
    /// u8, a [`crate::ops::SampleRecord`]: the step, and the global number of the first sample of the batch.
    pub record: Tensor,
    /// The part of the batch's tokens, channels and heads that the dropout is applied to.
    pub part: DropoutPart,
}

impl HasTensors for DropoutSite {
    tensors! { record }
}

impl DropoutSite {
    /// The key of Philox.
    pub(crate) fn key(&self) -> [u32; 2] {
        let site = u32::from(self.layer) << 16 | u32::from(self.site);
        [self.seed as u32, (self.seed >> 32) as u32 ^ site]
    }

    /// Words below this are dropped.
    pub(crate) fn threshold(&self) -> u32 {
        (f64::from(self.rate) * 4_294_967_296.0) as u32
    }

    /// The factor of kept values: `1 / (1 - rate)`.
    pub fn keep_scale(&self) -> f32 {
        1.0 / (1.0 - self.rate)
    }
}

/// The part of the whole tensor that a rank has. The default is all of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DropoutPart {
    /// Rows `(sample, token)` of the batch before the first one here.
    pub first_row: usize,
    /// Tokens of a sample that are here; 0 takes them from the tensor's shape.
    pub tokens: usize,
    /// The tokens of a sample that are here.
    pub share: SequenceShare,
    /// Channels of the whole rows before the first one here.
    pub first_channel: usize,
    /// Attention heads before the first one here.
    pub first_head: usize,
}

/// `output = input * mask / (1 - rate)`. Its own gradient: applied to `grad_output` it gives `grad_input`.
///
/// The outermost axis is samples, the innermost is channels, and the axes between are tokens. A tensor that has only
/// some of the rows may have any axes before the channels. [`DropoutPart`] names the rows and channels of the tensor.
/// `output` may be `input`.
#[derive(Clone, Debug, PartialEq)]
pub struct Dropout {
    /// `(batch, ..., channels)`.
    pub input: Tensor,
    /// As many elements.
    pub output: Tensor,
    /// The mask.
    pub site: DropoutSite,
}

impl Dropout {
    /// Tokens of a sample.
    pub(crate) fn tokens(&self) -> usize {
        let sizes = self.input.shape.sizes();
        match self.site.part.tokens {
            0 => sizes[1..sizes.len() - 1].iter().product(),
            tokens => tokens,
        }
    }
}

impl Operation for Dropout {
    const NAME: &'static str = "dropout";

    fn check(&self) -> Result<()> {
        ensure_float(Self::NAME, &[("input", self.input), ("output", self.output)])?;
        ensure_elements(Self::NAME, "output", &self.output, self.input.elements())?;
        ensure_dtype(Self::NAME, "record", &self.site.record, DType::U8)?;
        ensure(Self::NAME, (0.0..1.0).contains(&self.site.rate), || {
            format!("rate {} is not in [0, 1)", self.site.rate)
        })?;
        ensure(Self::NAME, self.input.shape.sizes().len() >= 2, || {
            format!("`input` is {:?}, needs (batch, ..., channels)", self.input.shape)
        })
    }

    tensors! { read input; write output; read site }
}

/// `output = max(input, 0) * mask / (1 - rate)`: a ReLU, NaN staying NaN, and the [`Dropout`] after it. Axes as there.
#[derive(Clone, Debug, PartialEq)]
pub struct ReluDropout {
    /// `(batch, ..., channels)`.
    pub input: Tensor,
    /// As many elements. It may be `input`.
    pub output: Tensor,
    /// The mask.
    pub site: DropoutSite,
}

impl ReluDropout {
    pub(crate) fn dropout(&self) -> Dropout {
        Dropout { input: self.input, output: self.output, site: self.site }
    }
}

impl Operation for ReluDropout {
    const NAME: &'static str = "relu_dropout";

    fn check(&self) -> Result<()> {
        self.dropout().check()
    }

    tensors! { read input; write output; read site }
}

/// Gradient of [`ReluDropout`], or of a ReLU without dropout: `grad_input = scale * grad_output`, but 0 for an `output`
/// of 0 or less. A value that was dropped is 0, so the mask is not needed.
#[derive(Clone, Debug, PartialEq)]
pub struct ReluDropoutBackward {
    /// The forward's output, any shape.
    pub output: Tensor,
    /// As many elements.
    pub grad_output: Tensor,
    /// As many elements.
    pub grad_input: Tensor,
    /// [`DropoutSite::keep_scale`]; 1 without dropout.
    pub scale: f32,
}

impl Operation for ReluDropoutBackward {
    const NAME: &'static str = "relu_dropout_backward";

    fn check(&self) -> Result<()> {
        let ReluDropoutBackward { output, grad_output, grad_input, .. } = self;
        ensure_float(Self::NAME, &[("output", *output), ("grad_output", *grad_output), ("grad_input", *grad_input)])?;
        ensure_elements(Self::NAME, "grad_output", grad_output, output.elements())?;
        ensure_elements(Self::NAME, "grad_input", grad_input, output.elements())
    }

    tensors! { read output, grad_output; write grad_input }
}

impl KernelOperation for Dropout {
    const FILES: &'static [KernelFile] = &[kernel_file!("products/dropout.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        launch("dropout", self, queue)
    }
}

impl KernelOperation for ReluDropout {
    const FILES: &'static [KernelFile] = &[kernel_file!("products/dropout.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        launch("relu_dropout", &self.dropout(), queue)
    }
}

fn launch(kernel: &str, op: &Dropout, queue: &Queue<'_>) -> Result<()> {
    let (rows, channels, dtype) = (op.input.shape.rows(), op.input.shape.last(), op.input.dtype);
    let site = &op.site;
    let [first_part, first_shift, second_shift] = site.part.share.shifts(op.tokens());
    let [key_low, key_high] = site.key();
    // A thread with a whole vector takes words from the beginning of a Philox block.
    let load = match site.part.first_channel.is_multiple_of(4) {
        true => LoadWidth::of(channels, [op.input, op.output]),
        false => LoadWidth::Scalar,
    };
    let grid = over_rows(rows, channels / load.values(dtype), queue);
    let arguments = args! {
        op.input, op.output, site.record; U32: rows, site.part.first_row, site.part.first_channel, op.tokens(),
        first_part, first_shift, second_shift, channels, key_low, key_high, site.threshold(); F32: site.keep_scale()
    };
    queue.launch(&load.kernel(kernel, dtype), grid, arguments)
}

impl KernelOperation for ReluDropoutBackward {
    const FILES: &'static [KernelFile] = &[kernel_file!("products/dropout.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (count, dtype) = (self.grad_input.elements(), self.grad_input.dtype);
        let load = LoadWidth::of(count, [self.output, self.grad_output, self.grad_input]);
        let grid = over_packs(count / load.values(dtype), queue);
        let arguments = args! { self.output, self.grad_output, self.grad_input; U64: count; F32: self.scale };
        queue.launch(&load.kernel("relu_dropout_backward", dtype), grid, arguments)
    }
}
