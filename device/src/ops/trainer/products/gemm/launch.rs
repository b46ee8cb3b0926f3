//! Matrix products, by cuBLASLt.

use crate::cuda::{CudaDevice, CudaOperation, KernelFile, Queue, accept_fp8, accept_on_hopper, kernel_file};
use crate::ops::Gemm;
use crate::submitted::Submitted;
use crate::{Operation, Result};

impl CudaOperation for Gemm {
    /// Epilogues, copies of factors, and the values that products are timed with.
    fn files() -> &'static [KernelFile] {
        &[
            kernel_file!("products/gemm_epilogue.cu"),
            kernel_file!("products/transpose_f32.cu"),
            kernel_file!("random.cu"),
        ]
    }

    fn launch(&self, cuda: &CudaDevice, queue: &Queue<'_>) -> Result<()> {
        cuda.cublaslt.run(self, queue)
    }

    fn scratch_bytes(&self, cuda: &CudaDevice) -> usize {
        cuda.cublaslt.scratch_bytes(self)
    }

    fn accept(&self, _submitted: Submitted, cuda: &CudaDevice) -> Result<()> {
        let Some(scales) = &self.fp8 else { return Ok(()) };
        accept_fp8(Self::NAME, &cuda.gpu.properties)?;
        match scales.a.is_by_block() {
            // The library has them for these GPUs alone.
            true => {
                accept_on_hopper(Self::NAME, &cuda.gpu.properties, "scales by block", "another 8-bit recipe, or bf16")
            }
            false => Ok(()),
        }
    }

    fn prepare(&self, cuda: &CudaDevice) -> Result<()> {
        cuda.cublaslt.prepare(self, &cuda.kernels)
    }
}
