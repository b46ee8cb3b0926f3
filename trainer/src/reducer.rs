//! Data-parallel transfers: buckets of `main_grad` summed over ranks on a side stream while backward goes on.
//!
//! A bucket is complete when the backward of its first layer has run. The backward region that comes next forks the
//! side stream at its start, reduces the bucket there, and joins at its end; what the last backward completes is reduced
//! in a region of its own.
//!
//! With a distributed optimizer each rank gets the sum of its part of the bucket alone (reduce-scatter), and after the
//! update the parts of the new weights go to all (all-gather). The step's first forwards mirror its last backwards: each
//! forks at its start, gathers the bucket that the layer after it begins, and joins at its end; the bucket of the first
//! layer is gathered after the update.

use std::rc::Rc;

use device::ops::{Collective, CollectiveKind};
use device::{Communicator, Event, Stream, Tensor};
use graph_manager::{Error, Result, StepContext};

use crate::buckets::Shard;
use crate::params::{BucketMemory, Params};
use crate::stages::StageLayers;

/// Reduces gradients over the data-parallel ranks, and gathers the weights that each has updated.
pub struct Reducer {
    communicator: Rc<dyn Communicator>,
    stream: Stream,
    fork: Event,
    join: Event,
    buckets: Vec<BucketMemory>,
    shard: Shard,
    /// Numbers of the layers that are here, in the order forward goes through them.
    layers: Vec<usize>,
}

impl Reducer {
    /// For the buckets of all parameters, on a side stream. `layers` are those that are here.
    pub fn new(communicator: Rc<dyn Communicator>, stream: Stream, params: &Params, layers: &StageLayers) -> Reducer {
        let device = stream.device().clone();
        let (buckets, shard) = (params.buckets().collect(), params.shard());
        let layers = layers.chunks.iter().cloned().flatten().collect();
        Reducer { communicator, stream, fork: device.event(), join: device.event(), buckets, shard, layers }
    }

    /// The layer here that forward goes through after this one, and backward before it.
    fn after(&self, layer: usize) -> Option<usize> {
        let at = self.layers.iter().position(|&here| here == layer)?;
        self.layers.get(at + 1).copied()
    }

    /// Whether weights are gathered: other ranks update what this one does not.
    pub fn gathers(&self) -> bool {
        self.shard.is_part()
    }

    /// Inside the backward region of `layer`: starts the buckets that the region before completed. Returns whether there
    /// are any, to be joined at the region's end.
    ///
    /// # Errors
    /// A failed collective.
    pub fn start(&self, cx: &StepContext<'_>, layer: usize) -> Result<bool> {
        self.reduce(cx, self.after(layer), &[])
    }

    /// The tail: what the last backward completed, and other small sums such as the loss.
    ///
    /// # Errors
    /// A failed collective.
    pub fn finish(&self, cx: &StepContext<'_>, others: &[Tensor]) -> Result<()> {
        if self.reduce(cx, self.layers.first().copied(), others)? {
            self.join(cx)?;
        }
        Ok(())
    }

    /// Sums one tensor over the ranks and joins.
    ///
    /// # Errors
    /// A failed collective.
    pub fn sum(&self, cx: &StepContext<'_>, tensor: Tensor) -> Result<()> {
        self.reduce(cx, None, &[tensor])?;
        self.join(cx)
    }

    /// Inside the first microbatch's forward region of `layer`: starts to gather the bucket that the layer after it is the
    /// first to read. Returns whether there is one, to be joined at the region's end.
    ///
    /// # Errors
    /// A failed collective.
    pub fn gather_next(&self, cx: &StepContext<'_>, layer: usize) -> Result<bool> {
        self.gather(cx, self.after(layer))
    }

    /// After the update: gathers the bucket of the first layer, which no forward is left to hide.
    ///
    /// # Errors
    /// A failed collective.
    pub fn gather_first(&self, cx: &StepContext<'_>) -> Result<()> {
        if self.gather(cx, self.layers.first().copied())? {
            self.join(cx)?;
        }
        Ok(())
    }

    fn gather(&self, cx: &StepContext<'_>, layer: Option<usize>) -> Result<bool> {
        let of_layer = self.buckets.iter().filter(|bucket| self.gathers() && Some(bucket.layer) == layer);
        let transfers = of_layer.map(|bucket| Collective {
            kind: CollectiveKind::AllGather,
            communicator: self.communicator.clone(),
            input: self.shard.of(bucket.weights),
            output: bucket.weights,
        });
        self.submit(cx, transfers.collect())
    }

    fn reduce(&self, cx: &StepContext<'_>, layer: Option<usize>, others: &[Tensor]) -> Result<bool> {
        let sum = |tensor| Collective::in_place(CollectiveKind::AllReduceSum, self.communicator.clone(), tensor);
        let reduced =
            self.buckets.iter().filter(|bucket| Some(bucket.layer) == layer).map(|bucket| match self.gathers() {
                false => sum(bucket.grads),
                true => Collective {
                    kind: CollectiveKind::ReduceScatterSum,
                    communicator: self.communicator.clone(),
                    input: bucket.grads,
                    output: self.shard.of(bucket.grads),
                },
            });
        self.submit(cx, reduced.chain(others.iter().copied().map(sum)).collect())
    }

    /// Forks the side stream and submits there; whether there was anything.
    fn submit(&self, cx: &StepContext<'_>, transfers: Vec<Collective>) -> Result<bool> {
        if transfers.is_empty() {
            return Ok(false);
        }
        cx.compute().record(&self.fork).map_err(Error::from)?;
        self.stream.wait(&self.fork)?;
        for transfer in transfers {
            self.stream.submit(transfer)?;
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
