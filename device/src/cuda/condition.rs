//! The kernel that sets the condition of a conditional node.

#![allow(unsafe_code)]

use std::ptr::null_mut;

use cudarc::driver::sys;

use super::compile::WHEN_SOURCE;
use super::driver::Driver;
use super::module::{Function, Module, not_loaded_in_capture};
use crate::gpu::GpuProperties;
use crate::{Error, Result};

const NAME: &str = "set_condition";

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
    pub(super) fn load(gpu: &GpuProperties) -> Result<SetCondition> {
        let (file, source) = WHEN_SOURCE;
        let module = Module::load(file, source, gpu)?;
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
        let kernel = sys::CUDA_KERNEL_NODE_PARAMS {
            func: self.function,
            gridDimX: 1,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 1,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            kernelParams: arguments.as_mut_ptr(),
            extra: null_mut(),
            kern: null_mut(),
            ctx: null_mut(),
        };
        let mut node = null_mut();
        // SAFETY: the graph and its nodes are the caller's; the function is loaded; the arguments are copied during the
        // call. Zeros are valid for the attribute.
        unsafe {
            sys::cuGraphAddKernelNode_v2(&mut node, graph, before.as_ptr(), before.len(), &kernel)
                .result()
                .driver("cuGraphAddKernelNode")?;
            let mut value: sys::CUkernelNodeAttrValue = std::mem::zeroed();
            value.priority = priority;
            let id = sys::CUkernelNodeAttrID::CU_LAUNCH_ATTRIBUTE_PRIORITY;
            sys::cuGraphKernelNodeSetAttribute(node, id, &value).result().driver("cuGraphKernelNodeSetAttribute")?;
        }
        Ok(node)
    }
}

/// The refusal of a `when` in a capture before its kernel is loaded.
pub(super) fn not_loaded() -> Error {
    not_loaded_in_capture("when", NAME)
}
