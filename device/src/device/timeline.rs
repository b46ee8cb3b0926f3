//! Timelines, from their preparation to their end.

use std::rc::Rc;
use std::time::SystemTime;

use super::Device;
use crate::cuda::Cupti;
use crate::dispatch::{DeviceBackend, Recorder};
use crate::timeline::HostClock;
use crate::{Error, Result, Timeline};

impl Device {
    /// Prepares for timelines. Call it before the first capture: a timeline has the names of operations that are
    /// captured from now on.
    ///
    /// # Errors
    /// On CUDA: CUPTI is missing, or another profiler is attached.
    pub fn prepare_timeline(&self) -> Result<()> {
        let mut core = self.core_for(|| "Device::prepare_timeline".into())?;
        core.recorder = match &core.backend {
            DeviceBackend::Host(_) => Recorder::Host(HostClock::default()),
            DeviceBackend::Cuda(_) => Recorder::Cuda(Rc::new(Cupti::open()?)),
        };
        Ok(())
    }

    /// Waits for all submitted work, then begins a timeline.
    ///
    /// # Errors
    /// [`Device::prepare_timeline`] was not called; as [`Device::synchronize`]; CUPTI's.
    pub fn begin_timeline(&self) -> Result<()> {
        self.synchronize()?;
        let mut core = self.core();
        match &core.recorder {
            Recorder::Off => {
                return Err(Error::operation("timeline", "prepare_timeline() comes before begin_timeline()"));
            }
            Recorder::Host(clock) => clock.begin(),
            Recorder::Cuda(cupti) => cupti.begin()?,
        }
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        core.timeline_began_ns = since_1970.as_nanos() as u64;
        Ok(())
    }

    /// Whether a timeline is being made.
    pub fn is_timed(&self) -> bool {
        self.core().recorder.is_running()
    }

    /// Waits for all submitted work, then ends the timeline and returns it. It is empty if none was begun.
    ///
    /// # Errors
    /// As [`Device::synchronize`]; CUPTI's.
    pub fn end_timeline(&self) -> Result<Timeline> {
        self.synchronize()?;
        let core = self.core();
        let mut spans = match &core.recorder {
            Recorder::Off => Vec::new(),
            Recorder::Host(clock) => clock.end(),
            Recorder::Cuda(cupti) => {
                let named =
                    core.streams.iter().filter_map(|stream| Some((stream.backend.raw_stream()?, &*stream.name)));
                cupti.end(named)?
            }
        };
        spans.sort_by_key(|span| (span.start_ns, std::cmp::Reverse(span.duration_ns)));
        Ok(Timeline { began_ns: core.timeline_began_ns, spans })
    }
}
