//! The switch for NVTX ranges, and ranges of a caller's own.

use super::Device;
use crate::NvtxRange;

impl Device {
    /// Switches NVTX ranges on or off; off at first. Ranges are for launches of graphs (`launch NAME`), for making graphs
    /// ready (`instantiate NAME`), and for [`Device::nvtx_range`]. While off, a range costs a look at this switch.
    pub fn set_nvtx(&self, on: bool) {
        self.core().nvtx = on;
    }

    /// A range with that name. `None`, and no name is made, while ranges are [off](Device::set_nvtx).
    pub fn nvtx_range(&self, name: impl FnOnce() -> String) -> Option<NvtxRange> {
        self.peek().nvtx_range(name)
    }
}
