//! Sinks of attention: a learnt score for each head that takes part in the softmax and has no value.

mod host;

use crate::cuda::{Arg, Grid, KernelFile, KernelOperation, LoadWidth, Queue, THREADS, kernel_file};
use crate::ops::{KeyPart, Operation, ensure, ensure_dtype, ensure_elements, ensure_float, ensure_values, tensors};
use crate::{DType, Result, Tensor};

/// Attention with sinks from that without, in place. With `l` a row's statistic and `s` its head's sink, the statistic
/// becomes `m = log(exp(l) + exp(s))`, and the output is multiplied by `exp(l - m)`. The backward of attention then needs
/// no more: [`AttentionBackward`](crate::ops::AttentionBackward) with these results has the gradients of queries, keys and
/// values.
#[derive(Clone, Debug, PartialEq)]
pub struct AddSinks {
    /// Updated: the results of attention over all keys.
    pub attended: KeyPart,
    /// `(heads)`, f32.
    pub sinks: Tensor,
}

/// The gradients of sinks, a summand of each row: `-exp(s - m)` times the dot product of `output` and `grad_output`.
/// [`BiasGrad`](crate::ops::BiasGrad) sums them.
#[derive(Clone, Debug, PartialEq)]
pub struct SinkGradients {
    /// The results of attention as [`AddSinks`] left them.
    pub attended: KeyPart,
    /// The gradient of the output, with its sizes.
    pub grad_output: Tensor,
    /// `(heads)`, f32.
    pub sinks: Tensor,
    /// `(batch, seq, heads)`, f32, written.
    pub summands: Tensor,
}

/// The sizes of an attention with sinks.
#[derive(Clone, Copy)]
pub(crate) struct SinkSizes {
    pub(crate) seq: usize,
    pub(crate) heads: usize,
    /// Channels of a head's output.
    pub(crate) dim: usize,
    /// Rows of all samples.
    pub(crate) rows: usize,
}

impl SinkSizes {
    /// The sizes of checked results.
    pub(crate) fn of(attended: &KeyPart) -> SinkSizes {
        let sizes = attended.stats.shape.sizes();
        let (batch, heads, seq) = (sizes[0], sizes[1], sizes[2]);
        SinkSizes { seq, heads, dim: attended.output.shape.last() / heads, rows: batch * seq }
    }
}

fn check(op: &'static str, KeyPart { output, stats }: &KeyPart, sinks: &Tensor) -> Result<()> {
    ensure_float(op, &[("output", *output)])?;
    ensure_dtype(op, "stats", stats, DType::F32)?;
    ensure_dtype(op, "sinks", sinks, DType::F32)?;
    let fits = matches!(stats.shape.sizes(), &[batch, heads, seq]
        if heads > 0 && output.shape.last().is_multiple_of(heads) && output.shape.rows() == batch * seq);
    ensure(op, fits, || format!("`stats` is {:?} with an output {:?}", stats.shape, output.shape))?;
    ensure_elements(op, "sinks", sinks, stats.shape.sizes()[1])
}

impl Operation for AddSinks {
    const NAME: &'static str = "add_sinks";

    fn check(&self) -> Result<()> {
        check(Self::NAME, &self.attended, &self.sinks)
    }

    tensors! { update attended; read sinks }
}

impl Operation for SinkGradients {
    const NAME: &'static str = "sink_gradients";

    fn check(&self) -> Result<()> {
        check(Self::NAME, &self.attended, &self.sinks)?;
        ensure_float(Self::NAME, &[("grad_output", self.grad_output)])?;
        ensure_values(
            Self::NAME,
            "grad_output",
            &self.grad_output,
            self.attended.output.dtype,
            self.attended.output.elements(),
        )?;
        ensure_values(Self::NAME, "summands", &self.summands, DType::F32, self.attended.stats.elements())
    }

    tensors! { read attended, grad_output, sinks; write summands }
}

/// Launches a kernel with a warp for each head of each row. `tensors` are its first arguments.
fn launch(queue: &Queue<'_>, name: &str, of: &KeyPart, load: LoadWidth, tensors: &[Arg]) -> Result<()> {
    let SinkSizes { seq, heads, dim, rows } = SinkSizes::of(of);
    let blocks = (rows * heads).div_ceil(THREADS / 32).min(queue.multiprocessors() * 8);
    let sizes = [Arg::U64(rows as u64), Arg::U32(seq as u32), Arg::U32(heads as u32), Arg::U32(dim as u32)];
    let arguments: Vec<Arg> = tensors.iter().copied().chain(sizes).collect();
    queue.launch(&load.kernel(name, of.output.dtype), Grid::line(blocks, THREADS), &arguments)
}

impl KernelOperation for AddSinks {
    const FILES: &'static [KernelFile] = &[kernel_file!("attention/sinks.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let KeyPart { output, stats } = self.attended;
        let load = LoadWidth::of(SinkSizes::of(&self.attended).dim, [output]);
        launch(queue, "add_sinks", &self.attended, load, &[output.into(), stats.into(), self.sinks.into()])
    }
}

impl KernelOperation for SinkGradients {
    const FILES: &'static [KernelFile] = &[kernel_file!("attention/sinks.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let KeyPart { output, stats } = self.attended;
        let (grad, sinks, summands) = (self.grad_output, self.sinks, self.summands);
        let load = LoadWidth::of(SinkSizes::of(&self.attended).dim, [output, grad]);
        let tensors = [output.into(), stats.into(), grad.into(), sinks.into(), summands.into()];
        launch(queue, "sink_gradients", &self.attended, load, &tensors)
    }
}
