//! A stream of the CUDA device, with the memory that belongs to it.

use std::any::Any;
use std::cell::{Cell, OnceCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use super::copy_to_host::{CopyToHost, PendingCopy};
use super::driver::{DeviceMemory, RawEvent, RawStream};
use super::graph::{KeptWhens, when};
use super::{CudaDevice, Queue, RawGraph, StreamHandle};
use crate::host_memory::{ArrayColumns, HostBlock};
use crate::ops::When;
use crate::priority::Priority;
use crate::{CaptureMode, Element, Error, HostArray, Op, Result, Tensor};

#[derive(Default)]
pub(crate) struct CudaStream {
    priority: Priority,
    /// Created at first use.
    raw: OnceCell<Rc<RawStream>>,
    /// Bytes of scratch that prepared operations need.
    scratch_bytes: usize,
    /// Sizes and blocks, each larger than the one before. The last is in use; older graphs refer to earlier ones.
    scratch: Vec<(usize, DeviceMemory)>,
    /// Captures the bodies of `when`s, and never runs anything. Created at first use.
    captures: OnceCell<RawStream>,
    /// The graphs of operations that ran outside of a graph.
    whens: KeptWhens<RawGraph>,
    /// Pinned memory that copies to a tensor come from, by the tensor's address, the oldest first.
    outgoing: HashMap<u64, VecDeque<(HostBlock, RawEvent)>>,
    /// Pinned memory that copies from a tensor go to, by the tensor's address, the oldest first.
    incoming: HashMap<u64, VecDeque<Rc<CopyToHost>>>,
    /// Page-locked arrays that copies come from, the oldest first, each with the number of read-backs begun before its
    /// copy.
    sending: VecDeque<(u64, Arc<dyn Any + Send + Sync>)>,
    /// Read-backs begun.
    begun: u64,
    /// The highest number of a read-back that was waited for. All work submitted before that read-back is done.
    arrived: Rc<Cell<u64>>,
}

/// How many copies to one tensor can be under way at once. The host is at most one step ahead.
const COPIES: usize = 2;

impl CudaStream {
    pub(crate) fn new(priority: Priority) -> CudaStream {
        CudaStream { priority, ..CudaStream::default() }
    }

    /// Works on a stream of other code, which lives as long as `owner`. See [`RawStream::adopt`].
    pub(crate) fn adopt(&mut self, handle: StreamHandle, owner: Box<dyn Any>) -> Result<()> {
        self.raw = OnceCell::from(Rc::new(RawStream::adopt(handle, owner)?));
        Ok(())
    }

    pub(crate) fn raw(&self) -> Result<Rc<RawStream>> {
        if let Some(raw) = self.raw.get() {
            return Ok(raw.clone());
        }
        let raw = Rc::new(RawStream::new(self.priority)?);
        Ok(self.raw.get_or_init(|| raw).clone())
    }

    /// The driver's stream. `None` before its first use.
    pub(crate) fn made(&self) -> Option<Rc<RawStream>> {
        self.raw.get().cloned()
    }

    pub(crate) fn prepare(&mut self, op: &Op, cuda: &CudaDevice) -> Result<()> {
        op.on_cuda().prepare(cuda)?;
        self.scratch_bytes = self.scratch_bytes.max(op.on_cuda().scratch_bytes(cuda));
        if let Op::When(_) = op {
            self.captures()?;
        }
        Ok(())
    }

    /// Bytes of scratch that prepared operations need.
    pub(crate) fn scratch_bytes(&self) -> usize {
        self.scratch_bytes
    }

    /// Frees scratch memory, and forgets the needs of prepared operations.
    pub(crate) fn free_scratch(&mut self) {
        // Their kernels use it.
        self.whens.clear();
        self.scratch.clear();
        self.scratch_bytes = 0;
    }

    /// Allocates as much scratch memory as prepared operations need, unless the stream has it.
    pub(crate) fn provide_scratch(&mut self, cuda: &CudaDevice) -> Result<()> {
        let needed = self.scratch_bytes;
        if needed > self.scratch.last().map_or(0, |(bytes, _)| *bytes) {
            let out_of_memory = || cuda.out_of_memory("scratch of a stream", needed);
            self.scratch.push((needed, DeviceMemory::new(needed)?.ok_or_else(out_of_memory)?));
            cuda.counters.borrow_mut().allocations += 1;
        }
        Ok(())
    }

    pub(crate) fn run(&mut self, op: &Op, cuda: &CudaDevice, capturing: bool) -> Result<()> {
        let needed = op.on_cuda().scratch_bytes(cuda);
        let have = self.scratch.last().map_or(0, |(bytes, _)| *bytes);
        if needed > have && capturing {
            let problem = format!("needs {needed} bytes of scratch, the stream has {have}, and none can be allocated");
            return Err(Error::operation(op.name(), format!("{problem} while it captures. Fix: a warm-up step")));
        }
        if needed > have {
            self.scratch_bytes = self.scratch_bytes.max(needed);
            self.provide_scratch(cuda)?;
        }
        let scratch = self.scratch.last().map_or(0, |(_, block)| block.address());
        let raw = self.raw()?;
        cuda.counters.borrow_mut().eager_operations += 1;
        let queue = Queue { kernels: &cuda.kernels, stream: &raw, scratch };
        match op {
            Op::When(when) if capturing => when::add_to_capture(when, cuda, &queue, self.captures()?),
            Op::When(when) => self.run_when(when, cuda, &queue),
            op => op.on_cuda().launch(cuda, &queue),
        }
    }

    /// The stream that captures the bodies of `when`s.
    fn captures(&self) -> Result<&RawStream> {
        if let Some(captures) = self.captures.get() {
            return Ok(captures);
        }
        let captures = RawStream::new(self.priority)?;
        Ok(self.captures.get_or_init(|| captures))
    }

    /// Runs an operation outside of a graph: as a graph of its own. The next run of the same operation launches the same
    /// graph, unless its body has a custom operation. Such an operation may hold memory and the device, and here would
    /// hold them as long as the stream lives.
    fn run_when(&mut self, when: &When, cuda: &CudaDevice, queue: &Queue<'_>) -> Result<()> {
        let (when, graph) = match self.whens.take(when) {
            Some(known) => known,
            None => {
                queue.stream.begin_capture(CaptureMode::ThreadLocal)?;
                if let Err(error) = when::add_to_capture(when, cuda, queue, self.captures()?) {
                    queue.stream.abandon_capture();
                    return Err(error);
                }
                (when.clone(), RawGraph::end_capture(queue.stream, &cuda.kernels)?)
            }
        };
        graph.launch(queue.stream)?;
        if !when.has_custom() {
            self.whens.keep(when, graph);
        }
        Ok(())
    }

    pub(crate) fn record(&self, event: Rc<RawEvent>) -> Result<Rc<RawEvent>> {
        self.raw()?.record(&event)?;
        Ok(event)
    }

    /// Copies a part of device memory to a block of the host, from its byte `at` on.
    pub(crate) fn copy_out(&self, part: &Tensor, block: &HostBlock, at: usize) -> Result<()> {
        self.raw()?.copy_out((block, at), part.address, part.bytes())
    }

    /// A new event after all work so far.
    pub(crate) fn mark(&self) -> Result<RawEvent> {
        let event = RawEvent::new()?;
        self.raw()?.record(&event)?;
        Ok(event)
    }

    /// Copies through pinned memory: the host does not wait, and the caller's data need not live on.
    pub(crate) fn write<T: Element>(&mut self, tensor: &Tensor, data: &[T], cuda: &CudaDevice) -> Result<()> {
        let raw = self.raw()?;
        let ring = self.outgoing.entry(tensor.address).or_default();
        let bytes = size_of_val(data);
        let reused = (ring.len() == COPIES).then(|| ring.pop_front()).flatten();
        if let Some((_, event)) = &reused {
            // Also if the block is too small and dropped: a copy may still read it.
            cuda.wait_for(event)?;
        }
        let (mut block, event) = match reused.filter(|(block, _)| block.bytes() >= bytes) {
            Some(reused) => reused,
            None => {
                cuda.counters.borrow_mut().allocations += 1;
                (HostBlock::locked(bytes)?, RawEvent::new()?)
            }
        };
        block.fill(data);
        raw.copy_in(tensor.address, (&block, 0), bytes)?;
        raw.record(&event)?;
        ring.push_back((block, event));
        Ok(())
    }

    /// Copies columns of an array, from page-locked memory without a copy on the host, from other memory as
    /// [`CudaStream::write`]. The array is held until a read-back that was submitted after the copy has arrived.
    pub(crate) fn send<T: Element>(
        &mut self,
        tensor: &Tensor,
        data: &HostArray<T>,
        columns: ArrayColumns,
        cuda: &CudaDevice,
    ) -> Result<()> {
        let Some(block) = data.pinned() else { return self.write(tensor, &columns.of(data), cuda) };
        let raw = self.raw()?;
        while self.sending.front().is_some_and(|(begun, _)| *begun < self.arrived.get()) {
            self.sending.pop_front();
        }
        let bytes = |values: usize| values * size_of::<T>();
        if columns.is_all() {
            raw.copy_in(tensor.address, (block, 0), tensor.bytes())?;
        } else {
            let ArrayColumns { rows, width, first, count } = columns;
            raw.copy_rows_in(tensor.address, block, (bytes(first), bytes(width)), (rows, bytes(count)))?;
        }
        self.sending.push_back((self.begun, data.hold()));
        Ok(())
    }

    pub(crate) fn read(&mut self, tensor: &Tensor, cuda: &CudaDevice) -> Result<PendingCopy> {
        let raw = self.raw()?;
        let ring = self.incoming.entry(tensor.address).or_default();
        // A copy that nobody waits for any more.
        let free = ring.iter().position(|copy| Rc::strong_count(copy) == 1 && copy.bytes() >= tensor.bytes());
        let copy = match free.and_then(|at| ring.remove(at)) {
            Some(copy) => copy,
            None => {
                cuda.counters.borrow_mut().allocations += 1;
                Rc::new(CopyToHost::new(tensor.bytes(), self.arrived.clone())?)
            }
        };
        self.begun += 1;
        copy.start(&raw, tensor.address, tensor.bytes(), self.begun)?;
        ring.push_back(copy.clone());
        Ok(PendingCopy { copy, count: tensor.elements(), counters: cuda.counters.clone() })
    }
}
