//! Operations with a body.

use super::custom;
use crate::cuda::graph::{WHEN_FILE, not_loaded};
use crate::cuda::{CudaDevice, CudaOperation, KernelFile, Queue};
use crate::ops::When;
use crate::submitted::Submitted;
use crate::{Op, Result};

impl CudaOperation for When {
    fn files() -> &'static [KernelFile] {
        &[WHEN_FILE]
    }

    fn launch(&self, _cuda: &CudaDevice, _queue: &Queue<'_>) -> Result<()> {
        unreachable!("streams capture it")
    }

    fn scratch_bytes(&self, cuda: &CudaDevice) -> usize {
        self.body.iter().map(|op| op.on_cuda().scratch_bytes(cuda)).max().unwrap_or(0)
    }

    /// Unless the stream captures, all that the body needs is loaded.
    fn accept(&self, submitted: Submitted, cuda: &CudaDevice) -> Result<()> {
        match (submitted, cuda.condition.get()) {
            (Submitted::ToRun, _) => cuda.load_condition()?,
            (Submitted::ToCapture, Some(_)) => {}
            (Submitted::ToCapture, None) => return Err(not_loaded()),
        }
        self.body.iter().try_for_each(|op| {
            if let Op::Custom(op) = op {
                custom::accept_in_body(op, cuda)?;
                if submitted == Submitted::ToRun {
                    op.prepare(cuda)?;
                }
            }
            op.on_cuda().accept(submitted, cuda)
        })
    }

    fn prepare(&self, cuda: &CudaDevice) -> Result<()> {
        self.body.iter().try_for_each(|op| op.on_cuda().prepare(cuda))
    }
}
