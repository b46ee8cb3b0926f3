//! Data-parallel transfers: buckets of `main_grad` summed over ranks on a side stream while backward goes on.
//!
//! A bucket is complete when the backward of its first layer has run. The backward region that comes next forks the
//! side stream at its start, reduces the bucket there, and joins at its end; what the last backward completes is reduced
//! in a region of its own.
//!
//! Gradients travel as they are, in f32, or rounded to bf16 for half the traffic: a bucket is copied to a buffer, summed
//! there, and copied back, all on the side stream.
//!
//! With a distributed optimizer each rank gets the sum of its part of the bucket alone (reduce-scatter), and after the
//! update the parts of the new weights go to all (all-gather). The step's first forwards mirror its last backwards: each
//! forks at its start, gathers the bucket that the layer after it begins, and joins at its end; the bucket of the first
//! layer is gathered after the update.

use std::rc::Rc;

use device::ops::{Collective, CollectiveKind, Copy};
use device::{Area, Communicator, DType, Device, Op, Tensor};
use graph_manager::{Fork, Result, SideStream};

use crate::layer_partition::StageLayers;
use crate::params::{BucketMemory, Params, Shard};
use crate::step_policy::StepContext;

/// Reduces gradients over the data-parallel ranks, and gathers the weights that each has updated.
pub struct Reducer {
    communicator: Rc<dyn Communicator>,
    side: Rc<SideStream>,
    buckets: Vec<BucketMemory>,
    shard: Shard,
    /// Where gradients that travel in another type are summed, with room for the largest bucket; flat. The side stream
    /// uses it for one bucket after the other.
    rounded: Option<Tensor>,
    _areas: Vec<Area>,
    /// Numbers of the layers that are here, in the order forward goes through them.
    layers: Vec<usize>,
}

impl Reducer {
    /// For the buckets of all parameters, on a side stream of its own. `layers` are those that are here; gradients travel as
    /// `travels`, f32 or bf16.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(
        device: &Device,
        communicator: Rc<dyn Communicator>,
        params: &Params,
        layers: &StageLayers,
        travels: DType,
    ) -> Result<Reducer> {
        let (buckets, shard): (Vec<BucketMemory>, _) = (params.buckets().collect(), params.shard());
        let layers = layers.chunks.iter().cloned().flatten().collect();
        let mut areas = Vec::new();
        let mut rounded = None;
        if travels != DType::F32 {
            let largest = buckets.iter().map(|bucket| bucket.grads.elements()).max().unwrap_or(0);
            rounded = Some(device.allocate_tensor(&mut areas, "rounded gradients", [largest], travels)?);
        }
        let side = SideStream::new(device, "data parallel");
        Ok(Reducer { communicator, side, buckets, shard, rounded, _areas: areas, layers })
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

    /// Inside the backward region of `layer`: starts the buckets that the region before completed, to be joined at
    /// the region's end.
    ///
    /// # Errors
    /// A failed collective.
    pub fn start(&self, cx: &StepContext<'_>, layer: usize) -> Result<Fork> {
        self.reduce(cx, self.after(layer), &[])
    }

    /// The tail: what the last backward completed, and other small sums such as the loss.
    ///
    /// # Errors
    /// A failed collective.
    pub fn finish(&self, cx: &StepContext<'_>, others: &[Tensor]) -> Result<()> {
        cx.join(self.reduce(cx, self.layers.first().copied(), others)?)
    }

    /// Sums one tensor over the ranks and joins.
    ///
    /// # Errors
    /// A failed collective.
    pub fn sum(&self, cx: &StepContext<'_>, tensor: Tensor) -> Result<()> {
        cx.join(self.reduce(cx, None, &[tensor])?)
    }

    /// Inside the first microbatch's forward region of `layer`: starts to gather the bucket that the layer after it is the
    /// first to read, to be joined at the region's end.
    ///
    /// # Errors
    /// A failed collective.
    pub fn gather_next(&self, cx: &StepContext<'_>, layer: usize) -> Result<Fork> {
        self.gather(cx, self.after(layer))
    }

    /// After the update: gathers the bucket of the first layer, which no forward is left to hide.
    ///
    /// # Errors
    /// A failed collective.
    pub fn gather_first(&self, cx: &StepContext<'_>) -> Result<()> {
        cx.join(self.gather(cx, self.layers.first().copied())?)
    }

    fn gather(&self, cx: &StepContext<'_>, layer: Option<usize>) -> Result<Fork> {
        let of_layer = self.buckets.iter().filter(|bucket| self.gathers() && Some(bucket.layer) == layer);
        let transfer = |bucket: &BucketMemory| {
            Op::from(Collective {
                kind: CollectiveKind::AllGather,
                communicator: self.communicator.clone(),
                input: self.shard.of(bucket.weights),
                output: bucket.weights,
            })
        };
        cx.fork(&self.side, of_layer.map(transfer))
    }

    fn reduce(&self, cx: &StepContext<'_>, layer: Option<usize>, others: &[Tensor]) -> Result<Fork> {
        let buckets = self.buckets.iter().filter(|bucket| Some(bucket.layer) == layer);
        let sum = |&tensor: &Tensor| {
            Op::from(Collective::in_place(CollectiveKind::AllReduceSum, self.communicator.clone(), tensor))
        };
        cx.fork(&self.side, buckets.flat_map(|bucket| self.reduction(bucket)).chain(others.iter().map(sum)))
    }

    /// The sum of a bucket over the ranks, or of this rank's part of it.
    fn reduction(&self, bucket: &BucketMemory) -> Vec<Op> {
        let grads = bucket.grads;
        let input = self.rounded.map_or(grads, |rounded| rounded.view(0, [grads.elements()]));
        let output = self.shard.of(input);
        let kind = if self.gathers() { CollectiveKind::ReduceScatterSum } else { CollectiveKind::AllReduceSum };
        let sum = Collective { kind, communicator: self.communicator.clone(), input, output }.into();
        match self.rounded {
            None => vec![sum],
            Some(_) => vec![
                Copy { input: grads, output: input }.into(),
                sum,
                Copy { input: output, output: self.shard.of(grads) }.into(),
            ],
        }
    }
}
