//! The update: clip scale and the rules.

use crate::cuda::kernels::{Grid, KernelFile, args, kernel_file, kernel_struct};
use crate::cuda::ops::table::for_each_table;
use crate::cuda::{KernelOperation, Queue};
use crate::ops::{ClipScale, DecayedStep, NesterovMomentum, Update};
use crate::{DType, Result, Tensor};

impl KernelOperation for ClipScale {
    const FILES: &'static [KernelFile] = &[kernel_file!("updates/optimizer.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        queue.launch("clip_scale", Grid::line(1, 1), args! { self.square_sum, self.control, self.status })
    }
}

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
struct Tensors<'o> {
    master: Tensor,
    compute: Option<Tensor>,
    grad: Tensor,
    /// At most two.
    state: &'o [Tensor],
    weight_decay: f32,
    lr_multiplier: f32,
}

impl Tensors<'_> {
    fn parameter(self, first_chunk: u32) -> Parameter {
        let is_bf16 = |tensor: Option<Tensor>| u32::from(tensor.is_some_and(|tensor| tensor.dtype == DType::Bf16));
        let address = |tensor: Option<Tensor>| tensor.map_or(0, |tensor| tensor.address);
        // Four elements at a time: 16 bytes of f32, 8 of bf16.
        let aligned = |tensor: &Tensor| tensor.address.is_multiple_of(4 * tensor.dtype.size() as u64);
        let all = [self.master, self.grad];
        let vector = all.iter().chain(&self.compute).chain(self.state).all(aligned);
        let [first, second] = [0, 1].map(|index| self.state.get(index).copied());
        Parameter {
            master: self.master.address,
            compute: address(self.compute),
            grad: self.grad.address,
            first: address(first),
            second: address(second),
            elements: self.master.elements() as u64,
            weight_decay: self.weight_decay,
            lr_multiplier: self.lr_multiplier,
            first_chunk,
            compute_is_bf16: is_bf16(self.compute),
            first_is_bf16: is_bf16(first),
            second_is_bf16: is_bf16(second),
            vector: vector.into(),
            has_remainders: (self.master.dtype == DType::U16).into(),
            grad_is_bf16: is_bf16(Some(self.grad)),
            padding: 0,
        }
    }
}

/// Launches a kernel over all tensors.
fn launch<'o>(kernel: &str, tensors: impl Iterator<Item = Tensors<'o>>, args: Args, queue: &Queue<'_>) -> Result<()> {
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

impl KernelOperation for Update {
    const FILES: &'static [KernelFile] = &[kernel_file!("updates/optimizer.cu")];

    /// The kernel has the rule's name.
    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let tensors = self.tensors.iter().map(|each| Tensors {
            master: each.master,
            compute: each.compute,
            grad: each.grad,
            state: &each.state,
            weight_decay: each.weight_decay,
            lr_multiplier: each.lr_multiplier,
        });
        let [beta1, beta2, eps] = self.rule.constants();
        let args = Args {
            control: self.control.address,
            status: self.status.address,
            beta1,
            beta2,
            eps,
            ..bytemuck::Zeroable::zeroed()
        };
        launch(self.rule.name(), tensors, args, queue)
    }
}

impl KernelOperation for NesterovMomentum {
    const FILES: &'static [KernelFile] = &[kernel_file!("updates/optimizer.cu")];

    /// The kernel has no master weights, only the gradient that it rewrites.
    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let tensors = self.tensors.iter().map(|each| Tensors {
            master: each.grad,
            compute: None,
            grad: each.grad,
            state: std::slice::from_ref(&each.momentum),
            weight_decay: 0.0,
            lr_multiplier: 0.0,
        });
        let args = Args { status: self.status.address, beta1: self.beta, ..bytemuck::Zeroable::zeroed() };
        launch("nesterov_momentum", tensors, args, queue)
    }
}

impl KernelOperation for DecayedStep {
    const FILES: &'static [KernelFile] = &[kernel_file!("updates/optimizer.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let tensors = self.tensors.iter().map(|each| Tensors {
            master: each.master,
            compute: each.compute,
            grad: each.direction,
            state: &[],
            weight_decay: each.weight_decay,
            lr_multiplier: each.lr_multiplier,
        });
        let args = Args { control: self.control.address, status: self.status.address, ..bytemuck::Zeroable::zeroed() };
        launch("decayed_step", tensors, args, queue)
    }
}
