//! Data-parallel sync: buckets of `main_grad` are summed over ranks after the last microbatch's backward.
//!
//! Gradients travel in f32, or in bf16 for half the traffic. In bf16 a bucket is rounded into a buffer, summed there, and
//! copied back.
//!
//! With a distributed optimizer each rank receives the sum of its own part of the bucket (reduce-scatter). After the update
//! all ranks receive the new weights of all parts (all-gather). The bucket of the first layer is gathered right after the
//! update, each other one in the next step, by the forward of the layer that is the first to read it.
//!
//! When these transfers begin is the business of a [pass](crate::passes).

use std::collections::HashSet;
use std::rc::Rc;

use device::ops::{Collective, CollectiveKind, Copy, Fill, MakeScale, Quantize};
use device::{Area, Communicator, DType, Device, Op, Tensor};
use graph_manager::Result;

use crate::layer_partition::StageLayers;
use crate::params::{BucketMemory, OptimizerShard, OwnedQuantized, Params, QuantizedPart};
use crate::step_policy::StepContext;

/// Reduces gradients over the data-parallel ranks, and gathers the weights that each of them updated.
pub struct DataParallelSync {
    communicator: Rc<dyn Communicator>,
    buckets: Vec<BucketMemory>,
    shard: OptimizerShard,
    /// The buffer for sums of gradients if that is not done in f32: flat, as large as the largest bucket. One bucket
    /// after the other has it.
    rounded: Option<Tensor>,
    _areas: Vec<Area>,
    /// The numbers of the layers on this rank, in the order of forward.
    layers: Vec<usize>,
    /// Buckets are gathered in memory that several of them share.
    shares_buffers: bool,
}

impl DataParallelSync {
    /// Syncs the buckets of all parameters. `layers` are the layers on this rank. `travels` is the type that gradients
    /// are summed in: f32 or bf16.
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
        let starts: HashSet<u64> = buckets.iter().map(|bucket| bucket.weights.address).collect();
        let shares_buffers = starts.len() < buckets.len();
        let mut areas = Vec::new();
        let mut rounded = None;
        if travels != DType::F32 {
            let largest = buckets.iter().map(|bucket| bucket.grads.elements()).max().unwrap_or(0);
            rounded = Some(device.allocate_tensor(&mut areas, "rounded gradients", [largest], travels)?);
        }
        Ok(DataParallelSync { communicator, buckets, shard, rounded, _areas: areas, layers, shares_buffers })
    }

    /// The layers of this rank, in the order of forward.
    pub fn layers(&self) -> &[usize] {
        &self.layers
    }

    /// The ranks.
    pub fn communicator(&self) -> &Rc<dyn Communicator> {
        &self.communicator
    }

    /// Whether buckets are gathered in memory that several of them share.
    pub fn shares_buffers(&self) -> bool {
        self.shares_buffers
    }

    /// The operation that sums a tensor over the ranks.
    pub fn sum(&self, tensor: Tensor) -> Op {
        Collective::in_place(CollectiveKind::AllReduceSum, self.communicator.clone(), tensor).into()
    }

    /// The operations that gather the buckets that `layer` is the first to read. None if each rank updates all weights.
    pub fn gather(&self, cx: &StepContext<'_>, layer: usize) -> Vec<Op> {
        let of_layer = self.buckets.iter().filter(|bucket| self.shard.is_part() && bucket.layer == layer);
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
        of_layer.flat_map(transfers).collect()
    }

    /// The operations that sum the buckets that the backward of `layer` completes.
    pub fn reduce(&self, layer: usize) -> Vec<Op> {
        let of_layer = self.buckets.iter().filter(|bucket| bucket.layer == layer);
        of_layer.flat_map(|bucket| self.reduction(bucket)).collect()
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
