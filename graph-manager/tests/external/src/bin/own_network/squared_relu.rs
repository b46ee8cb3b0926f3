//! The network's activation, `relu(x)^2` (So et al., 2021), an operation that `device` does not have.

use graph_manager::device::cuda::{CudaCode, CudaKernel, CudaLaunch, CudaWork, GpuProperties};
use graph_manager::device::ops::{Accesses, CustomOp};
use graph_manager::device::{DType, Error, HostTensors, Result, Tensor};

const SOURCE: CudaCode = CudaCode::Source(include_str!("squared_relu.cu"));
const CHUNK: usize = 4096;

/// `output = relu(input)^2`, f32.
#[derive(Clone, Debug)]
pub struct SquaredRelu {
    /// Any shape.
    pub input: Tensor,
    /// The same shape.
    pub output: Tensor,
}

/// `grad_input = 2 relu(input) grad_output`, f32.
#[derive(Clone, Debug)]
pub struct SquaredReluBackward {
    /// The forward's input.
    pub input: Tensor,
    /// The same shape.
    pub grad_output: Tensor,
    /// The same shape.
    pub grad_input: Tensor,
}

fn check(name: &'static str, input: Tensor, others: &[Tensor]) -> Result<()> {
    let fits = |other: &Tensor| other.shape == input.shape && other.dtype == DType::F32;
    if fits(&input) && others.iter().all(fits) {
        return Ok(());
    }
    Err(Error::operation(name, "its tensors are f32 and of one shape"))
}

fn launch(function: &'static str, tensors: &[Tensor]) -> CudaWork<'static> {
    let count = tensors[0].elements();
    let arguments = tensors.iter().map(|tensor| (*tensor).into()).chain([(count as u64).into()]).collect();
    let kernel = CudaKernel { file: "squared_relu.cu", code: SOURCE, function };
    CudaLaunch { kernel, blocks: (count.div_ceil(256) as u32, 1, 1), threads: (256, 1, 1), shared_bytes: 0, arguments }
        .into()
}

impl CustomOp for SquaredRelu {
    fn name(&self) -> &'static str {
        "squared_relu"
    }

    fn check(&self) -> Result<()> {
        check(self.name(), self.input, &[self.output])
    }

    fn accesses(&self) -> Accesses {
        Accesses::new([self.input], [self.output])
    }

    fn run_host(&self, tensors: &mut HostTensors<'_>) -> Result<()> {
        let (input, output) = (tensors.read::<f32>(&self.input)?, tensors.write::<f32>(&self.output)?);
        tensors.pool().for_each_chunk(output, CHUNK, |chunk, output| {
            output.iter_mut().zip(&input[chunk * CHUNK..]).for_each(|(y, x)| *y = x.max(0.0) * x.max(0.0));
        });
        Ok(())
    }

    fn cuda_work(&self, _: &GpuProperties) -> Option<CudaWork<'_>> {
        Some(launch("squared_relu", &[self.input, self.output]))
    }
}

impl CustomOp for SquaredReluBackward {
    fn name(&self) -> &'static str {
        "squared_relu_backward"
    }

    fn check(&self) -> Result<()> {
        check(self.name(), self.input, &[self.grad_output, self.grad_input])
    }

    fn accesses(&self) -> Accesses {
        Accesses::new([self.input, self.grad_output], [self.grad_input])
    }

    fn run_host(&self, tensors: &mut HostTensors<'_>) -> Result<()> {
        let input = tensors.read::<f32>(&self.input)?;
        let grad_output = tensors.read::<f32>(&self.grad_output)?;
        let grad_input = tensors.write::<f32>(&self.grad_input)?;
        tensors.pool().for_each_chunk(grad_input, CHUNK, |chunk, grad_input| {
            let read = input[chunk * CHUNK..].iter().zip(&grad_output[chunk * CHUNK..]);
            grad_input.iter_mut().zip(read).for_each(|(grad, (x, grad_y))| *grad = 2.0 * x.max(0.0) * grad_y);
        });
        Ok(())
    }

    fn cuda_work(&self, _: &GpuProperties) -> Option<CudaWork<'_>> {
        Some(launch("squared_relu_backward", &[self.input, self.grad_output, self.grad_input]))
    }
}
