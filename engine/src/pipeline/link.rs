//! A stage's two ends of the transfers in one direction: one receives, one sends.

use std::rc::Rc;

use device::ops::{Collective, CollectiveKind};
use device::{Communicator, Device, Tensor};
use graph_manager::{Result, SideStream};

use crate::batch_sizes::BatchSizes;
use crate::model::Residual;

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
    communicator: Rc<dyn Communicator>,
    pub(crate) queue: Rc<SideStream>,
    pub(super) buffers: Vec<Tensor>,
    residual: Residual,
}

/// The end that sends values to the neighbour.
pub(crate) struct SendEnd {
    communicator: Rc<dyn Communicator>,
    pub(crate) queue: Rc<SideStream>,
    buffer: Tensor,
    residual: Residual,
}

impl ReceiveEnd {
    /// Receives into the buffer of that number, for a microbatch of `sizes`.
    pub(crate) fn receive(&self, buffer: usize, sizes: BatchSizes) -> Collective {
        let kind = CollectiveKind::Receive { from: 0 };
        let values = self.buffers[buffer].view(0, self.residual.shape(sizes));
        Collective::in_place(kind, self.communicator.clone(), values)
    }
}

impl SendEnd {
    /// Sends the values of a microbatch of `sizes` out of the buffer.
    pub(super) fn send(&self, sizes: BatchSizes) -> Collective {
        let values = self.buffer.view(0, self.residual.shape(sizes));
        Collective::in_place(CollectiveKind::Send { to: 1 }, self.communicator.clone(), values)
    }
}

impl Link {
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
        residual: Residual,
        (receive, buffers): (Option<Rc<dyn Communicator>>, usize),
        send: Option<Rc<dyn Communicator>>,
        buffer: &mut impl FnMut(&str) -> Result<Tensor>,
    ) -> Result<Link> {
        let mut link = Link::default();
        if let Some(communicator) = receive {
            link.receive = Some(ReceiveEnd {
                name,
                communicator,
                residual,
                buffers: (0..buffers).map(|_| buffer(&format!("{name} receive buffer"))).collect::<Result<_>>()?,
                queue: SideStream::new(device, &format!("{name} in")),
            });
        }
        if let Some(communicator) = send {
            link.send = Some(SendEnd {
                communicator,
                residual,
                buffer: buffer(&format!("{name} send buffer"))?,
                queue: SideStream::new(device, &format!("{name} out")),
            });
        }
        Ok(link)
    }
}
