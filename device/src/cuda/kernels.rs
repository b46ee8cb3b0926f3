//! Our own kernels: loaded by name, launched with plain arguments.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::ffi::c_void;

use super::compile::{EXPERT_SOURCES, FP8_SOURCES, HOPPER_SOURCES, SOURCES, fill_cache};
use super::driver::RawStream;
use super::module::{Function, LaunchSizes, Module, launch};
use super::peers::KERNELS;
use crate::gpu::{FP8_CAPABILITY, GpuProperties};
use crate::{Error, Result, Tensor};

/// All kernels, loaded on the GPU.
pub(crate) struct Kernels {
    gpu: GpuProperties,
    always: Loaded,
    /// By [`KernelSet`].
    sets: [OnceCell<Loaded>; 2],
}

/// Kernels that are loaded once a run needs one of them: to compile them takes seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KernelSet {
    /// Of 8-bit copies.
    Fp8,
    /// Of mixtures of experts.
    Experts,
}

impl KernelSet {
    /// Its sources for a GPU.
    fn sources(self, gpu: &GpuProperties) -> Vec<(&'static str, &'static str)> {
        match self {
            KernelSet::Fp8 => FP8_SOURCES.to_vec(),
            KernelSet::Experts if gpu.is_hopper() => [EXPERT_SOURCES, HOPPER_SOURCES].concat(),
            KernelSet::Experts => EXPERT_SOURCES.to_vec(),
        }
    }
}

/// Compiles the kernels of 8-bit copies and of experts, where the cache on disk lacks them. It waits for the
/// compiler, so a program that needs all of them calls it on a thread of its own, beside its other work.
pub fn compile_sets(gpu: &GpuProperties) {
    let sets = [KernelSet::Experts, KernelSet::Fp8].into_iter();
    let can_run = sets.filter(|set| *set != KernelSet::Fp8 || gpu.capability >= FP8_CAPABILITY);
    let sources: Vec<_> = can_run.flat_map(|set| set.sources(gpu)).collect();
    fill_cache(&sources, &gpu.architecture());
}

/// The kernels of some sources.
struct Loaded {
    functions: HashMap<String, Function>,
    /// Keep the functions loaded.
    _modules: Vec<Module>,
}

impl Loaded {
    /// Compiles, or takes from the cache, and loads every source.
    fn load(sources: &[(&str, &str)], gpu: &GpuProperties) -> Result<Loaded> {
        fill_cache(sources, &gpu.architecture());
        let (mut functions, mut modules) = (HashMap::new(), Vec::new());
        for (name, source) in sources {
            let module = Module::load(name, source, gpu)?;
            functions.extend(module.functions()?);
            modules.push(module);
        }
        Ok(Loaded { functions, _modules: modules })
    }
}

/// An argument of a kernel, by its type there.
#[derive(Clone, Copy, Debug, PartialEq)]
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

impl Arg {
    /// Its bytes as an argument.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Arg::Pointer(_) | Arg::U64(_) => 8,
            Arg::U32(_) | Arg::F32(_) => 4,
        }
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

    fn sizes(self) -> LaunchSizes {
        LaunchSizes { blocks: self.blocks, threads: (self.threads, 1, 1), shared: self.shared, cluster: 0 }
    }
}

impl Kernels {
    /// Loads every source but those of sets.
    ///
    /// # Errors
    /// A compiler's or the driver's.
    pub(crate) fn load(gpu: &GpuProperties) -> Result<Kernels> {
        Ok(Kernels { gpu: gpu.clone(), always: Loaded::load(SOURCES, gpu)?, sets: Default::default() })
    }

    /// Loads the kernels of a set, unless they are loaded. That must come before a capture.
    ///
    /// # Errors
    /// As [`Kernels::load`].
    pub(crate) fn load_set(&self, set: KernelSet) -> Result<()> {
        let place = &self.sets[set as usize];
        if place.get().is_none() {
            let loaded = Loaded::load(&set.sources(&self.gpu), &self.gpu)?;
            // It was empty, and a device belongs to one thread.
            let _ = place.set(loaded);
        }
        Ok(())
    }

    /// What is loaded.
    fn loaded(&self) -> impl Iterator<Item = &Loaded> {
        std::iter::once(&self.always).chain(self.sets.iter().filter_map(OnceCell::get))
    }

    /// The GPU they are loaded on.
    pub(crate) fn gpu(&self) -> &GpuProperties {
        &self.gpu
    }

    /// Launches a kernel on a stream, or records it while the stream captures.
    ///
    /// The arguments must be those that the kernel declares, in order. The callers in `cuda/ops` see to that.
    ///
    /// # Errors
    /// An unknown name; the driver's refusal of the grid.
    pub(crate) fn launch(&self, stream: &RawStream, kernel: &str, grid: Grid, arguments: &[Arg]) -> Result<()> {
        let function = self.function(kernel)?;
        launch(stream, kernel, function, grid.sizes(), &mut pointers(arguments))
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
        launch(stream, kernel, function, grid.sizes(), &mut [std::ptr::from_ref(block) as *mut c_void])
    }

    /// As [`Kernels::launch_block`] in clusters of so many blocks. These can meet and write to each other's shared
    /// memory.
    ///
    /// # Errors
    /// As [`Kernels::launch`].
    pub(crate) fn launch_clusters<T: bytemuck::Pod>(
        &self,
        stream: &RawStream,
        kernel: &str,
        grid: Grid,
        cluster: u32,
        block: &T,
    ) -> Result<()> {
        let (function, sizes) = (self.function(kernel)?, LaunchSizes { cluster, ..grid.sizes() });
        launch(stream, kernel, function, sizes, &mut [std::ptr::from_ref(block) as *mut c_void])
    }

    /// Whether a function is a kernel of these, and not a library's or a custom operation's.
    pub(crate) fn is_ours(&self, function: Function) -> bool {
        self.loaded().flat_map(|loaded| loaded.functions.values()).any(|ours| *ours == function)
    }

    /// Whether a function is a kernel of these that waits for other GPUs.
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
