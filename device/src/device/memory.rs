//! What an area's addresses stand for.

use std::ops::Range;

use crate::cuda::DeviceBlock;
use crate::host::memory::HostBlock;

/// Every buffer begins at a multiple of this many bytes.
pub const ALIGNMENT: usize = 256;

/// Virtual addresses, far above any real address. They are given while nothing is allocated, and nothing runs at them.
pub(super) const VIRTUAL: Range<u64> = 1 << 60..1 << 61;

/// An area, by its first address in [`Core`](super::Core).
pub(crate) struct AreaInfo {
    pub(super) end: u64,
    pub(super) memory: AreaMemory,
}

/// What owns an area's memory.
#[allow(dead_code, reason = "held until the area is freed")]
pub(super) enum AreaMemory {
    /// Nobody: the device is dry.
    None,
    Host(HostBlock),
    Cuda(DeviceBlock),
}
