//! What an area's addresses stand for.

use crate::cuda::DeviceBlock;
use crate::host::memory::HostBlock;

/// Every buffer begins at a multiple of this many bytes.
pub const ALIGNMENT: usize = 256;

/// Virtual addresses begin here, far above any real address. They are given while nothing is allocated.
pub(super) const VIRTUAL: u64 = 1 << 60;

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
