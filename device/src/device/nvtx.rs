//! The switch for NVTX ranges, and ranges of a caller's own.

use super::Device;
use crate::NvtxRange;

impl Device {
    /// From now on there are NVTX ranges for launches of graphs (`launch NAME`) and for making them ready
    /// (`instantiate NAME`), and those that are asked for with [`Device::nvtx_range`]; `false`: no more. Off at first. While
    /// off, a range costs a look at this switch.
    pub fn set_nvtx(&self, on: bool) {
        self.core().nvtx = on;
    }

    /// A range with that name. `None`, and no name is made, while ranges are [off](Device::set_nvtx).
    pub fn nvtx_range(&self, name: impl FnOnce() -> String) -> Option<NvtxRange> {
        self.peek().nvtx_range(name)
    }
}
