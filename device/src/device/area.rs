//! Memory at fixed addresses, and the names of the buffers in it.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::memory::{ALIGNMENT, AreaInfo, AreaMemory, Home};
use super::{Core, Device};
use crate::cuda::PageLocked;
use crate::dispatch::DeviceBackend;
use crate::host_memory::{HostMemory, available_memory};
use crate::sync_debug::CostlyCall;
use crate::tensor::VIRTUAL;
use crate::{Accesses, BufferId, BufferName, CaptureRule, CheckError, DType, Error, Op, Result, Shape, Tensor};

/// Memory at a fixed address, given back when dropped: at once, or when no stream captures any more.
pub struct Area {
    pub(super) device: Device,
    pub(super) start: u64,
    pub(super) bytes: usize,
}

impl Device {
    /// Allocates `bytes` of memory at an address that stays fixed until the area is dropped.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Recording`], or [`CaptureRule::Allocation`] while a stream captures.
    pub fn allocate(&self, name: &str, bytes: usize) -> Result<Area> {
        self.allocate_in(Home::Device, name, bytes)
    }

    /// As [`Device::allocate`], in the device's memory or the host's.
    ///
    /// # Errors
    /// As [`Device::allocate`]; the system cannot lock that much.
    pub fn allocate_in(&self, home: Home, name: &str, bytes: usize) -> Result<Area> {
        let call = || format!("Device::allocate of `{name}`, {bytes} bytes,");
        let mut core = self.core_for(call)?;
        core.refuse_while_recording(call)?;
        core.refuse_during_capture(CaptureRule::Allocation, |_| {
            format!("Device::allocate of `{name}`, {bytes} bytes")
        })?;
        core.hinders(CostlyCall::Allocates, call)?;
        let size = bytes.next_multiple_of(ALIGNMENT).max(ALIGNMENT);
        let mut locking = Duration::ZERO;
        let (start, memory) = match &core.backend {
            _ if core.dry => (core.virtual_range(size), AreaMemory::None),
            DeviceBackend::Host(_) => {
                let mut block = HostMemory::new(size).ok_or_else(|| out_of_host_memory(name, bytes))?;
                (block.address(), AreaMemory::Host(block))
            }
            DeviceBackend::Cuda(cuda) if home == Home::Host => {
                if available_memory().is_some_and(|free| size > free) {
                    return Err(out_of_host_memory(name, bytes));
                }
                let begun = Instant::now();
                let block = PageLocked::new(size)?;
                cuda.counters.borrow_mut().allocations += 1;
                locking = begun.elapsed();
                (block.start().expose_provenance() as u64, AreaMemory::Locked(block))
            }
            DeviceBackend::Cuda(cuda) => {
                let block = cuda.allocate(name, size)?;
                (block.address(), AreaMemory::Cuda(block))
            }
        };
        core.areas.insert(start, AreaInfo { end: start + size as u64, home, memory });
        core.allocations += 1;
        core.locking += locking;
        if let Some(checker) = &mut core.checker {
            checker.allocate(start..start + size as u64);
        }
        Ok(Area { device: self.clone(), start, bytes })
    }

    /// Allocates a tensor, a buffer of that name, in an area of its own. The area is added to `areas`: the tensor's
    /// memory lives as long as they do.
    ///
    /// # Errors
    /// As [`Device::allocate`].
    pub fn allocate_tensor(
        &self,
        areas: &mut Vec<Area>,
        name: &str,
        shape: impl Into<Shape>,
        dtype: DType,
    ) -> Result<Tensor> {
        self.allocate_tensor_in(Home::Device, areas, name, shape, dtype)
    }

    /// As [`Device::allocate_tensor`], in the device's memory or the host's.
    ///
    /// # Errors
    /// As [`Device::allocate_in`].
    pub fn allocate_tensor_in(
        &self,
        home: Home,
        areas: &mut Vec<Area>,
        name: &str,
        shape: impl Into<Shape>,
        dtype: DType,
    ) -> Result<Tensor> {
        let shape = shape.into();
        let area = self.allocate_in(home, name, shape.elements() * dtype.size())?;
        let tensor = area.tensor(name, 0, shape, dtype);
        areas.push(area);
        Ok(tensor)
    }

    /// Names a buffer that memory will be planned for.
    pub(crate) fn name_buffer(&self, name: BufferName) -> BufferId {
        let mut core = self.core();
        let number = core.buffers.add(name);
        BufferId::new(core.number, number)
    }

    /// A buffer's name.
    pub fn buffer_name(&self, buffer: BufferId) -> String {
        self.peek().buffer_name(buffer)
    }

    /// The number of buffers named so far, for [`Device::forget_buffers_since`].
    pub fn buffers_made(&self) -> usize {
        self.peek().buffers.len()
    }

    /// Forgets all buffers but the first `made`. Later buffers get the freed numbers. No tensor of them
    /// may be used any more.
    pub fn forget_buffers_since(&self, made: usize) {
        let mut core = self.core();
        core.buffers.truncate(made);
        core.checker.iter_mut().for_each(|checker| checker.lent.truncate(made));
    }

    /// A tensor with no memory, for tracing: its address stands for the buffer, and nothing runs at it.
    pub fn virtual_tensor(&self, name: impl Into<BufferName>, shape: impl Into<Shape>, dtype: DType) -> Tensor {
        let shape = shape.into();
        let buffer = self.name_buffer(name.into());
        let address = self.core().virtual_range((shape.elements() * dtype.size()).next_multiple_of(ALIGNMENT));
        Tensor { address, shape, dtype, buffer }
    }

    /// How often memory has been allocated so far.
    pub fn allocations(&self) -> u64 {
        self.peek().allocations
    }

    /// The number of streams made so far, for [`Device::free_scratch_since`].
    pub fn streams_made(&self) -> usize {
        self.peek().streams.len()
    }

    /// Frees the scratch memory of the streams that were made since there were `made` of them. Nothing may be submitted to them
    /// any more, and graphs that were captured from them must be gone.
    ///
    /// # Errors
    /// As [`Device::synchronize`].
    pub fn free_scratch_since(&self, made: usize) -> Result<()> {
        self.synchronize()?;
        self.core().streams.iter_mut().skip(made).for_each(|stream| stream.backend.free_scratch());
        Ok(())
    }

    /// Bytes of all areas of the device but adopted ones, and of the scratch memory that operations recorded so far need.
    pub fn allocated_bytes(&self) -> usize {
        let core = self.peek();
        let scratch: usize = core.streams.iter().map(|stream| stream.backend.scratch_bytes()).sum();
        core.area_bytes(Home::Device) + scratch
    }

    /// The time that the system took to make and lock areas in the [host's memory](Home::Host); none on the host device.
    pub fn locking_time(&self) -> Duration {
        self.peek().locking
    }

    /// Bytes of all areas in the [host's memory](Home::Host).
    pub fn bytes_on_host(&self) -> usize {
        self.peek().area_bytes(Home::Host)
    }
}

/// The error for memory of the host that the system does not have.
fn out_of_host_memory(name: &str, bytes: usize) -> Error {
    let available = available_memory().map_or_else(|| "the host has less".into(), |free| format!("{free} are free"));
    Error::OutOfMemory { name: name.into(), bytes, available }
}

impl Core {
    pub(crate) fn buffer_name(&self, buffer: BufferId) -> String {
        match self.has(buffer) {
            true => self.buffers.of(buffer),
            false => format!("buffer {} of another device", buffer.number()),
        }
    }

    /// Bytes of all areas in that memory but adopted ones.
    fn area_bytes(&self, home: Home) -> usize {
        let of = |area: &AreaInfo| area.home == home && !matches!(area.memory, AreaMemory::Adopted(_));
        self.areas.iter().filter(|(_, area)| of(area)).map(|(start, area)| (area.end - start) as usize).sum()
    }

    fn has(&self, buffer: BufferId) -> bool {
        buffer.is_of(self.number)
    }

    /// Fails if one of the tensors is another device's.
    pub(crate) fn check_owns(&self, user: &str, accesses: &Accesses) -> Result<()> {
        accesses.reads.iter().chain(&accesses.writes).try_for_each(|tensor| self.check_own(user, tensor))
    }

    /// Fails if the tensor is another device's.
    pub(crate) fn check_own(&self, user: &str, tensor: &Tensor) -> Result<()> {
        if self.has(tensor.buffer) {
            return Ok(());
        }
        Err(Error::other_device(user, &format!("a tensor {:?} of {}", tensor.shape, tensor.dtype)))
    }

    fn virtual_range(&mut self, bytes: usize) -> u64 {
        let start = self.next_virtual;
        self.next_virtual += bytes.max(ALIGNMENT) as u64;
        start
    }

    /// Whether a tensor of an area lies in the host's memory.
    pub(crate) fn is_on_host(&self, tensor: &Tensor) -> bool {
        self.areas.range(..=tensor.address).next_back().is_some_and(|(_, area)| area.home == Home::Host)
    }

    /// Fails unless all tensors of an operation have an address, and lie in memory of this device that is allocated:
    /// its own, unless the operation is a move.
    pub(crate) fn check_reachable(&self, user: &str, op: &Op, accesses: &Accesses) -> Result<()> {
        for tensor in accesses.reads.iter().chain(&accesses.writes) {
            self.check_live(user, tensor)?;
            if !matches!(op, Op::Move(_)) && self.is_on_host(tensor) {
                return Err(Error::on_host(user, &self.buffer_name(tensor.buffer)));
            }
        }
        Ok(())
    }

    /// Fails unless the tensor has an address, and lies in memory of this device that is allocated.
    pub(crate) fn check_live(&self, user: &str, tensor: &Tensor) -> Result<()> {
        self.check_own(user, tensor)?;
        let named = || (user.to_string(), self.buffer_name(tensor.buffer));
        if VIRTUAL.contains(&tensor.address) {
            let (user, buffer) = named();
            return Err(Error::Unbound { user, buffer });
        }
        let area = self.areas.range(..=tensor.address).next_back();
        let inside = area.zip(tensor.checked_range()).is_some_and(|((_, area), range)| range.end <= area.end);
        if inside {
            return Ok(());
        }
        let (user, buffer) = named();
        Err(CheckError::Freed { user, buffer }.into())
    }

    /// Takes an area out of use, at once or when no stream captures any more. Its memory is freed when the caller drops
    /// it. That comes after the borrow of the core: an owner of adopted memory may use the device when it is dropped.
    #[must_use = "it may not be dropped while the core is borrowed"]
    fn free(&mut self, start: u64) -> Option<AreaMemory> {
        if !self.captures.is_empty() {
            self.freed_later.push(start);
            return None;
        }
        let area = self.areas.remove(&start)?;
        let hinders = self.hinders(CostlyCall::Waits, || format!("the drop of an area of {} bytes", area.end - start));
        hinders.unwrap_or_else(|error| tracing::warn!("{error}"));
        self.frees += 1;
        if let Some(checker) = &mut self.checker {
            checker.free(start..area.end);
        }
        if self.streams.iter().any(|stream| stream.backend.transfers_in(&(start..area.end))) {
            tracing::warn!("an area was dropped while a transfer uses it: its memory stays");
            std::mem::forget(area.memory);
            return None;
        }
        if let (AreaMemory::Adopted(_), DeviceBackend::Cuda(_)) = (&area.memory, &self.backend)
            && let Err(error) = self.finish_all()
        {
            // The driver frees memory of ours after the work that uses it. An owner does not know of that work.
            tracing::warn!("an adopted area was dropped, and the wait for its work failed: its memory stays: {error}");
            std::mem::forget(area.memory);
            return None;
        }
        Some(area.memory)
    }

    /// Takes the areas out of use that were dropped during a capture, unless another goes on. As [`Core::free`].
    #[must_use = "it may not be dropped while the core is borrowed"]
    pub(crate) fn free_deferred(&mut self) -> Vec<AreaMemory> {
        if !self.captures.is_empty() {
            return Vec::new();
        }
        std::mem::take(&mut self.freed_later).into_iter().filter_map(|start| self.free(start)).collect()
    }
}

impl Area {
    /// The address of the area's first byte.
    pub fn address(&self) -> u64 {
        self.start
    }

    /// The area's size in bytes, as it was asked for.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The addresses of the area's bytes.
    pub fn addresses(&self) -> Range<u64> {
        self.start..self.start + self.bytes as u64
    }

    /// A tensor at `offset` bytes, as a new buffer of that name.
    ///
    /// # Panics
    /// If it does not fit: offsets come from plans.
    pub fn tensor(&self, name: &str, offset: usize, shape: impl Into<Shape>, dtype: DType) -> Tensor {
        let buffer = self.device.name_buffer(name.into());
        self.place(buffer, offset, shape, dtype)
    }

    /// A tensor at `offset` bytes, as a view of a buffer that has a name already.
    ///
    /// # Panics
    /// If it does not fit: offsets come from plans.
    pub fn place(&self, buffer: BufferId, offset: usize, shape: impl Into<Shape>, dtype: DType) -> Tensor {
        let shape = shape.into();
        let end = offset + shape.elements() * dtype.size();
        assert!(end <= self.bytes, "tensor ends at {end} in an area of {} bytes", self.bytes);
        Tensor { address: self.start + offset as u64, shape, dtype, buffer }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        let freed = match self.device.core_for(|| format!("the drop of an area of {} bytes", self.bytes)) {
            Ok(mut core) => core.free(self.start),
            Err(error) => {
                tracing::warn!("{error}. The memory stays");
                None
            }
        };
        // Not before: the core is borrowed until here.
        drop(freed);
    }
}
