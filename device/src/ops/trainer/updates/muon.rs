//! Muon's operations beside matrix products: momentum, blocks of matrices, a polynomial of a matrix, and the update.

mod host;

use std::sync::Arc;

use super::parameters::{Args, Tensors, launch};
use super::update::check_parameter;
use crate::cuda::{Arg, KernelFile, KernelOperation, LoadWidth, Queue, args, kernel_file, over_packs, over_rows};
use crate::ops::{Accesses, HasTensors, Operation, ensure, ensure_float, ensure_values, tensors};
use crate::{DType, Result, Tensor};

/// A gradient and its momentum, f32, of the same number of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MomentumTensors {
    /// `main_grad`; becomes the direction.
    pub grad: Tensor,
    /// The moving average of gradients, updated.
    pub momentum: Tensor,
}

impl HasTensors for MomentumTensors {
    tensors! { grad, momentum }
}

/// Nesterov momentum as `torch.optim.Muon` computes it, with `g` the clipped gradient: `m = beta * m + (1 - beta) * g`, then
/// `grad = beta * m + (1 - beta) * g`. Writes nothing if `status.applies` is 0.
#[derive(Clone, Debug, PartialEq)]
pub struct NesterovMomentum {
    /// All tensors of this rank.
    pub tensors: Arc<[MomentumTensors]>,
    /// Decay of the average.
    pub beta: f32,
    /// u8, a [`crate::ops::Status`].
    pub status: Tensor,
}

impl Operation for NesterovMomentum {
    const NAME: &'static str = "nesterov_momentum";

    fn check(&self) -> Result<()> {
        for each in self.tensors.iter() {
            check_parameter(Self::NAME, &each.grad, ("momentum", &each.momentum), None)?;
        }
        Ok(())
    }

    fn follows_status(&self) -> Option<Tensor> {
        Some(self.status)
    }

    tensors! { update tensors; read status }
}

/// The first element of a part of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corner {
    /// `(rows, columns)` of the whole matrix, f32 or bf16.
    pub matrix: Tensor,
    /// The block's row.
    pub row: usize,
    /// The block's column.
    pub column: usize,
}

impl HasTensors for Corner {
    tensors! { matrix }
}

impl Corner {
    /// The corner of the whole matrix.
    pub fn first(matrix: Tensor) -> Corner {
        Corner { matrix, row: 0, column: 0 }
    }

    /// The corner's address, and the width of its matrix in vectors of so many values, as kernels take them.
    pub(crate) fn args(&self, values: usize) -> [Arg; 2] {
        let Corner { matrix, row, column } = *self;
        let first = row * matrix.shape.last() + column;
        let address = matrix.address + (first * matrix.dtype.size()) as u64;
        [Arg::Pointer(address), Arg::U64((matrix.shape.last() / values) as u64)]
    }
}

/// `to = from * factor / max(norm, 1e-7)`, for parts of `(rows, columns)`; the rest of `to`'s matrix keeps its values. `norm`
/// is the root of `square_sum`, or without one there is no division.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaleBlock {
    /// Read from here.
    pub from: Corner,
    /// Written from here.
    pub to: Corner,
    /// Rows of the part.
    pub rows: usize,
    /// Columns of the part.
    pub columns: usize,
    /// A constant; part of the graph.
    pub factor: f32,
    /// `(1)`, f32.
    pub square_sum: Option<Tensor>,
}

impl Operation for ScaleBlock {
    const NAME: &'static str = "scale_block";

    fn check(&self) -> Result<()> {
        for (name, Corner { matrix, row, column }) in [("from", self.from), ("to", self.to)] {
            ensure_float(Self::NAME, &[(name, matrix)])?;
            let fits = row + self.rows <= matrix.shape.rows() && column + self.columns <= matrix.shape.last();
            ensure(Self::NAME, fits, || {
                let (rows, columns) = (self.rows, self.columns);
                format!("`{name}` is {:?}, and has no ({rows}, {columns}) at ({row}, {column})", matrix.shape)
            })?;
        }
        let Some(square_sum) = self.square_sum else { return Ok(()) };
        ensure_values(Self::NAME, "square_sum", &square_sum, DType::F32, 1)
    }

    fn accesses(&self) -> Accesses {
        let (from, to) = (self.from.matrix, self.to.matrix);
        let is_part = self.rows * self.columns < to.elements();
        Accesses::new([from], [to]).reads(is_part.then_some(to)).reads(self.square_sum)
    }

    tensors! { from, to, square_sum }
}

/// `output = a * identity + b * x + c * x^2`, for a square matrix `x`.
#[derive(Clone, Debug, PartialEq)]
pub struct MatrixPolynomial {
    /// `(n, n)`, f32 or bf16.
    pub x: Tensor,
    /// `x @ x`, of the same shape and type.
    pub square: Tensor,
    /// `a`, `b`, `c`.
    pub coefficients: [f32; 3],
    /// Of the same shape and type.
    pub output: Tensor,
}

impl Operation for MatrixPolynomial {
    const NAME: &'static str = "matrix_polynomial";

    fn check(&self) -> Result<()> {
        let n = self.x.shape.last();
        ensure_float(Self::NAME, &[("x", self.x)])?;
        for (name, tensor) in [("x", self.x), ("square", self.square), ("output", self.output)] {
            ensure_values(Self::NAME, name, &tensor, self.x.dtype, n * n)?;
        }
        Ok(())
    }

    tensors! { read x, square; write output }
}

/// One parameter as its update sees it; all tensors have the same number of elements.
#[derive(Clone, Debug, PartialEq)]
pub struct DecayedTensors {
    /// f32 master weights, updated.
    pub master: Tensor,
    /// The weights layers compute with; absent if they are the same memory as `master`.
    pub compute: Option<Tensor>,
    /// f32: the direction of the update, with its length.
    pub direction: Tensor,
    /// Decoupled weight decay of this parameter.
    pub weight_decay: f32,
    /// The factor of the learning rate for this parameter: a constant, part of the graph.
    pub lr_multiplier: f32,
}

impl HasTensors for DecayedTensors {
    tensors! { master, compute, direction }
}

/// `w = w * (1 - lr * decay) - lr * direction`, nothing if `status.applies` is 0. `lr` is the control block's learning rate times
/// the parameter's multiplier.
#[derive(Clone, Debug, PartialEq)]
pub struct DecayedStep {
    /// All parameters of this rank.
    pub tensors: Arc<[DecayedTensors]>,
    /// u8, a [`crate::ops::Control`].
    pub control: Tensor,
    /// u8, a [`crate::ops::Status`].
    pub status: Tensor,
}

impl Operation for DecayedStep {
    const NAME: &'static str = "decayed_step";

    fn check(&self) -> Result<()> {
        for each in self.tensors.iter() {
            check_parameter(Self::NAME, &each.master, ("direction", &each.direction), each.compute.as_ref())?;
        }
        Ok(())
    }

    fn accesses(&self) -> Accesses {
        let mut all = Accesses::new([self.control, self.status], []);
        for each in self.tensors.iter() {
            all.reads.extend([each.master, each.direction]);
            all.writes.extend([each.master]);
            all.writes.extend(each.compute);
        }
        all
    }

    fn follows_status(&self) -> Option<Tensor> {
        Some(self.status)
    }

    tensors! { tensors, control, status }
}

impl KernelOperation for ScaleBlock {
    const FILES: &'static [KernelFile] = &[kernel_file!("updates/muon.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        if let Some(values) = values_of_vectors(self) {
            let columns = self.columns / values;
            let ([from, from_width], [to, to_width]) = (self.from.args(values), self.to.args(values));
            let arguments = args! { from, from_width, to, to_width; U32: self.rows, columns };
            return queue.launch("copy_block_words", over_rows(self.rows, columns, queue), arguments);
        }
        let kernel = format!("scale_block_{}_{}", self.from.matrix.dtype, self.to.matrix.dtype);
        let ([from, from_width], [to, to_width]) = (self.from.args(1), self.to.args(1));
        let [rows, columns] = [self.rows, self.columns].map(|size| Arg::U32(size as u32));
        let arguments = args! { from, from_width, to, to_width, rows, columns, Arg::F32(self.factor), self.square_sum };
        queue.launch(&kernel, over_rows(self.rows, self.columns, queue), arguments)
    }
}

/// The values of a vector, if the block is copied as it is and its rows are whole vectors.
fn values_of_vectors(op: &ScaleBlock) -> Option<usize> {
    let (from, to) = (op.from.matrix, op.to.matrix);
    let is_copy = op.factor == 1.0 && op.square_sum.is_none() && from.dtype == to.dtype;
    let values = LoadWidth::Vector.values(from.dtype);
    let sizes = [from.shape.last(), to.shape.last(), op.from.column, op.to.column, op.columns];
    let aligned = [from, to].iter().all(|matrix| matrix.address.is_multiple_of(16));
    (is_copy && aligned && sizes.iter().all(|size| size.is_multiple_of(values))).then_some(values)
}

impl KernelOperation for MatrixPolynomial {
    const FILES: &'static [KernelFile] = &[kernel_file!("updates/muon.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (n, dtype, [a, b, c]) = (self.x.shape.last(), self.x.dtype, self.coefficients);
        let load = LoadWidth::of(n, [self.x, self.square, self.output]);
        let arguments = args! { self.x, self.square, self.output; U64: n; F32: a, b, c };
        queue.launch(&load.kernel("matrix_polynomial", dtype), over_packs(n * n / load.values(dtype), queue), arguments)
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
