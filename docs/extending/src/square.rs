//! The operations of squared ReLU, on the host and on a GPU.

use device::cuda::{CudaWork, GpuProperties};
use device::ops::{Accesses, Control, CustomOp};
use device::{HostTensors, Result, Tensor};

use crate::kernels::{self, of_type};

/// `output = max(pre, 0)^2`.
#[derive(Debug)]
pub struct Square {
    /// Any shape, f32 or bf16.
    pub pre: Tensor,
    /// The same, written.
    pub output: Tensor,
}

impl CustomOp for Square {
    fn name(&self) -> &'static str {
        "square"
    }

    fn check(&self) -> Result<()> {
        kernels::check_alike("square", &[self.pre, self.output])
    }

    fn accesses(&self) -> Accesses {
        Accesses::new([self.pre], [self.output])
    }

    fn run_host(&self, tensors: &mut HostTensors<'_>) -> Result<()> {
        let pre = kernels::read(tensors, &self.pre)?;
        kernels::write(tensors, &self.output, pre.iter().map(|pre| pre.max(0.0).powi(2)))
    }

    fn cuda_work(&self, _: &GpuProperties) -> Option<CudaWork<'_>> {
        let count = self.pre.elements();
        let name = of_type(self.pre.dtype, ["square_f32", "square_bf16"]);
        Some(kernels::launch(name, count, vec![self.pre.into(), self.output.into(), (count as u64).into()]))
    }
}

/// `grad_pre = 2 * max(pre, 0) * (grad + factor * grad_scale * max(pre, 0)^2)`.
#[derive(Debug)]
pub struct SquareBackward {
    /// Any shape, f32 or bf16.
    pub pre: Tensor,
    /// The same.
    pub grad: Tensor,
    /// The same, written.
    pub grad_pre: Tensor,
    /// u8, a `Control`.
    pub control: Tensor,
    /// Of the term.
    pub factor: f32,
}

impl CustomOp for SquareBackward {
    fn name(&self) -> &'static str {
        "square_backward"
    }

    fn check(&self) -> Result<()> {
        kernels::check_alike("square_backward", &[self.pre, self.grad, self.grad_pre])
    }

    fn accesses(&self) -> Accesses {
        Accesses::new([self.pre, self.grad, self.control], [self.grad_pre])
    }

    fn run_host(&self, tensors: &mut HostTensors<'_>) -> Result<()> {
        let control: Control = bytemuck::pod_read_unaligned(tensors.read::<u8>(&self.control)?);
        let (pre, grad) = (kernels::read(tensors, &self.pre)?, kernels::read(tensors, &self.grad)?);
        let scale = self.factor * control.grad_scale;
        let gradient = |(pre, grad): (&f32, &f32)| 2.0 * pre.max(0.0) * (grad + scale * pre.max(0.0).powi(2));
        kernels::write(tensors, &self.grad_pre, pre.iter().zip(&grad).map(gradient))
    }

    fn cuda_work(&self, _: &GpuProperties) -> Option<CudaWork<'_>> {
        let count = self.pre.elements();
        let name = of_type(self.pre.dtype, ["square_backward_f32", "square_backward_bf16"]);
        let (pre, grad, grad_pre) = (self.pre.into(), self.grad.into(), self.grad_pre.into());
        let arguments = vec![pre, grad, grad_pre, self.control.into(), self.factor.into(), (count as u64).into()];
        Some(kernels::launch(name, count, arguments))
    }
}

/// `values = factor / 2 * sum(max(pre, 0)^4)`, over the last axis.
#[derive(Debug)]
pub struct Activity {
    /// `(..., ffn)`, f32 or bf16.
    pub pre: Tensor,
    /// `(rows)`, f32, written.
    pub values: Tensor,
    /// Of the term.
    pub factor: f32,
}

impl CustomOp for Activity {
    fn name(&self) -> &'static str {
        "activity"
    }

    fn check(&self) -> Result<()> {
        kernels::check_alike("activity", &[self.pre])?;
        kernels::check_f32("activity", &self.values)
    }

    fn accesses(&self) -> Accesses {
        Accesses::new([self.pre], [self.values])
    }

    fn run_host(&self, tensors: &mut HostTensors<'_>) -> Result<()> {
        let pre = kernels::read(tensors, &self.pre)?;
        let term = |row: &[f32]| 0.5 * self.factor * row.iter().map(|pre| pre.max(0.0).powi(4)).sum::<f32>();
        kernels::write(tensors, &self.values, pre.chunks(self.pre.shape.last()).map(term))
    }

    fn cuda_work(&self, _: &GpuProperties) -> Option<CudaWork<'_>> {
        let (rows, width) = (self.values.elements(), self.pre.shape.last());
        let name = of_type(self.pre.dtype, ["activity_f32", "activity_bf16"]);
        let sizes = [rows as u64, width as u64].map(Into::into);
        let arguments = [self.pre.into(), self.values.into(), self.factor.into()].into_iter().chain(sizes);
        Some(kernels::launch(name, rows, arguments.collect()))
    }
}

#[cfg(test)]
mod tests {
    use device::{DType, Device, HostOptions, Shape};

    use super::*;

    #[test]
    fn gradients_are_those_of_differences() {
        const ROWS: usize = 3;
        const WIDTH: usize = 5;
        let device = Device::host(HostOptions { check: true, ..HostOptions::default() }).unwrap();
        let stream = device.stream("compute");
        let mut areas = Vec::new();
        let mut tensor =
            |name, sizes: &[usize]| device.allocate_tensor(&mut areas, name, Shape::new(sizes), DType::F32).unwrap();
        let [pre, output, grad, grad_pre] =
            ["pre", "output", "grad", "grad_pre"].map(|name| tensor(name, &[ROWS, WIDTH]));
        let values = tensor("values", &[ROWS]);
        let control = device.allocate_tensor(&mut areas, "control", [size_of::<Control>()], DType::U8).unwrap();
        let (factor, grad_scale) = (0.3, 0.25);
        device.upload(&control, bytemuck::bytes_of(&Control { grad_scale, ..Control::default() })).unwrap();
        let at: Vec<f32> = (0..ROWS * WIDTH).map(|i| 0.3 + (i as f32 * 1.7).sin()).collect();
        let grads: Vec<f32> = (0..ROWS * WIDTH).map(|i| (i as f32 * 0.9).cos()).collect();
        device.upload(&grad, &grads).unwrap();
        // The gradient of `grads * output + grad_scale * values`, summed.
        let sum = |at: &[f32]| {
            device.upload(&pre, at).unwrap();
            stream.submit(Square { pre, output }).unwrap();
            stream.submit(Activity { pre, values, factor }).unwrap();
            let outputs: Vec<f32> = device.download(&output).unwrap();
            let values: Vec<f32> = device.download(&values).unwrap();
            let of_outputs: f64 = outputs.iter().zip(&grads).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            of_outputs + values.iter().map(|value| f64::from(*value) * f64::from(grad_scale)).sum::<f64>()
        };
        device.upload(&pre, &at).unwrap();
        stream.submit(SquareBackward { pre, grad, grad_pre, control, factor }).unwrap();
        let found: Vec<f32> = device.download(&grad_pre).unwrap();
        for (place, found) in found.iter().enumerate() {
            let moved = |by: f32| {
                let mut at = at.clone();
                at[place] += by;
                sum(&at)
            };
            let expected = (moved(1e-2) - moved(-1e-2)) / 2e-2;
            assert!((f64::from(*found) - expected).abs() < 2e-3, "{place}: {found} beside {expected}");
        }
    }
}
