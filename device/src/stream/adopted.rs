//! Streams that other code owns.

#![allow(unsafe_code)]

use std::any::Any;

use super::Stream;
use crate::cuda::StreamHandle;
use crate::dispatch::StreamBackend;
use crate::{Device, Error, Result};

impl Device {
    /// A stream over one that other code owns, such as a `CudaStream` of cudarc (`stream.cu_stream()`). Work of this device
    /// and work that the other code submits to it run in the order of their submission. `owner` is kept as long as the
    /// device: a stream lasts so long.
    ///
    /// The checker knows of no work of the other code. While this stream captures, all work on it becomes a part of the graph.
    ///
    /// # Safety
    /// `handle` is a stream of the driver, a `CUstream`, and is not destroyed before `owner` is dropped.
    ///
    /// # Errors
    /// A host device; the default stream; a stream of another context than the GPU's primary one; a stream that waits for the
    /// default stream (made without `CU_STREAM_NON_BLOCKING`); [`Error::Recording`].
    pub unsafe fn adopt_stream(&self, name: &str, handle: StreamHandle, owner: impl Any) -> Result<Stream> {
        let call = || format!("Device::adopt_stream of `{name}`");
        let mut core = self.core_for(call)?;
        core.refuse_while_recording(call)?;
        let id = core.open_lasting_stream(name);
        let adopted = match &mut core.streams[id.index()].backend {
            StreamBackend::Cuda(stream) => stream.adopt(handle, Box::new(owner)),
            StreamBackend::Host(_) => {
                let problem =
                    format!("`{name}` is a stream of the driver, and this is a host device. Fix: Device::stream");
                Err(Error::operation("adopt_stream", problem))
            }
        };
        if let Err(error) = adopted {
            core.streams.pop();
            return Err(error);
        }
        drop(core);
        Ok(self.stream_named(id))
    }
}
