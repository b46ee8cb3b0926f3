//! Data-parallel sync: buckets of `main_grad` are summed over ranks on a side stream while backward goes on.
//!
//! A bucket is complete when the backward of its first layer has run. The next backward region forks the side stream at
//! its start and reduces the bucket there. The bucket that the last backward completes is reduced in a region of its own,
//! which waits for all of them. Where layers have graphs of their own, each region joins what it forked, because no work
//! may go on past the end of a graph.
//!
//! Gradients travel in f32, or in bf16 for half the traffic. In bf16 a bucket is rounded into a buffer, summed there, and
//! copied back, all on the side stream.
//!
//! With a distributed optimizer each rank receives the sum of its own part of the bucket (reduce-scatter). After the update
//! all ranks receive the new weights of all parts (all-gather). The bucket of the first layer is gathered right after the
//! update. All others are gathered from the step's beginning on, one after the other, and each layer's first forward waits for its own.
//! So a stage of a pipeline has its weights by the time that its first input comes. Where layers have graphs of their own, and
//! where buckets share buffers that they are gathered in, each forward region of the first microbatch forks at its start, gathers the
//! bucket that the next layer begins, and joins at its end.

use std::collections::HashSet;
use std::rc::Rc;

use device::ops::{Collective, CollectiveKind, Copy, Fill, MakeScale, Quantize};
use device::{Area, Communicator, DType, Device, Event, Op, Tensor};
use graph_manager::{Fork, Result, SideStream};

use crate::layer_partition::StageLayers;
use crate::params::{BucketMemory, OptimizerShard, OwnedQuantized, Params, QuantizedPart};
use crate::step_policy::StepContext;

/// Reduces gradients over the data-parallel ranks, and gathers the weights that each of them updated.
pub struct DataParallelSync {
    communicator: Rc<dyn Communicator>,
    side: Rc<SideStream>,
    buckets: Vec<BucketMemory>,
    shard: OptimizerShard,
    /// Where gradients are summed if that is not done in f32: flat, as large as the largest bucket. The side stream uses it
    /// for one bucket after the other.
    rounded: Option<Tensor>,
    _areas: Vec<Area>,
    /// The numbers of the layers on this rank, in the order of forward.
    layers: Vec<usize>,
    /// By position in `layers`: its buckets are gathered.
    gathered: Vec<Event>,
    /// Buckets are gathered in memory that several of them share.
    shares_buffers: bool,
}

impl DataParallelSync {
    /// Syncs the buckets of all parameters, on a side stream of its own. `layers` are the layers on this rank. `travels` is
    /// the type in which gradients are summed: f32 or bf16.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(
        device: &Device,
        communicator: Rc<dyn Communicator>,
        params: &Params,
        layers: &StageLayers,
        travels: DType,
    ) -> Result<DataParallelSync> {
        let (buckets, shard): (Vec<BucketMemory>, _) = (params.buckets().collect(), params.optimizer_shard());
        let layers: Vec<usize> = layers.chunks.iter().cloned().flatten().collect();
        let gathered = layers.iter().map(|_| device.event()).collect();
        let starts: HashSet<u64> = buckets.iter().map(|bucket| bucket.weights.address).collect();
        let shares_buffers = starts.len() < buckets.len();
        let mut areas = Vec::new();
        let mut rounded = None;
        if travels != DType::F32 {
            let largest = buckets.iter().map(|bucket| bucket.grads.elements()).max().unwrap_or(0);
            rounded = Some(device.allocate_tensor(&mut areas, "rounded gradients", [largest], travels)?);
        }
        let side = SideStream::new(device, "data parallel");
        Ok(DataParallelSync {
            communicator,
            side,
            buckets,
            shard,
            rounded,
            _areas: areas,
            layers,
            gathered,
            shares_buffers,
        })
    }

    /// The layer of this rank that comes after `layer` in forward, and so before it in backward.
    fn after(&self, layer: usize) -> Option<usize> {
        let at = self.layers.iter().position(|&here| here == layer)?;
        self.layers.get(at + 1).copied()
    }

    /// Starts to reduce the buckets that the previous backward region completed. It is called at the start of the backward
    /// region of `layer`.
    ///
    /// # Errors
    /// A failed collective.
    pub fn start(&self, cx: &mut StepContext<'_>, layer: usize) -> Result<Fork> {
        self.reduce(cx, self.after(layer), &[])
    }

    /// Reduces the buckets that the last backward completed, and other small sums such as the loss, and joins all reductions.
    ///
    /// # Errors
    /// A failed collective.
    pub fn finish(&self, cx: &mut StepContext<'_>, others: &[Tensor]) -> Result<()> {
        let last = self.reduce(cx, self.layers.first().copied(), others)?;
        cx.join(last)
    }

    /// Sums one tensor over the ranks, and joins.
    ///
    /// # Errors
    /// A failed collective.
    pub fn sum(&self, cx: &mut StepContext<'_>, tensor: Tensor) -> Result<()> {
        let sum = self.reduce(cx, None, &[tensor])?;
        cx.join(sum)
    }

    /// Starts to gather the buckets that the layer after `layer` is the first to read. It is called inside the forward
    /// region of `layer` for the first microbatch, which joins the fork at its end.
    ///
    /// # Errors
    /// A failed collective.
    pub fn gather_next(&self, cx: &mut StepContext<'_>, layer: usize) -> Result<Fork> {
        self.gather(cx, self.after(layer))
    }

    /// Whether weights are gathered: each rank updates a part of them.
    pub fn gathers(&self) -> bool {
        self.shard.is_part()
    }

    /// Whether all weights are gathered from the beginning of a step on.
    pub fn gathers_ahead(&self, cx: &StepContext<'_>) -> bool {
        self.gathers() && !self.shares_buffers && !cx.policy().captures_layers()
    }

    /// Starts to gather all buckets but those of the first layer, in the order of layers.
    ///
    /// # Errors
    /// A failed collective.
    pub fn gather_all(&self, cx: &mut StepContext<'_>) -> Result<()> {
        for (&layer, gathered) in self.layers.iter().zip(&self.gathered).skip(1) {
            self.gather(cx, Some(layer))?.leave_until(gathered)?;
        }
        Ok(())
    }

    /// Makes what follows wait until the buckets that `layer` is the first to read are gathered.
    ///
    /// # Errors
    /// A failed collective.
    pub fn wait_for(&self, cx: &mut StepContext<'_>, layer: usize) -> Result<()> {
        let has_buckets = self.buckets.iter().any(|bucket| bucket.layer == layer);
        match self.layers.iter().position(|&here| here == layer).filter(|_| has_buckets) {
            // Those of the first layer were gathered after the last update.
            Some(0) | None => Ok(()),
            Some(at) => cx.wait(&self.gathered[at]),
        }
    }

    /// Gathers the buckets of the first layer, right after the update. No forward comes before it that could overlap with
    /// the gather.
    ///
    /// # Errors
    /// A failed collective.
    pub fn gather_first(&self, cx: &mut StepContext<'_>) -> Result<()> {
        let first = self.gather(cx, self.layers.first().copied())?;
        cx.join(first)
    }

    fn gather(&self, cx: &mut StepContext<'_>, layer: Option<usize>) -> Result<Fork> {
        let of_layer = self.buckets.iter().filter(|bucket| self.shard.is_part() && Some(bucket.layer) == layer);
        let transfers = |bucket: &BucketMemory| {
            let gather = Collective {
                kind: CollectiveKind::AllGather,
                communicator: self.communicator.clone(),
                input: bucket.owned_weights,
                output: bucket.weights,
            };
            let quantized = bucket.quantized.iter().flat_map(|part| self.quantization(cx, part));
            quantized.chain([gather.into()]).collect::<Vec<Op>>()
        };
        let work: Vec<Op> = of_layer.flat_map(transfers).collect();
        cx.fork(&self.side, work)
    }

    /// The operations that quantise this rank's part of a bucket, with the scales of the whole weights.
    fn quantization(&self, cx: &StepContext<'_>, part: &QuantizedPart) -> Vec<Op> {
        let scale = |weight: &OwnedQuantized| -> Op {
            let scale = weight.fp8.rows.scale.tensor();
            match weight.owned {
                Some((source, copy)) => MakeScale { source, dtype: copy.values.dtype, scale, keep_known: false }.into(),
                None => Fill { output: scale, value: 0.0 }.into(),
            }
        };
        let agree = Collective::in_place(CollectiveKind::AllReduceMax, self.communicator.clone(), part.scales);
        let quantize = |weight: &OwnedQuantized| {
            let Some((source, copy)) = weight.owned else { return Vec::new() };
            let quantize =
                Quantize { source, rows: Some(copy), columns: None, amax: None, sums: None, accumulate: false };
            let count = weight.fp8.counts.weight.counting(cx, source, copy);
            [quantize.into()].into_iter().chain(count.map(Op::from)).collect()
        };
        let scales = part.weights.iter().map(scale);
        scales.chain([agree.into()]).chain(part.weights.iter().flat_map(quantize)).collect()
    }

    fn reduce(&self, cx: &mut StepContext<'_>, layer: Option<usize>, others: &[Tensor]) -> Result<Fork> {
        let buckets = self.buckets.iter().filter(|bucket| Some(bucket.layer) == layer);
        let sum = |&tensor: &Tensor| {
            Op::from(Collective::in_place(CollectiveKind::AllReduceSum, self.communicator.clone(), tensor))
        };
        cx.fork(&self.side, buckets.flat_map(|bucket| self.reduction(bucket)).chain(others.iter().map(sum)))
    }

    /// The operations that sum a bucket over the ranks. With a distributed optimizer this rank receives the sum of its own
    /// part only.
    fn reduction(&self, bucket: &BucketMemory) -> Vec<Op> {
        let grads = bucket.grads;
        let input = self.rounded.map_or(grads, |rounded| rounded.view(0, [grads.elements()]));
        let output = self.shard.of(input);
        let kind = if self.shard.is_part() { CollectiveKind::ReduceScatterSum } else { CollectiveKind::AllReduceSum };
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
