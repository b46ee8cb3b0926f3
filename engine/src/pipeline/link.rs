//! A stage's two ends of the transfers in one direction: one receives, one sends.

use std::rc::Rc;

use device::ops::{Collective, CollectiveKind};
use device::{Communicator, Device, Shape, Tensor};
use graph_manager::{Result, SideStream};

/// The transfers of one direction. The first stage receives no activations, the last one sends none, and so on.
#[derive(Default)]
pub(crate) struct Link {
    pub(crate) receive: Option<ReceiveEnd>,
    pub(crate) send: Option<SendEnd>,
}

/// The end that receives values from the neighbour.
pub(crate) struct ReceiveEnd {
    /// `forward` or `backward`.
    pub(crate) name: &'static str,
    pub(super) communicator: Rc<dyn Communicator>,
    pub(crate) queue: Rc<SideStream>,
    pub(super) buffers: Vec<Tensor>,
}

/// The end that sends values to the neighbour.
pub(crate) struct SendEnd {
    pub(super) communicator: Rc<dyn Communicator>,
    pub(crate) queue: Rc<SideStream>,
    pub(super) buffer: Tensor,
}

impl ReceiveEnd {
    /// Receives into the buffer of that number.
    pub(crate) fn receive(&self, buffer: usize) -> Collective {
        let kind = CollectiveKind::Receive { from: 0 };
        Collective::in_place(kind, self.communicator.clone(), self.buffers[buffer])
    }
}

impl Link {
    /// The same link for values of another shape, in the first bytes of its buffers.
    pub(super) fn shortened(&self, shape: Shape) -> Link {
        let first = |buffer: &Tensor| buffer.view(0, shape);
        let receive = self.receive.as_ref().map(|end| ReceiveEnd {
            name: end.name,
            communicator: end.communicator.clone(),
            queue: end.queue.clone(),
            buffers: end.buffers.iter().map(first).collect(),
        });
        let send = self.send.as_ref().map(|end| SendEnd {
            communicator: end.communicator.clone(),
            queue: end.queue.clone(),
            buffer: first(&end.buffer),
        });
        Link { receive, send }
    }

    /// The queue of a transfer over this link; `None` for another transfer.
    pub(crate) fn queue_of(&self, transfer: &Collective) -> Option<&Rc<SideStream>> {
        let receive = self.receive.iter().map(|end| (&end.communicator, &end.queue));
        let mut ends = receive.chain(self.send.iter().map(|end| (&end.communicator, &end.queue)));
        let (_, queue) = ends.find(|(communicator, _)| Rc::ptr_eq(communicator, &transfer.communicator))?;
        Some(queue)
    }

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
                queue: SideStream::new(device, &format!("{name} in")),
            });
        }
        if let Some(communicator) = send {
            link.send = Some(SendEnd {
                communicator,
                buffer: buffer(&format!("{name} send buffer"))?,
                queue: SideStream::new(device, &format!("{name} out")),
            });
        }
        Ok(link)
    }
}
