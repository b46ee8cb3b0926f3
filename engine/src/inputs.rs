//! A step's inputs and targets: on the host, in device memory, and where a microbatch's slot has them.

use device::ops::{Copy, SampleRecord, WriteSampleRecord};
use device::{Area, Batch, DType, Device, Shape, Stream, Tensor};
use graph_manager::Result;
use parallel::Task;

use crate::layer_partition::StageLayers;
use crate::model::{Hidden, Model};
use crate::pipeline::Transfers;
use crate::regions::Region;
use crate::step_policy::StepContext;

/// Where a stage has a step's inputs and targets, if it needs them.
pub(crate) struct Inputs {
    /// `(microbatches, ...)`, on the stage that takes them.
    inputs: Option<Tensor>,
    /// `(microbatches, ...)`, on the stage that makes the losses.
    targets: Option<Tensor>,
    /// Shape and type of a microbatch's, as layers have them.
    of_microbatch: [(Shape, DType); 2],
    /// u8, a `Control`.
    control: Tensor,
    micro_batch_size: usize,
    _areas: Vec<Area>,
}

impl Inputs {
    /// Allocates what the stage with these layers needs for steps of up to so many microbatches.
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn new(
        device: &Device,
        model: &Model,
        layers: &StageLayers,
        control: Tensor,
        microbatches: usize,
        micro_batch_size: usize,
    ) -> Result<Inputs> {
        let mut areas = Vec::new();
        let mut stack = |name: &str, here: bool, (shape, dtype): (Shape, DType)| -> Result<Option<Tensor>> {
            if !here {
                return Ok(None);
            }
            let (sizes, dtype) = ([&[microbatches], shape.sizes()].concat(), on_host(dtype));
            Ok(Some(device.allocate_tensor(&mut areas, name, Shape::new(&sizes), dtype)?))
        };
        Ok(Inputs {
            inputs: stack("inputs", layers.has_first(), model.inputs)?,
            targets: stack("targets", layers.has_last(), model.targets)?,
            of_microbatch: [model.inputs, model.targets],
            control,
            micro_batch_size,
            _areas: areas,
        })
    }

    /// Zeros all of them.
    ///
    /// # Errors
    /// What the device refused.
    pub(crate) fn clear(&self, device: &Device) -> Result<()> {
        [self.inputs, self.targets].iter().flatten().try_for_each(|tensor| Ok(device.zero(tensor)?))
    }

    /// Bytes of each buffer.
    pub(crate) fn bytes(&self) -> impl Iterator<Item = usize> {
        [self.inputs, self.targets].into_iter().flatten().map(|tensor| tensor.bytes())
    }

    /// Copies to the device what the stage needs of a step's batch.
    ///
    /// # Errors
    /// A batch of another size or kind than the model's.
    pub(crate) fn fill(&self, compute: &Stream, batch: &Batch, microbatches: usize) -> Result<()> {
        let part = |all: Option<Tensor>| all.map(|all| all.narrow(0, microbatches));
        let (inputs, targets) = (part(self.inputs), part(self.targets));
        match batch {
            Batch::Tokens { inputs: tokens, targets: next } => {
                inputs.map_or(Ok(()), |inputs| compute.send(&inputs, tokens))?;
                targets.map_or(Ok(()), |targets| compute.send(&targets, next))?;
            }
            Batch::Rows { inputs: rows, targets: wanted } => {
                inputs.map_or(Ok(()), |inputs| compute.send(&inputs, rows))?;
                targets.map_or(Ok(()), |targets| compute.send(&targets, wanted))?;
            }
        }
        Ok(())
    }

    /// Puts what a chunk's forward takes where the microbatch's slot has it: the step's inputs, or what the stage before
    /// sent. `layer` is the chunk's first.
    ///
    /// # Errors
    /// What the device refused, or a failed transfer.
    pub(crate) fn place(
        &self,
        cx: &mut StepContext<'_>,
        transfers: &mut Transfers<'_>,
        task: Task,
        layer: usize,
    ) -> Result<Hidden> {
        let microbatch = task.microbatch();
        cx.region(Region::Inputs { layer, microbatch }, (), |cx, ()| {
            let [of_inputs, of_targets] = self.of_microbatch;
            let (input, (shape, dtype)) = match (transfers.activations(cx, task)?, self.inputs) {
                (Some(arrived), _) => (arrived, (arrived.shape, arrived.dtype)),
                (None, Some(all)) => (all.at(microbatch), of_inputs),
                (None, None) => unreachable!("a forward begins with inputs or what came in"),
            };
            let x = cx.tensor("inputs", shape, dtype)?;
            let targets = match self.targets.filter(|_| !transfers.sends(task)) {
                Some(all) => Some((all.at(microbatch), cx.tensor("targets", of_targets.0, of_targets.1)?)),
                None => None,
            };
            let record = cx.tensor("record", [size_of::<SampleRecord>()], DType::U8)?;
            cx.run(Copy { input, output: x })?;
            if let Some((input, output)) = targets {
                cx.run(Copy { input, output })?;
            }
            let offset = (microbatch * self.micro_batch_size) as u64;
            cx.run(WriteSampleRecord { control: self.control, offset, record })?;
            Ok(Hidden { x, delta: None, targets: targets.map(|(_, targets)| targets), record })
        })
    }
}

/// The type data have on the host: rows come in f32, whatever the layers compute in.
fn on_host(dtype: DType) -> DType {
    if dtype == DType::Bf16 { DType::F32 } else { dtype }
}
