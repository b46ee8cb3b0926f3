//! The kernel that sets the condition of a conditional node.

use super::compile::WHEN_SOURCE;
use super::driver::RawStream;
use super::module::{Function, LaunchSizes, Module, launch, not_loaded_in_capture};
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

    /// Records the kernel in the stream's capture: the node of `handle` runs its body if the flag is not 0.
    pub(super) fn launch(&self, stream: &RawStream, mut handle: u64, mut flag: u64) -> Result<()> {
        let one = LaunchSizes { blocks: (1, 1, 1), threads: (1, 1, 1), shared: 0, cluster: 0 };
        let arguments = &mut [(&raw mut handle).cast(), (&raw mut flag).cast()];
        launch(stream, NAME, self.function, one, arguments)
    }
}

/// The refusal of a `when` in a capture before its kernel is loaded.
pub(super) fn not_loaded() -> Error {
    not_loaded_in_capture("when", NAME)
}
