//! Our own kernels: loaded by name, launched with plain arguments.

mod all;
mod custom;
mod machine_code;
mod module;
pub(crate) mod nvrtc;

use std::cell::OnceCell;
use std::collections::HashMap;
use std::ffi::c_void;

use super::driver::RawStream;
use super::peers::KERNELS;
use crate::gpu_types::{Arg, GpuProperties, Grid, KernelFile, KernelSet};
use crate::{Error, Result};
pub(crate) use all::open;
pub use all::{compile_sets, kernel_files};
pub(crate) use custom::CustomKernels;
pub(crate) use module::{Function, Module, not_loaded_in_capture};
use module::{LaunchSizes, launch};
use nvrtc::fill_cache;
pub(crate) use nvrtc::version;
pub use nvrtc::{compile, cubin_name};

/// All kernels, loaded on the GPU.
pub(crate) struct Kernels {
    gpu: GpuProperties,
    always: Loaded,
    fp8: OnceCell<Loaded>,
    experts: OnceCell<Loaded>,
    /// All files.
    files: Vec<KernelFile>,
}

/// The files that are loaded together with those of `set`.
pub(super) fn files_of(set: KernelSet, files: &[KernelFile], gpu: &GpuProperties) -> Vec<KernelFile> {
    let hopper = set == KernelSet::Experts && gpu.is_hopper();
    let is_of = |file: &&KernelFile| file.set == set || hopper && file.set == KernelSet::ExpertsOnHopper;
    files.iter().filter(is_of).copied().collect()
}

/// The kernels of some sources.
struct Loaded {
    functions: HashMap<String, Function>,
    /// Keep the functions loaded.
    _modules: Vec<Module>,
}

impl Loaded {
    /// Compiles, or takes from the cache, and loads every source.
    fn load(files: &[KernelFile], gpu: &GpuProperties) -> Result<Loaded> {
        fill_cache(files, &gpu.architecture());
        let (mut functions, mut modules) = (HashMap::new(), Vec::new());
        for KernelFile { name, source, .. } in files {
            let module = Module::load(name, source, gpu)?;
            functions.extend(module.functions()?);
            modules.push(module);
        }
        Ok(Loaded { functions, _modules: modules })
    }
}

/// Pointers to the values of arguments, as the driver takes them.
pub(super) fn pointers(arguments: &[Arg]) -> Vec<*mut c_void> {
    let pointer = |argument: &Arg| match argument {
        Arg::Pointer(value) | Arg::U64(value) => std::ptr::from_ref(value) as *mut c_void,
        Arg::U32(value) => std::ptr::from_ref(value) as *mut c_void,
        Arg::F32(value) => std::ptr::from_ref(value) as *mut c_void,
    };
    arguments.iter().map(pointer).collect()
}

impl From<Grid> for LaunchSizes {
    fn from(Grid { blocks: (x, y), threads, shared, cluster }: Grid) -> LaunchSizes {
        let [x, y, threads, shared, cluster] = [x, y, threads, shared, cluster].map(|size| size as u32);
        LaunchSizes { blocks: (x, y, 1), threads: (threads, 1, 1), shared, cluster }
    }
}

impl Kernels {
    /// Loads the files that are always loaded. `files` are all.
    ///
    /// # Errors
    /// A compiler's or the driver's.
    pub(crate) fn load(files: Vec<KernelFile>, gpu: &GpuProperties) -> Result<Kernels> {
        let always = Loaded::load(&files_of(KernelSet::Always, &files, gpu), gpu)?;
        Ok(Kernels { gpu: gpu.clone(), always, fp8: OnceCell::new(), experts: OnceCell::new(), files })
    }

    /// Loads the kernels of a set, unless they are loaded. That must come before a capture.
    ///
    /// # Errors
    /// As [`Kernels::load`].
    pub(crate) fn load_set(&self, set: KernelSet) -> Result<()> {
        let place = match set {
            KernelSet::Fp8 => &self.fp8,
            KernelSet::Experts => &self.experts,
            KernelSet::Always | KernelSet::ExpertsOnHopper | KernelSet::When => return Ok(()),
        };
        if place.get().is_none() {
            let loaded = Loaded::load(&files_of(set, &self.files, &self.gpu), &self.gpu)?;
            // It was empty, and a device belongs to one thread.
            let _ = place.set(loaded);
        }
        Ok(())
    }

    /// What is loaded.
    fn loaded(&self) -> impl Iterator<Item = &Loaded> {
        std::iter::once(&self.always).chain(self.fp8.get()).chain(self.experts.get())
    }

    /// The GPU that the kernels are loaded on.
    pub(crate) fn gpu(&self) -> &GpuProperties {
        &self.gpu
    }

    /// Launches a kernel on a stream, or records it while the stream captures.
    ///
    /// The arguments must be those that the kernel declares, in order. The launches of operations see to that.
    ///
    /// # Errors
    /// An unknown name; the driver's refusal of the grid.
    pub(crate) fn launch(&self, stream: &RawStream, kernel: &str, grid: Grid, arguments: &[Arg]) -> Result<()> {
        let function = self.function(kernel)?;
        launch(stream, kernel, function, grid.into(), &mut pointers(arguments))
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
        launch(stream, kernel, function, grid.into(), &mut [std::ptr::from_ref(block) as *mut c_void])
    }

    /// Whether a function is one of the loaded kernels, and not a library's or a custom operation's.
    pub(crate) fn is_ours(&self, function: Function) -> bool {
        self.loaded().flat_map(|loaded| loaded.functions.values()).any(|ours| *ours == function)
    }

    /// Whether a function is a loaded kernel that waits for other GPUs.
    pub(crate) fn waits_for_peers(&self, function: Function) -> bool {
        KERNELS.iter().any(|name| self.function(name).is_ok_and(|peers| peers == function))
    }

    /// A kernel by its name.
    ///
    /// # Errors
    /// An unknown name.
    pub(crate) fn function(&self, kernel: &str) -> Result<Function> {
        let function = self.loaded().find_map(|loaded| loaded.functions.get(kernel)).copied();
        function.ok_or_else(|| Error::operation("cuda", format!("no kernel `{kernel}`")))
    }
}
