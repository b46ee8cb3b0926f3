//! The parameters of an update, as kernels take them.

use crate::cuda::{Grid, Queue, fill, for_each_table, kernel_struct};
use crate::{DType, Result, Tensor};

kernel_struct! {
    /// `Parameter` of `kernels/updates/optimizer.cu`; 0 is the null pointer.
    Parameter {
        u64: master, compute, grad, first, second, elements;
        f32: weight_decay, lr_multiplier;
        u32: first_chunk, compute_is_bf16, first_is_bf16, second_is_bf16, vector, has_remainders, grad_is_bf16,
            padding;
    }
}

kernel_struct! {
    /// `Update` of `kernels/updates/optimizer.cu`.
    Args {
        u64: control, status;
        f32: beta1, beta2, eps;
        u32: count;
        [Parameter; 48]: entries;
    }
}

/// The tensors of a parameter, for any kernel.
pub(super) struct Tensors<'o> {
    pub(super) master: Tensor,
    pub(super) compute: Option<Tensor>,
    pub(super) grad: Tensor,
    /// At most two.
    pub(super) state: &'o [Tensor],
    pub(super) weight_decay: f32,
    pub(super) lr_multiplier: f32,
}

impl Tensors<'_> {
    fn parameter(self, first_chunk: u32) -> Parameter {
        let is_bf16 = |tensor: Option<Tensor>| u32::from(tensor.is_some_and(|tensor| tensor.dtype == DType::Bf16));
        // Four elements at a time: 16 bytes of f32, 8 of bf16.
        let aligned = |tensor: &Tensor| tensor.address.is_multiple_of(4 * tensor.dtype.size() as u64);
        let all = [self.master, self.grad];
        let vector = all.iter().chain(&self.compute).chain(self.state).all(aligned);
        let [first, second] = [0, 1].map(|index| self.state.get(index).copied());
        fill! {
            Parameter: self.{master, compute, grad, weight_decay, lr_multiplier}; first, second,
            elements: self.master.elements(), first_chunk, compute_is_bf16: is_bf16(self.compute),
            first_is_bf16: is_bf16(first), second_is_bf16: is_bf16(second), vector,
            has_remainders: self.master.dtype == DType::U16, grad_is_bf16: is_bf16(Some(self.grad)), padding: 0u32
        }
    }
}

/// Launches a kernel over all tensors.
pub(super) fn launch<'o>(
    kernel: &str,
    tensors: impl Iterator<Item = Tensors<'o>>,
    args: Args,
    queue: &Queue<'_>,
) -> Result<()> {
    for_each_table(
        tensors.map(|tensors| {
            let elements = tensors.master.elements();
            (tensors, elements)
        }),
        Tensors::parameter,
        |entries, count, _, chunks| {
            let block = Args { count, entries: *entries, ..args };
            queue.launch_block(kernel, Grid::line(chunks, 256), &block)
        },
    )
}
