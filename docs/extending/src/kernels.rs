//! What the operations of this program share: their CUDA kernels, and checks of their tensors.

use device::cuda::{CudaCode, CudaKernel, CudaLaunch, CudaWork, KernelArgument};
use device::{DType, Error, HostTensors, Result, Tensor, bf16};

const THREADS: usize = 256;

/// The launch of a kernel of `kernels.cu` with a thread for each of `count` elements.
pub fn launch(function: &'static str, count: usize, arguments: Vec<KernelArgument>) -> CudaWork<'static> {
    let code = CudaCode::Source(include_str!("kernels.cu"));
    let kernel = CudaKernel { file: "extending.cu", code, function };
    let blocks = (count.div_ceil(THREADS) as u32, 1, 1);
    CudaLaunch { kernel, blocks, threads: (THREADS as u32, 1, 1), shared_bytes: 0, arguments }.into()
}

/// The kernel for tensors of that type, of the two of a name.
pub fn of_type(dtype: DType, names: [&'static str; 2]) -> &'static str {
    names[usize::from(dtype == DType::Bf16)]
}

/// The values of a tensor on the host, f32 or bf16, in f32.
pub fn read(tensors: &mut HostTensors<'_>, tensor: &Tensor) -> Result<Vec<f32>> {
    match tensor.dtype {
        DType::Bf16 => Ok(tensors.read::<bf16>(tensor)?.iter().map(|value| value.to_f32()).collect()),
        _ => tensors.read::<f32>(tensor).map(<[f32]>::to_vec),
    }
}

/// Writes values to a tensor on the host, rounded to its type.
pub fn write(tensors: &mut HostTensors<'_>, tensor: &Tensor, values: impl Iterator<Item = f32>) -> Result<()> {
    match tensor.dtype {
        DType::Bf16 => {
            tensors.write(tensor)?.iter_mut().zip(values).for_each(|(to, value)| *to = bf16::from_f32(value))
        }
        _ => tensors.write(tensor)?.iter_mut().zip(values).for_each(|(to, value)| *to = value),
    }
    Ok(())
}

/// Fails unless a tensor is f32.
pub fn check_f32(op: &'static str, tensor: &Tensor) -> Result<()> {
    if tensor.dtype == DType::F32 { Ok(()) } else { Err(Error::operation(op, "its tensor is f32")) }
}

/// Fails unless tensors have one shape and one type, f32 or bf16.
pub fn check_alike(op: &'static str, tensors: &[Tensor]) -> Result<()> {
    let first = tensors[0];
    let alike = tensors.iter().all(|of| of.shape == first.shape && of.dtype == first.dtype);
    match alike && [DType::F32, DType::Bf16].contains(&first.dtype) {
        true => Ok(()),
        false => Err(Error::operation(op, "its tensors have one shape and one type, f32 or bf16")),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn kernels_compile_for_an_h100() {
        let compiled = device::cuda::compile("extending.cu", include_str!("kernels.cu"), "sm_90a");
        assert!(compiled.is_ok(), "{}", compiled.err().map_or(String::new(), |error| error.to_string()));
    }
}
