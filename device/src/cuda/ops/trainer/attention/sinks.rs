//! Sinks of attention.

use crate::Result;
use crate::cuda::kernels::{Arg, Grid, KernelFile, kernel_file};
use crate::cuda::ops::shape::{LoadWidth, THREADS};
use crate::cuda::{KernelOperation, Queue};
use crate::ops::{AddSinks, KeyPart, SinkGradients, SinkSizes};

/// Launches a kernel with a warp for each head of each row. `tensors` are its first arguments.
fn launch(queue: &Queue<'_>, name: &str, of: &KeyPart, load: LoadWidth, tensors: &[Arg]) -> Result<()> {
    let SinkSizes { seq, heads, dim, rows } = SinkSizes::of(of);
    let blocks = (rows * heads).div_ceil(THREADS / 32).min(queue.multiprocessors() * 8);
    let sizes = [Arg::U64(rows as u64), Arg::U32(seq as u32), Arg::U32(heads as u32), Arg::U32(dim as u32)];
    let arguments: Vec<Arg> = tensors.iter().copied().chain(sizes).collect();
    queue.launch(&load.kernel(name, of.output.dtype), Grid::line(blocks, THREADS as u32), &arguments)
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
