//! A stage's two ends of the transfers in one direction: one receives, one sends.

use std::rc::Rc;

use device::{Communicator, Device, Event, Tensor};
use graph_manager::{Result, SideStream};

/// The transfers of one direction. The first stage receives no activations, the last one sends none, and so on.
#[derive(Default)]
pub(super) struct Link {
    pub(super) receive: Option<ReceiveEnd>,
    pub(super) send: Option<SendEnd>,
}

/// Where values of the neighbour arrive.
pub(super) struct ReceiveEnd {
    /// `forward` or `backward`.
    pub(super) name: &'static str,
    pub(super) communicator: Rc<dyn Communicator>,
    pub(super) side: Rc<SideStream>,
    pub(super) buffers: Vec<Tensor>,
    /// Recorded when the values are in the buffer; one event for each buffer.
    pub(super) received: Vec<Event>,
}

/// Where values leave for the neighbour.
pub(super) struct SendEnd {
    pub(super) communicator: Rc<dyn Communicator>,
    pub(super) side: Rc<SideStream>,
    pub(super) buffer: Tensor,
}

impl Link {
    /// Makes the ends that have a communicator. `buffers` is the number of receive buffers.
    ///
    /// # Errors
    /// Out of memory.
    pub(super) fn new(
        device: &Device,
        name: &'static str,
        (receive, buffers): (Option<Rc<dyn Communicator>>, usize),
        send: Option<Rc<dyn Communicator>>,
        buffer: &mut impl FnMut(&str) -> Result<Tensor>,
    ) -> Result<Link> {
        let mut link = Link::default();
        if let Some(communicator) = receive {
            link.receive = Some(ReceiveEnd {
                name,
                communicator,
                buffers: (0..buffers).map(|_| buffer(&format!("{name} receive buffer"))).collect::<Result<_>>()?,
                received: (0..buffers).map(|_| device.event()).collect(),
                side: SideStream::new(device, &format!("{name} in")),
            });
        }
        if let Some(communicator) = send {
            link.send = Some(SendEnd {
                communicator,
                buffer: buffer(&format!("{name} send buffer"))?,
                side: SideStream::new(device, &format!("{name} out")),
            });
        }
        Ok(link)
    }
}
