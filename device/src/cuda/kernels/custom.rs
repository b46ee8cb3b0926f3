//! Kernels of custom operations, compiled and loaded when first met.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use cudarc::driver::sys;

use super::machine_code::check_whole;
use super::module::{Function, LaunchSizes, Module, launch};
use super::{Arg, pointers};
use crate::cuda::driver::{Driver, RawStream};
use crate::cuda::{CudaCode, CudaKernel, CudaLaunch};
use crate::gpu_types::GpuProperties;
use crate::{Error, Result};

/// The modules that were loaded so far.
#[derive(Default)]
pub(crate) struct CustomKernels {
    modules: RefCell<HashMap<CodeAddress, LoadedModule>>,
}

/// Address and length of a module's code. It is `'static`, so it never changes.
type CodeAddress = (*const u8, usize);

struct LoadedModule {
    kernels: HashMap<String, LoadedKernel>,
    /// Keeps the kernels loaded.
    _module: Module,
}

struct LoadedKernel {
    function: Function,
    /// Bytes of each argument that the kernel declares, in order.
    arguments: Vec<usize>,
}

impl LoadedModule {
    fn new(kernel: &CudaKernel, gpu: &GpuProperties) -> Result<LoadedModule> {
        let module = match kernel.code {
            CudaCode::Source(source) => Module::load(kernel.file, source, gpu)?,
            CudaCode::Ptx(text) => Module::load_compiled(kernel.file, "PTX", &with_zero(text.as_bytes()), gpu)?,
            CudaCode::Binary(bytes) => {
                check_whole(kernel.file, bytes)?;
                Module::load_compiled(kernel.file, "machine code", bytes, gpu)?
            }
        };
        let loaded = |(name, function)| {
            let arguments = argument_sizes(function)?;
            Ok((name, LoadedKernel { function, arguments }))
        };
        let kernels = module.functions()?.into_iter().map(loaded).collect::<Result<_>>()?;
        Ok(LoadedModule { kernels, _module: module })
    }
}

fn address(kernel: &CudaKernel) -> CodeAddress {
    let code = kernel.code.bytes();
    (code.as_ptr(), code.len())
}

/// PTX ends with a zero byte for the driver.
fn with_zero(text: &[u8]) -> Vec<u8> {
    text.iter().copied().chain([0]).collect()
}

impl CustomKernels {
    /// Whether a kernel can be launched without compiling or loading anything.
    pub(crate) fn has(&self, kernel: &CudaKernel) -> bool {
        self.modules.borrow().get(&address(kernel)).is_some_and(|module| module.kernels.contains_key(kernel.function))
    }

    /// Compiles and loads a kernel's module, unless that was done before.
    ///
    /// # Errors
    /// The compiler's, with its log; the driver's; the module has no such kernel, or is for another GPU.
    pub(crate) fn load(&self, kernel: &CudaKernel, gpu: &GpuProperties) -> Result<()> {
        let mut modules = self.modules.borrow_mut();
        let loaded = match modules.entry(address(kernel)) {
            Entry::Occupied(loaded) => loaded.into_mut(),
            Entry::Vacant(new) => new.insert(LoadedModule::new(kernel, gpu)?),
        };
        if loaded.kernels.contains_key(kernel.function) {
            return Ok(());
        }
        let mut names: Vec<&str> = loaded.kernels.keys().map(String::as_str).collect();
        names.sort_unstable();
        let CudaKernel { file, function, .. } = kernel;
        let problem = format!("{file} has no kernel `{function}`, only [{}]", names.join(", "));
        Err(Error::operation("cuda", format!("{problem}. Fix: declare it `extern \"C\" __global__`")))
    }

    /// Launches a loaded kernel on a stream, or records it while the stream captures.
    ///
    /// # Errors
    /// The kernel is not loaded or declares other arguments; the driver's refusal of the sizes.
    pub(crate) fn launch(&self, stream: &RawStream, wanted: &CudaLaunch, arguments: &[Arg]) -> Result<()> {
        let CudaLaunch { kernel, blocks, threads, shared_bytes: shared, .. } = *wanted;
        let modules = self.modules.borrow();
        let loaded = modules.get(&address(&kernel)).and_then(|module| module.kernels.get(kernel.function));
        let Some(LoadedKernel { function, arguments: declared }) = loaded else {
            return Err(Error::operation("cuda", format!("kernel `{}` is not loaded", kernel.function)));
        };
        check_arguments(kernel.function, declared, arguments)?;
        launch(
            stream,
            kernel.function,
            *function,
            LaunchSizes { blocks, threads, shared, cluster: 0 },
            &mut pointers(arguments),
        )
    }
}

/// Bytes of each argument that a kernel declares, in order.
fn argument_sizes(function: Function) -> Result<Vec<usize>> {
    let mut sizes = Vec::new();
    loop {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: the function is loaded; writes two integers.
        match unsafe { sys::cuFuncGetParamInfo(function, sizes.len(), &mut offset, &mut size) } {
            // There are no more.
            sys::CUresult::CUDA_ERROR_INVALID_VALUE => return Ok(sizes),
            result => result.result().driver("cuFuncGetParamInfo")?,
        }
        sizes.push(size);
    }
}

/// Fails unless the arguments have the sizes that the kernel declares: the driver would read beyond them.
fn check_arguments(kernel: &str, declared: &[usize], given: &[Arg]) -> Result<()> {
    let given: Vec<usize> = given.iter().map(Arg::bytes).collect();
    if given == declared {
        return Ok(());
    }
    let problem = format!("kernel `{kernel}` declares arguments of {declared:?} bytes and was given {given:?}");
    Err(Error::operation("cuda", format!("{problem}. Fix: pass what it declares, in order")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_another_number_or_size_than_the_kernel_declares_are_refused() {
        let given = [Arg::Pointer(256), Arg::U64(4), Arg::F32(1.0), Arg::U32(2)];
        assert_eq!(check_arguments("k", &[8, 8, 4, 4], &given), Ok(()));
        for declared in [&[8, 8, 4][..], &[8, 8, 4, 4, 4], &[8, 8, 4, 8], &[]] {
            let message = check_arguments("k", declared, &given).unwrap_err().to_string();
            assert!(message.contains("kernel `k` declares") && message.contains("Fix:"), "{message}");
        }
    }
}
