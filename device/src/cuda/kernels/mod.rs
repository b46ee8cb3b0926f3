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
use crate::gpu_types::GpuProperties;
use crate::{Error, Result, Tensor};
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

/// The kernels that are loaded together. All but those that are always loaded are loaded once a run needs one of them: to
/// compile them takes seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelSet {
    /// Loaded when the device is opened.
    Always,
    /// Of 8-bit copies.
    Fp8,
    /// Of mixtures of experts.
    Experts,
    /// Loaded with those of experts, by GPUs of compute capability 9.0 alone.
    ExpertsOnHopper,
    /// The kernel of [`When`](crate::ops::When), which is in no set.
    When,
}

/// A file of `kernels/`. Each is a program of its own.
#[derive(Clone, Copy, Debug)]
pub struct KernelFile {
    /// The set that its kernels are loaded with.
    pub set: KernelSet,
    /// The file's name.
    pub name: &'static str,
    /// The file's text.
    pub source: &'static str,
}

/// A [`KernelFile`] by its name. Its kernels are always loaded, unless a set comes first.
macro_rules! kernel_file {
    ($name:literal) => {
        crate::cuda::kernels::kernel_file!(Always, $name)
    };
    ($set:ident, $name:literal) => {
        crate::cuda::kernels::KernelFile {
            set: crate::cuda::kernels::KernelSet::$set,
            name: $name,
            source: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/", $name)),
        }
    };
}
pub(super) use kernel_file;

/// A struct that a kernel takes by value: its fields by type, in the kernel's order.
macro_rules! kernel_struct {
    ($(#[$doc:meta])* $name:ident { $($kind:ty: $($field:ident),+;)+ }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
        pub(super) struct $name { $($(pub(super) $field: $kind,)+)+ }
    };
}
pub(super) use kernel_struct;

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

/// Arguments of a kernel: first pointers, tensors or [`Arg`]s, then numbers by type.
macro_rules! args {
    ($($first:expr),+ $(; $kind:ident: $($number:expr),+)*) => {
        &[
            $($crate::cuda::kernels::Arg::from($first),)+
            $($($crate::cuda::kernels::Arg::$kind($number as _),)+)*
        ]
    };
}
pub(super) use args;

impl Arg {
    /// Bytes of the argument, as kernels take it.
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
