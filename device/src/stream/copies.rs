//! Copies between host and device in stream order. The calls do not wait.

use super::Stream;
use crate::device::Core;
use crate::dispatch::{DeviceBackend, StreamBackend};
use crate::host_memory::ArrayColumns;
use crate::{
    Accesses, CaptureRule, Element, Error, HostArray, HostCopy, Readback, Result, Staging, Tensor, TraceEvent,
};

impl Stream {
    /// Copies host data to a tensor, in stream order, without blocking. `data` may be changed as soon as this returns.
    ///
    /// # Errors
    /// [`CaptureRule::Synchronization`] while this stream captures: a graph would repeat the same host data forever.
    pub fn write<T: Element>(&self, tensor: &Tensor, data: &[T]) -> Result<()> {
        self.copy_in::<T>(tensor, data.len(), |stream, device| stream.write(tensor, data, device))
    }

    /// Copies columns of an array on the host to a tensor, in stream order, without blocking. The array is a matrix of
    /// rows of `width` values, as many rows as the tensor has. The columns begin with `first`, and are as many as the
    /// tensor's last axis is long. An array in page-locked memory is not copied on the host.
    ///
    /// # Errors
    /// As [`Stream::write`]; an array of another size, or without these columns.
    pub fn send_columns<T: Element>(
        &self,
        tensor: &Tensor,
        data: &HostArray<T>,
        width: usize,
        first: usize,
    ) -> Result<()> {
        let (rows, count) = (tensor.shape.rows(), tensor.shape.last());
        if width * rows != data.len() {
            let problem = format!("{} {} for {rows} rows of {width}", data.len(), T::DTYPE);
            return Err(Error::operation("write", problem));
        }
        if first + count > width {
            let problem = format!("columns {first}..{} of rows of {width}", first + count);
            return Err(Error::operation("write", problem));
        }
        let columns = ArrayColumns { rows, width, first, count };
        self.copy_in::<T>(tensor, tensor.elements(), |stream, device| stream.send(tensor, data, columns, device))
    }

    fn copy_in<T: Element>(
        &self,
        tensor: &Tensor,
        elements: usize,
        copy: impl FnOnce(&mut StreamBackend, &DeviceBackend) -> Result<()>,
    ) -> Result<()> {
        self.device.check_image::<T>("write", tensor, elements)?;
        let mut core = self.device.core_for(|| format!("Stream::write of a tensor {:?}", tensor.shape))?;
        let core = &mut *core;
        let accesses = Accesses::new([], [*tensor]);
        if self.is_noted(core, "write", &accesses)? {
            return Ok(());
        }
        self.refuse_copy(core, "Stream::write to", tensor)?;
        self.refuse_outside(core, "write")?;
        core.check_live("write", tensor)?;
        if let Some(checker) = &mut core.checker {
            checker.operation(self.id, &"write".into(), &accesses, &core.buffers)?;
        }
        let (label, before) = (core.label("write"), core.counted());
        let stream = &mut core.streams[self.id.index()];
        let _note = core.recorder.operation(&stream.name, &label, None, false);
        copy(&mut stream.backend, &core.backend)?;
        core.hindered_since(before, || format!("a copy to `{}`", core.buffer_name(tensor.buffer)))
    }

    /// Copies a tensor to the host, in stream order. [`Readback::wait`] returns the values; there are none of a copy that was
    /// recorded.
    ///
    /// # Errors
    /// [`CaptureRule::Synchronization`] while this stream captures; a checker's finding.
    pub fn read<T: Element>(&self, tensor: &Tensor) -> Result<Readback<T>> {
        self.device.check_image::<T>("read", tensor, tensor.elements())?;
        let mut core = self.device.core_for(|| format!("Stream::read of a tensor {:?}", tensor.shape))?;
        let core = &mut *core;
        let accesses = Accesses::new([*tensor], []);
        if self.is_noted(core, "read", &accesses)? {
            let call = || format!("Readback::wait for `{}`, which was read", core.buffer_name(tensor.buffer));
            return Ok(match core.trace {
                Some(_) => Readback::recorded(call(), core.sync_watch()),
                None => Readback::arrived(vec![T::zeroed(); tensor.elements()], core.sync_watch()),
            });
        }
        self.refuse_copy(core, "Stream::read of", tensor)?;
        self.refuse_outside(core, "read")?;
        core.check_live("read", tensor)?;
        if let Some(checker) = &mut core.checker {
            checker.operation(self.id, &"read".into(), &accesses, &core.buffers)?;
        }
        let (label, before, watch) = (core.label("read"), core.counted(), core.sync_watch());
        let stream = &mut core.streams[self.id.index()];
        let _note = core.recorder.operation(&stream.name, &label, None, false);
        let readback = stream.backend.read(tensor, &core.backend, watch)?;
        core.hindered_since(before, || format!("a copy from `{}`", core.buffer_name(tensor.buffer)))?;
        Ok(readback)
    }

    /// Copies tensors to the host, in stream order, without waiting. The copy goes to free blocks of `staging`, of the sizes
    /// that [`copy_blocks`](crate::copy_blocks) tells. Where none is free it goes to ordinary memory; on a GPU that blocks
    /// the host.
    ///
    /// # Errors
    /// [`Error::Recording`]; [`CaptureRule::Synchronization`] while this stream captures; a checker's finding.
    pub fn copy_out(&self, tensors: &[Tensor], staging: &Staging) -> Result<HostCopy> {
        let mut core = self.device.core_for(|| "Stream::copy_out".into())?;
        let core = &mut *core;
        core.refuse_while_recording(|| "Stream::copy_out".into())?;
        tensors.iter().try_for_each(|tensor| self.refuse_copy(core, "Stream::copy_out of", tensor))?;
        self.refuse_outside(core, "copy_out")?;
        if core.dry {
            return Ok(HostCopy::empty());
        }
        let label = core.label("copy_out");
        for tensor in tensors {
            let accesses = Accesses::new([*tensor], []);
            core.check_owns("copy_out", &accesses)?;
            core.check_live("copy_out", tensor)?;
            if let Some(checker) = &mut core.checker {
                checker.operation(self.id, &label, &accesses, &core.buffers)?;
            }
        }
        let stream = &mut core.streams[self.id.index()];
        let _note = core.recorder.operation(&stream.name, &label, None, false);
        HostCopy::begin(tensors, staging, &mut stream.backend)
    }

    /// Fails, and spoils the capture, if this stream captures.
    fn refuse_copy(&self, core: &mut Core, call: &str, tensor: &Tensor) -> Result<()> {
        if core.streams[self.id.index()].capture.is_none() {
            return Ok(());
        }
        core.refuse_during_capture(CaptureRule::Synchronization, |core| {
            format!("{call} `{}` passes values between host and device", core.buffer_name(tensor.buffer))
        })
    }

    /// Whether a copy is only noted, or left out in dry mode.
    fn is_noted(&self, core: &mut Core, name: &'static str, accesses: &Accesses) -> Result<bool> {
        core.check_owns(name, accesses)?;
        if let Some(trace) = &mut core.trace {
            trace.push(TraceEvent::HostCopy { stream: self.id, name, accesses: accesses.clone() });
            return Ok(true);
        }
        Ok(core.dry)
    }
}
