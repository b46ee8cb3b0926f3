//! Addresses of areas, and the memory behind them.

use std::any::Any;

use crate::cuda::{DeviceMemory, PageLocked};
use crate::host_memory::HostMemory;

/// Every buffer begins at a multiple of this many bytes.
pub const ALIGNMENT: usize = 256;

/// The memory in which a buffer lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Home {
    /// The device's own, where operations compute.
    Device,
    /// The host's, page-locked for a GPU. Only a [`Move`](crate::ops::Move) goes there.
    Host,
}

/// An area, by its first address in [`Core`](super::Core).
pub(crate) struct AreaInfo {
    pub(super) end: u64,
    pub(super) home: Home,
    pub(super) memory: AreaMemory,
}

/// The owner of an area's memory.
#[allow(dead_code, reason = "held until the area is freed")]
pub(crate) enum AreaMemory {
    /// Nobody: the device is dry.
    None,
    /// Other code, which keeps the memory as long as this value lives.
    Adopted(Box<dyn Any>),
    Host(HostMemory),
    Cuda(DeviceMemory),
    /// Memory of the host beside a GPU.
    Locked(PageLocked),
}
