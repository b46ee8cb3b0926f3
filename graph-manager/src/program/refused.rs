//! Mistakes for which a list is refused.

use device::{BufferId, Device, StreamId};

use crate::error::Error;

/// Mistakes for which a list is refused.
pub(super) enum Refused {
    /// An operation of a captured region, on a stream that the graph would not include.
    LeftOut(&'static str, StreamId),
    /// A copy between host and device, by name.
    HostCopy(&'static str, BufferId),
    /// A wait for an event that was not recorded in the step.
    UnknownEvent(StreamId),
    /// A call of the host in a region that becomes a graph.
    HostCall(&'static str),
    /// The use of a buffer of a body of `when` by other work, named here.
    LeftBody(&'static str, BufferId),
    /// An operation other than a move, named here, that uses a buffer of the host.
    OnHost(&'static str, BufferId),
    /// A buffer that an operation, named here, may leave without values.
    Unwritten(&'static str, BufferId),
}

impl Refused {
    /// The error for the mistake, with the mistake's region.
    pub(super) fn error(&self, device: &Device, region: String) -> Error {
        match self {
            Refused::LeftOut(operation, stream) => {
                Error::LeftOut { region, operation, stream: device.stream_name(*stream).to_string() }
            }
            Refused::HostCopy(name, buffer) => {
                let call = format!("Stream::{name} of `{}`", device.buffer_name(*buffer));
                Error::Device { region, source: device::Error::Recording { call } }
            }
            Refused::UnknownEvent(stream) => {
                let stream = device.stream_name(*stream);
                let problem =
                    format!("{region}: stream `{stream}` waits for an event that the step has not recorded before");
                Error::usage(problem, "wait before the step, or record the event within it")
            }
            Refused::LeftBody(name, buffer) => {
                let buffer = device.buffer_name(*buffer);
                let problem = format!(
                    "{region}: {name} uses `{buffer}`, which belongs to the body of a `when` and has no values if that \
                     does not run"
                );
                Error::usage(problem, "take it with StepContext::tensor, and give it values before")
            }
            Refused::Unwritten(name, buffer) => {
                let buffer = device.buffer_name(*buffer);
                let problem = format!(
                    "{region}: {name} writes `{buffer}`, which nothing has written before: if its body does not run, the \
                     buffer has no values"
                );
                Error::usage(problem, "write it before, or take it with WhenBody::tensor if only the body uses it")
            }
            Refused::OnHost(name, buffer) => {
                let source = device::Error::on_host(name, &device.buffer_name(*buffer));
                Error::Device { region, source }
            }
            Refused::HostCall(name) => {
                let problem =
                    format!("{region}: it becomes a graph, and calls the host (`{name}`): a replay would not");
                Error::usage(problem, "have Policy::captured leave the region out of graphs")
            }
        }
    }
}
