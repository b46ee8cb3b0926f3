//! Machine code that is loaded on the GPU.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};

use cudarc::driver::{result, sys};

use super::nvrtc::load_or_compile;
use crate::cuda::driver::{Driver, RawStream, is_of_code};
use crate::gpu_types::GpuProperties;
use crate::{Error, Result};

/// The machine code of one source, unloaded when dropped.
pub(crate) struct Module(sys::CUmodule);

/// A kernel of a [`Module`] that lives.
pub(crate) type Function = sys::CUfunction;

/// Blocks, threads of a block, and bytes of dynamic shared memory of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaunchSizes {
    pub(super) blocks: (u32, u32, u32),
    pub(super) threads: (u32, u32, u32),
    pub(super) shared: u32,
    /// Consecutive blocks that share a cluster; 0 for no clusters. At most 8, and a divisor of `blocks.0`.
    pub(super) cluster: u32,
}

/// The refusal of an operation in a capture before its kernel is loaded.
pub(crate) fn not_loaded_in_capture(op: &'static str, kernel: &str) -> Error {
    let rule = "Rule: nothing is compiled or loaded during a capture. Fix: a warm-up step before the capture";
    Error::operation(op, format!("its kernel `{kernel}` is not loaded. {rule}"))
}

impl Module {
    /// Compiles a source, or takes its machine code from the cache, and loads it.
    ///
    /// # Errors
    /// The compiler's or the driver's.
    pub(crate) fn load(file: &str, source: &str, gpu: &GpuProperties) -> Result<Module> {
        load_or_compile(file, source, &gpu.architecture(), |cubin| {
            // SAFETY: whole, as it came from the compiler; unloaded when dropped.
            unsafe { result::module::load_data(cubin.as_ptr().cast()) }.driver("cuModuleLoadData").map(Module)
        })
    }

    /// Loads PTX, which ends with a zero byte, or machine code, as it was compiled elsewhere. `kind` says which.
    ///
    /// # Errors
    /// The driver's, with the log of its compiler, the module and the GPU.
    pub(super) fn load_compiled(file: &str, kind: &str, code: &[u8], gpu: &GpuProperties) -> Result<Module> {
        let (mut module, mut log) = (std::ptr::null_mut(), vec![0_u8; LOG_BYTES]);
        let mut options =
            [sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER, sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        // The driver takes a size in place of a pointer to it.
        let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), std::ptr::without_provenance_mut(LOG_BYTES)];
        // SAFETY: the caller's code is whole: it was checked, and PTX ends with a zero byte; the log has the size that it is said to have;
        // the module is unloaded when dropped.
        let loaded = unsafe {
            sys::cuModuleLoadDataEx(&mut module, code.as_ptr().cast(), 2, options.as_mut_ptr(), values.as_mut_ptr())
        };
        let error = match loaded.result() {
            Ok(()) => return Ok(Module(module)),
            Err(error) => error,
        };
        let log = CStr::from_bytes_until_nul(&log).map_or_else(|_| "".into(), CStr::to_string_lossy);
        if is_of_code(error.0 as u32) {
            return Err(Error::operation("cuda", not_loaded(file, kind, gpu, error.0, log.trim())));
        }
        Err(error).driver("cuModuleLoadDataEx").map_err(|error| {
            let problem = format!("the module {file}, {kind}, was not loaded: {error}");
            Error::operation("cuda", problem)
        })
    }

    /// A kernel of the module, ready to launch.
    pub(crate) fn function(&self, name: &CStr) -> Result<Function> {
        let mut function = std::ptr::null_mut();
        // SAFETY: the module is loaded; the function lives as long.
        unsafe {
            sys::cuModuleGetFunction(&mut function, self.0, name.as_ptr()).result().driver("cuModuleGetFunction")?;
            sys::cuFuncLoad(function).result().driver("cuFuncLoad")?;
        }
        Ok(function)
    }

    /// The module's kernels by name, ready to launch. A kernel that the driver loads at its first launch could not be
    /// captured.
    pub(super) fn functions(&self) -> Result<Vec<(String, Function)>> {
        let mut count = 0;
        // SAFETY: the module is loaded; the functions and their names live as long; the buffer is as large as the
        // count.
        unsafe {
            sys::cuModuleGetFunctionCount(&mut count, self.0).result().driver("cuModuleGetFunctionCount")?;
            let mut functions = vec![std::ptr::null_mut(); count as usize];
            sys::cuModuleEnumerateFunctions(functions.as_mut_ptr(), count, self.0)
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
}

/// Bytes for what the driver's compiler says of PTX.
const LOG_BYTES: usize = 4096;

/// The refusal of a module that was compiled elsewhere.
fn not_loaded(file: &str, kind: &str, gpu: &GpuProperties, error: sys::CUresult, log: &str) -> String {
    let architecture = gpu.architecture();
    let log = if log.is_empty() { String::new() } else { format!(" ({log})") };
    format!(
        "the module {file}, {kind}, does not load on GPU {}, {}, which is {architecture}: {error:?}{log}. Rule: machine code \
         runs on the architecture that it was compiled for, and PTX on its `.target` and newer ones. Fix: compile \
         {file} for {architecture}, or give its source",
        gpu.ordinal, gpu.name
    )
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded in `load`; nothing launches from it any more. A failure has no cure here.
        let _ = unsafe { result::module::unload(self.0) };
    }
}

/// Launches a kernel on a stream, or records it while the stream captures. `arguments` point to the values of the
/// arguments that the kernel declares, in order.
///
/// # Errors
/// The driver's refusal of the sizes.
pub(super) fn launch(
    stream: &RawStream,
    kernel: &str,
    function: Function,
    sizes: LaunchSizes,
    arguments: &mut [*mut c_void],
) -> Result<()> {
    let LaunchSizes { blocks, threads, shared, cluster } = sizes;
    if blocks.0 == 0 || blocks.1 == 0 || blocks.2 == 0 {
        return Ok(());
    }
    // SAFETY: the function is loaded; the arguments are copied during the call; the memory they point to was checked to
    // be alive when the operation was submitted.
    unsafe {
        // Together with the kernel's own declared memory, more than 48 KiB in all must be asked for.
        if shared > 32 * 1024 {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            result::function::set_function_attribute(function, attribute, shared as i32)
                .driver("cuFuncSetAttribute")?;
        }
        let mut value: sys::CUlaunchAttributeValue = std::mem::zeroed();
        value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: cluster, y: 1, z: 1 };
        let id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        let mut attribute = sys::CUlaunchAttribute { id, pad: [0; 4], value };
        let config = sys::CUlaunchConfig {
            gridDimX: blocks.0,
            gridDimY: blocks.1,
            gridDimZ: blocks.2,
            blockDimX: threads.0,
            blockDimY: threads.1,
            blockDimZ: threads.2,
            sharedMemBytes: shared,
            hStream: stream.handle(),
            attrs: &mut attribute,
            // GPUs before compute capability 9.0 have no clusters.
            numAttrs: (cluster > 0).into(),
        };
        sys::cuLaunchKernelEx(&config, function, arguments.as_mut_ptr(), std::ptr::null_mut())
            .result()
            .driver("cuLaunchKernelEx")
            .map_err(|error| Error::operation("cuda", format!("kernel `{kernel}`, {sizes:?}: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_for_another_architecture_is_refused_with_its_name_the_gpu_and_the_compiler_s_words() {
        let gpu = GpuProperties {
            ordinal: 3,
            name: "NVIDIA H100".into(),
            uuid: "0".into(),
            capability: (9, 0),
            multiprocessors: 132,
            memory_bytes: 1 << 30,
            shared_bytes: 1 << 17,
            driver_version: 13000,
        };
        let error = sys::CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU;
        let message = not_loaded("mine.cubin", "machine code", &gpu, error, "");
        for words in ["mine.cubin, machine code", "GPU 3, NVIDIA H100", "sm_90a: CUDA_ERROR_NO_BINARY_FOR_GPU.", "Fix:"]
        {
            assert!(message.contains(words), "`{words}` is missing from: {message}");
        }
        let message = not_loaded("mine.ptx", "PTX", &gpu, error, "ptxas fatal: no sm_100");
        assert!(message.contains("FOR_GPU (ptxas fatal: no sm_100). Rule:"), "{message}");
    }
}
