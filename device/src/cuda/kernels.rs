//! Our own kernels: loaded by name, launched with plain arguments.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{CStr, c_void};

use cudarc::driver::{result, sys};

use super::compile::{SOURCES, load_or_compile};
use super::driver::{Driver, GpuProperties, RawStream};
use crate::{Error, Result, Tensor};

/// All kernels of [`SOURCES`], loaded on the GPU.
pub(crate) struct Kernels {
    gpu: GpuProperties,
    modules: Vec<sys::CUmodule>,
    functions: HashMap<String, sys::CUfunction>,
}

/// An argument of a kernel, as it is declared there.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arg {
    /// A pointer to device memory; 0 is the null pointer.
    Pointer(u64),
    /// `unsigned`.
    U32(u32),
    /// `long long` or `unsigned long long`.
    U64(u64),
    /// `float`.
    F32(f32),
}

impl From<Tensor> for Arg {
    fn from(tensor: Tensor) -> Arg {
        Arg::Pointer(tensor.address)
    }
}

impl From<Option<Tensor>> for Arg {
    fn from(tensor: Option<Tensor>) -> Arg {
        Arg::Pointer(tensor.map_or(0, |tensor| tensor.address))
    }
}

/// Blocks, threads a block, and bytes of dynamic shared memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub(crate) blocks: (u32, u32, u32),
    pub(crate) threads: u32,
    pub(crate) shared: u32,
}

impl Grid {
    /// A row of blocks without dynamic shared memory.
    pub(crate) fn line(blocks: usize, threads: u32) -> Grid {
        Grid { blocks: (blocks as u32, 1, 1), threads, shared: 0 }
    }
}

impl Kernels {
    /// Compiles, or takes from the cache, and loads every source.
    ///
    /// # Errors
    /// A compiler's or the driver's.
    pub(crate) fn load(gpu: &GpuProperties) -> Result<Kernels> {
        let mut kernels = Kernels { gpu: gpu.clone(), modules: Vec::new(), functions: HashMap::new() };
        for (name, source) in SOURCES {
            let module = load_or_compile(name, source, &gpu.architecture(), |cubin| {
                // SAFETY: whole, as it came from the compiler; unloaded when dropped.
                unsafe { result::module::load_data(cubin.as_ptr().cast()) }.driver("cuModuleLoadData")
            })?;
            kernels.modules.push(module);
            for (kernel, function) in functions(module)? {
                kernels.functions.insert(kernel, function);
            }
        }
        Ok(kernels)
    }

    /// The GPU they are loaded on.
    pub(crate) fn gpu(&self) -> &GpuProperties {
        &self.gpu
    }

    /// Launches a kernel on a stream, or records it while the stream captures.
    ///
    /// The arguments must be those the kernel declares, in order: this is what the callers in `cuda/ops` are for.
    ///
    /// # Errors
    /// An unknown name; the driver's refusal of the grid.
    pub(crate) fn launch(&self, stream: &RawStream, kernel: &str, grid: Grid, arguments: &[Arg]) -> Result<()> {
        let function = self.function(kernel)?;
        let mut pointers: Vec<*mut c_void> = arguments
            .iter()
            .map(|argument| match argument {
                Arg::Pointer(value) | Arg::U64(value) => std::ptr::from_ref(value) as *mut c_void,
                Arg::U32(value) => std::ptr::from_ref(value) as *mut c_void,
                Arg::F32(value) => std::ptr::from_ref(value) as *mut c_void,
            })
            .collect();
        self.launch_raw(stream, kernel, function, grid, &mut pointers)
    }

    /// As [`Kernels::launch`] for a kernel of one argument, a struct passed by value.
    ///
    /// # Errors
    /// As [`Kernels::launch`].
    pub(crate) fn launch_block<T: bytemuck::Pod>(
        &self,
        stream: &RawStream,
        kernel: &str,
        grid: Grid,
        block: &T,
    ) -> Result<()> {
        let function = self.function(kernel)?;
        self.launch_raw(stream, kernel, function, grid, &mut [std::ptr::from_ref(block) as *mut c_void])
    }

    /// A kernel by its name.
    ///
    /// # Errors
    /// An unknown name.
    pub(crate) fn function(&self, kernel: &str) -> Result<sys::CUfunction> {
        let function = self.functions.get(kernel).copied();
        function.ok_or_else(|| Error::operation("cuda", format!("no kernel `{kernel}`")))
    }

    fn launch_raw(
        &self,
        stream: &RawStream,
        kernel: &str,
        function: sys::CUfunction,
        grid: Grid,
        pointers: &mut [*mut c_void],
    ) -> Result<()> {
        if grid.blocks.0 == 0 || grid.blocks.1 == 0 || grid.blocks.2 == 0 {
            return Ok(());
        }
        let block = (grid.threads, 1, 1);
        // SAFETY: the function is loaded; the arguments are copied during the call; the memory they point to was checked
        // to be alive when the operation was submitted.
        unsafe {
            // With what the kernel declares itself, more than 48 KiB in all must be asked for.
            if grid.shared > 32 * 1024 {
                let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                result::function::set_function_attribute(function, attribute, grid.shared as i32)
                    .driver("cuFuncSetAttribute")?;
            }
            result::launch_kernel(function, grid.blocks, block, grid.shared, stream.handle(), pointers)
                .driver("cuLaunchKernel")
                .map_err(|error| Error::operation("cuda", format!("kernel `{kernel}`, {grid:?}: {error}")))
        }
    }
}

/// The kernels of a module, ready to launch: one that is loaded at its first launch could not be captured.
fn functions(module: sys::CUmodule) -> Result<Vec<(String, sys::CUfunction)>> {
    let mut count = 0;
    // SAFETY: the module is loaded; the functions and their names live as long; the buffer is as large as the count.
    unsafe {
        sys::cuModuleGetFunctionCount(&mut count, module).result().driver("cuModuleGetFunctionCount")?;
        let mut functions = vec![std::ptr::null_mut(); count as usize];
        sys::cuModuleEnumerateFunctions(functions.as_mut_ptr(), count, module)
            .result()
            .driver("cuModuleEnumerateFunctions")?;
        let named = |function| {
            let mut name = std::ptr::null();
            sys::cuFuncLoad(function).result().driver("cuFuncLoad")?;
            sys::cuFuncGetName(&mut name, function).result().driver("cuFuncGetName")?;
            Ok((CStr::from_ptr(name).to_string_lossy().into_owned(), function))
        };
        functions.into_iter().map(named).collect()
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        for module in &self.modules {
            // SAFETY: loaded in `load`; nothing launches from it any more. A failure has no cure here.
            let _ = unsafe { result::module::unload(*module) };
        }
    }
}
