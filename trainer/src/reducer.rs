//! Data-parallel gradient reduction: buckets of `main_grad` summed over ranks on a side stream while backward goes on.
//!
//! A bucket is complete when the backward of its first layer has run. The backward region that comes next forks the
//! side stream at its start, reduces the bucket there, and joins at its end; what the last backward completes is reduced
//! in a region of its own.

use std::rc::Rc;

use device::ops::{Collective, CollectiveKind};
use device::{Communicator, Event, Stream, Tensor};
use graph_manager::{Error, Result, StepContext};

use crate::params::Params;

/// Reduces gradients over the data-parallel ranks.
pub struct Reducer {
    communicator: Rc<dyn Communicator>,
    stream: Stream,
    fork: Event,
    join: Event,
    buckets: Vec<Bucket>,
}

#[derive(Clone, Copy)]
struct Bucket {
    /// A range of `main_grad`.
    grads: Tensor,
    /// The layer whose backward completes it.
    layer: usize,
}

impl Reducer {
    /// Buckets of at least `bucket_bytes`, in the order backward completes them. Layer 0 has a bucket of its own: with
    /// tied embeddings its backward is the last to write the table.
    pub fn new(
        communicator: Rc<dyn Communicator>,
        stream: Stream,
        params: &Params,
        layers: usize,
        bucket_bytes: usize,
    ) -> Reducer {
        let device = stream.device().clone();
        let mut buckets = Vec::new();
        let mut last = layers - 1;
        for layer in (0..layers).rev() {
            let Some(grads) = params.layer_grads(layer, last) else { continue };
            if grads.bytes() >= bucket_bytes || layer <= 1 {
                buckets.push(Bucket { grads, layer });
                last = layer.saturating_sub(1);
            }
        }
        Reducer { communicator, stream, fork: device.event(), join: device.event(), buckets }
    }

    /// Inside the backward region of `layer`: starts the buckets that the region before completed. Returns whether there
    /// are any, to be joined at the region's end.
    ///
    /// # Errors
    /// A failed collective.
    pub fn start(&self, cx: &StepContext<'_>, layer: usize) -> Result<bool> {
        self.reduce(cx, |bucket| bucket.layer == layer + 1, &[])
    }

    /// The tail: what the last backward completed, and other small sums such as the loss.
    ///
    /// # Errors
    /// A failed collective.
    pub fn finish(&self, cx: &StepContext<'_>, others: &[Tensor]) -> Result<()> {
        if self.reduce(cx, |bucket| bucket.layer == 0, others)? {
            self.join(cx)?;
        }
        Ok(())
    }

    /// Sums one tensor over the ranks and joins.
    ///
    /// # Errors
    /// A failed collective.
    pub fn sum(&self, cx: &StepContext<'_>, tensor: Tensor) -> Result<()> {
        self.reduce(cx, |_| false, &[tensor])?;
        self.join(cx)
    }

    fn reduce(&self, cx: &StepContext<'_>, chosen: impl Fn(&Bucket) -> bool, others: &[Tensor]) -> Result<bool> {
        let tensors = self.buckets.iter().filter(|bucket| chosen(bucket)).map(|bucket| bucket.grads);
        let tensors: Vec<Tensor> = tensors.chain(others.iter().copied()).collect();
        if tensors.is_empty() {
            return Ok(false);
        }
        cx.compute().record(&self.fork).map_err(Error::from)?;
        self.stream.wait(&self.fork)?;
        for tensor in tensors {
            let communicator = self.communicator.clone();
            self.stream.submit(Collective::in_place(CollectiveKind::AllReduceSum, communicator, tensor))?;
        }
        Ok(true)
    }

    /// Makes the compute stream wait for what was started.
    ///
    /// # Errors
    /// A failed collective.
    pub fn join(&self, cx: &StepContext<'_>) -> Result<()> {
        self.stream.record(&self.join)?;
        Ok(cx.compute().wait(&self.join)?)
    }
}
