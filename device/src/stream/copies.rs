//! Copies between host and device in stream order, which do not wait.

use std::cell::RefCell;
use std::rc::Rc;

use super::Stream;
use crate::cuda::{Arriving, Counters};
use crate::lane::{Backend, Lane};
use crate::{Accesses, CaptureRule, Element, HostArray, Result, Tensor};

/// A copy to the host under way.
pub struct Readback<T> {
    values: Values<T>,
}

enum Values<T> {
    Here(Vec<T>),
    Arriving { copy: Rc<Arriving>, count: usize, counters: Rc<RefCell<Counters>> },
}

impl<T: Element> Readback<T> {
    pub(crate) fn here(values: Vec<T>) -> Readback<T> {
        Readback { values: Values::Here(values) }
    }

    pub(crate) fn arriving(copy: Rc<Arriving>, count: usize, counters: Rc<RefCell<Counters>>) -> Readback<T> {
        Readback { values: Values::Arriving { copy, count, counters } }
    }

    /// Waits for the copy and returns its values.
    ///
    /// # Errors
    /// What the device met on the way; on the host, nothing.
    pub fn wait(self) -> Result<Vec<T>> {
        match self.values {
            Values::Here(values) => Ok(values),
            Values::Arriving { copy, count, counters } => {
                counters.borrow_mut().metric_waits += 1;
                copy.wait(count)
            }
        }
    }
}

impl Stream {
    /// Copies host data to a tensor, in stream order, without waiting; `data` may be reused at once.
    ///
    /// # Errors
    /// [`CaptureRule::Synchronization`] while this stream captures: a graph would repeat the same host data forever.
    pub fn write<T: Element>(&self, tensor: &Tensor, data: &[T]) -> Result<()> {
        self.copy_in::<T>(tensor, data.len(), |lane, backend| lane.write(tensor, data, backend))
    }

    /// As [`Stream::write`], without a copy on the host where the array is in page-locked memory.
    ///
    /// # Errors
    /// As [`Stream::write`].
    pub fn send<T: Element>(&self, tensor: &Tensor, data: &HostArray<T>) -> Result<()> {
        self.copy_in::<T>(tensor, data.len(), |lane, backend| lane.send(tensor, data, backend))
    }

    fn copy_in<T: Element>(
        &self,
        tensor: &Tensor,
        elements: usize,
        copy: impl FnOnce(&mut Lane, &Backend) -> Result<()>,
    ) -> Result<()> {
        self.device.check_image::<T>("write", tensor, elements)?;
        let mut core = self.device.core();
        let core = &mut *core;
        if core.trace.is_some() || core.dry {
            return Ok(());
        }
        if core.streams[self.id.index()].capture.is_some() {
            return core.refuse_during_capture(CaptureRule::Synchronization, || "host data was copied".into());
        }
        core.check_live("write", tensor)?;
        if let Some(checker) = &mut core.checker {
            let accesses = Accesses::new([], [*tensor]);
            checker.operation(self.id, &"write".into(), &accesses, &core.buffers)?;
        }
        let label = core.label("write");
        let stream = &mut core.streams[self.id.index()];
        let _note = core.recorder.operation(&stream.name, &label, false);
        copy(&mut stream.lane, &core.backend)
    }

    /// Copies a tensor to the host, in stream order. The values are there once the returned copy has been waited for.
    ///
    /// # Errors
    /// [`CaptureRule::Synchronization`] while this stream captures; a checker's finding.
    pub fn read<T: Element>(&self, tensor: &Tensor) -> Result<Readback<T>> {
        self.device.check_image::<T>("read", tensor, tensor.elements())?;
        let mut core = self.device.core();
        let core = &mut *core;
        if core.trace.is_some() || core.dry {
            return Ok(Readback::here(vec![T::zeroed(); tensor.elements()]));
        }
        if core.streams[self.id.index()].capture.is_some() {
            core.refuse_during_capture(CaptureRule::Synchronization, || "data was copied to the host".into())?;
        }
        core.check_live("read", tensor)?;
        if let Some(checker) = &mut core.checker {
            let accesses = Accesses::new([*tensor], []);
            checker.operation(self.id, &"read".into(), &accesses, &core.buffers)?;
        }
        let label = core.label("read");
        let stream = &mut core.streams[self.id.index()];
        let _note = core.recorder.operation(&stream.name, &label, false);
        stream.lane.read(tensor, &core.backend)
    }
}
