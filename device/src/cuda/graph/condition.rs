//! The kernel that sets the condition of a conditional node.

#![allow(unsafe_code)]

use cudarc::driver::sys;

use super::raw::add_kernel;
use crate::cuda::driver::Driver;
use crate::cuda::kernels::{Function, Module, not_loaded_in_capture};
use crate::cuda::{KernelFile, kernel_file};
use crate::gpu_types::GpuProperties;
use crate::{Error, Result};

const NAME: &str = "set_condition";

/// The file of the kernel.
pub(crate) const WHEN_FILE: KernelFile = kernel_file!(When, "when.cu");

/// The kernel that sets the condition of a node.
pub(crate) struct SetCondition {
    function: Function,
    /// Keeps the kernel loaded.
    _module: Module,
}

impl SetCondition {
    /// Compiles the kernel, or takes it from the cache, and loads it.
    ///
    /// # Errors
    /// The compiler's or the driver's.
    pub(crate) fn load(gpu: &GpuProperties) -> Result<SetCondition> {
        let module = Module::load(WHEN_FILE.name, WHEN_FILE.source, gpu)?;
        Ok(SetCondition { function: module.function(c"set_condition")?, _module: module })
    }

    /// Adds the kernel to a graph that is not instantiated, after the nodes `before`: the conditional node of `handle`
    /// runs its body if the flag, in device memory, is not 0. Returns the kernel's node.
    pub(super) fn add(
        &self,
        graph: sys::CUgraph,
        before: &[sys::CUgraphNode],
        priority: i32,
        (mut handle, mut flag): (u64, u64),
    ) -> Result<sys::CUgraphNode> {
        let mut arguments = [(&raw mut handle).cast(), (&raw mut flag).cast()];
        // SAFETY: the graph and its nodes are the caller's, and the kernel is loaded as long as the device. Zeros are valid for
        // the attribute.
        unsafe {
            let node = add_kernel(graph, before, self.function, (1, 1), &mut arguments)?;
            let mut value: sys::CUkernelNodeAttrValue = std::mem::zeroed();
            value.priority = priority;
            let id = sys::CUkernelNodeAttrID::CU_LAUNCH_ATTRIBUTE_PRIORITY;
            sys::cuGraphKernelNodeSetAttribute(node, id, &value).result().driver("cuGraphKernelNodeSetAttribute")?;
            Ok(node)
        }
    }
}

/// The refusal of a `when` in a capture before its kernel is loaded.
pub(crate) fn not_loaded() -> Error {
    not_loaded_in_capture("when", NAME)
}
