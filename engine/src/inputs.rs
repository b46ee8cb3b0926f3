//! A step's samples in device memory, and the inputs and targets that a microbatch takes from them.

use std::ops::Range;

use device::ops::{
    ColumnRange, Copy, CopyColumns, Documents, FurtherTokens, SampleRecord, SequenceShare, WriteSampleRecord,
};
use device::{ALIGNMENT, Area, DType, Device, HostValues, Shape, Stream, Tensor};
use graph_manager::Result;
use parallel::Task;

use crate::batch_sizes::{BatchSizes, sequence_share};
use crate::graph_options::Scope;
use crate::model::{Architecture, Chunk, DocumentColumns, Hidden, Model, Restart, SampleRow, Samples};
use crate::pipeline::Transfers;
use crate::regions::{Mode, Region};
use crate::step_policy::StepContext;

/// The samples of a step, and the inputs and targets that each microbatch takes from them.
pub(crate) struct Inputs {
    /// `None` on a stage that needs neither inputs nor targets.
    samples: Option<StepSamples>,
    row: SampleRow,
    /// The type of inputs and targets in the model.
    dtype: DType,
    /// u8, a `Control`.
    control: Tensor,
    /// Training drops some values.
    drops: bool,
    /// The column of the number of tokens that are no padding, if layers ask for that number.
    real: Option<usize>,
    /// See [`Model::further_tokens`].
    further_tokens: usize,
    /// The tokens of a sample that this rank has.
    sequence: SequenceShare,
    /// `(microbatches, results of a microbatch's pairs)`, f32: those under the reference model, if each step computes them.
    references: Option<Tensor>,
    _areas: Vec<Area>,
}

/// The host copies inputs and targets of a regression separately if the rows of each have at least so many bytes.
/// Separate copies of narrower rows may take longer than they save.
const WIDE_ROW: usize = 256;

/// The samples of a step in memory.
#[derive(Clone, Copy)]
enum StepSamples {
    /// Rows as the data give the samples: `(microbatches, batch, width)`.
    Rows(Tensor),
    /// Inputs and targets of a regression, `(microbatches, batch, columns)` each: no value is part of both. Layers may
    /// read the values in place.
    TwoTensors { inputs: Tensor, targets: Tensor },
}

impl Inputs {
    /// Allocates memory for up to `microbatches` microbatches of so many samples, if the stage needs samples: the first
    /// stage takes the inputs, the last one the targets, and all take the positions of tokens in their documents.
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn new(
        device: &Device,
        architecture: &Architecture,
        model: &Model,
        control: Tensor,
        microbatches: usize,
        micro_batch_size: usize,
        references: Option<Tensor>,
    ) -> Result<Inputs> {
        let (row, layers, mut areas) = (architecture.sample.clone(), &architecture.layers, Vec::new());
        let real = row.real.filter(|_| model.asks_padding);
        let mut samples = None;
        if layers.has_first() || layers.has_last() || row.documents.is_some() || real.is_some() {
            let mut allocate = |name, width| {
                device.allocate_tensor(&mut areas, name, [microbatches, micro_batch_size, width], row.dtype)
            };
            let wide = |columns: &Range<usize>| columns.len() * row.dtype.size() >= WIDE_ROW;
            let is_regression = row.dtype == DType::F32 && !layers.is_part();
            samples = Some(if is_regression && wide(&row.inputs) && wide(&row.targets) {
                let inputs = allocate("inputs", row.inputs.len())?;
                StepSamples::TwoTensors { inputs, targets: allocate("targets", row.targets.len())? }
            } else {
                StepSamples::Rows(allocate("samples", row.width)?)
            });
        }
        let &Model { values: dtype, drops, further_tokens, .. } = model;
        let sequence = sequence_share(&architecture.ranks);
        let _areas = areas;
        Ok(Inputs { samples, row, dtype, control, drops, real, further_tokens, sequence, references, _areas })
    }

    /// Whether the stage needs a step's samples.
    pub(crate) fn needs_batch(&self) -> bool {
        self.samples.is_some()
    }

    /// The memory of the samples.
    fn tensors(&self) -> Vec<Tensor> {
        match self.samples {
            None => vec![],
            Some(StepSamples::Rows(samples)) => vec![samples],
            Some(StepSamples::TwoTensors { inputs, targets }) => vec![inputs, targets],
        }
    }

    /// Bytes of a step's samples; 0 on a stage that needs none.
    pub(crate) fn bytes(&self) -> usize {
        self.tensors().iter().map(Tensor::bytes).sum()
    }

    /// Sets all samples to zeros.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn clear(&self, device: &Device) -> Result<()> {
        self.tensors().iter().try_for_each(|tensor| Ok(device.zero(tensor)?))
    }

    /// Copies a step's samples, `(microbatches, batch, width)`, to the device. Does nothing on a stage that needs none.
    ///
    /// # Errors
    /// Samples of another number or type than the model's.
    pub(crate) fn fill(&self, compute: &Stream, batch: &HostValues, microbatches: usize) -> Result<()> {
        let parts = match self.samples {
            None => vec![],
            Some(StepSamples::Rows(samples)) => vec![(samples, 0)],
            Some(StepSamples::TwoTensors { inputs, targets }) => {
                vec![(inputs, self.row.inputs.start), (targets, self.row.targets.start)]
            }
        };
        for (part, first_column) in parts {
            let part = part.narrow(0, microbatches);
            match batch {
                HostValues::I32(tokens) => compute.send_columns(&part, tokens, self.row.width, first_column)?,
                HostValues::F32(values) => compute.send_columns(&part, values, self.row.width, first_column)?,
            }
        }
        Ok(())
    }

    /// The microbatch's inputs and targets for the forward of a chunk, in buffers of the microbatch's slot or in place.
    /// The first chunk of the model takes its inputs from the samples, the others from the stage before. The chunk with
    /// the head takes the targets too. Every chunk takes the positions in documents.
    ///
    /// # Errors
    /// Errors of the device, or a failed transfer.
    pub(crate) fn to_forward(
        &self,
        cx: &mut StepContext<'_>,
        transfers: &mut Transfers<'_>,
        task: Task,
        chunk: &Chunk,
    ) -> Result<Hidden> {
        let (layer, microbatch) = (chunk.first, task.microbatch());
        cx.region(Region::Inputs { layer, microbatch }, (), |cx, ()| {
            let received = transfers.receive_activations(cx, task)?;
            let (x, targets) = match self.samples {
                Some(StepSamples::TwoTensors { inputs, targets }) => {
                    let inputs = whole(cx, "inputs", inputs.at(microbatch), self.dtype)?;
                    (inputs, Some(whole(cx, "targets", targets.at(microbatch), self.dtype)?))
                }
                _ => self.columns(cx, received, chunk, microbatch)?,
            };
            let (documents, real) = (self.documents(cx, microbatch)?, self.real(cx, microbatch)?);
            let positions_here = self.positions_here(cx, documents, microbatch)?;
            let (mut pairs, mut references, mut further) = (None, None, None);
            if chunk.head.is_some() {
                (pairs, references) = (self.pairs(cx, microbatch)?, self.references(cx, microbatch)?);
                further = self.further(cx, documents.map(|(documents, _)| documents.position_ids), microbatch)?;
            }
            let mut record = None;
            if self.drops && cx.mode().trains() {
                let output = cx.tensor("record", [size_of::<SampleRecord>()], DType::U8)?;
                let offset = (microbatch * BatchSizes::of(cx).samples) as u64;
                cx.run(WriteSampleRecord { control: self.control, offset, record: output })?;
                record = Some(output);
            }
            let samples = Samples { record, documents, positions_here, real };
            Ok(Hidden { x, delta: None, targets, pairs, references, further, samples })
        })
    }

    /// The shape of a microbatch's values in `columns`, of which a step on shorter samples takes the first.
    fn shape(&self, cx: &StepContext<'_>, columns: &Range<usize>) -> Shape {
        let BatchSizes { samples, tokens_per_sample } = BatchSizes::of(cx);
        let of_token = columns.len() / self.row.length();
        [samples, tokens_per_sample * of_token].into()
    }

    /// The column of a row at which the sample of a step begins.
    fn first_column(&self, cx: &StepContext<'_>) -> usize {
        self.row.mismatched.filter(|_| cx.mode().mode == Mode::Mismatched).unwrap_or(0)
    }

    /// A microbatch's samples as rows of the data: `(batch, width)`. `None` if they are apart, or not on this stage.
    fn rows(&self, microbatch: usize) -> Option<Tensor> {
        match self.samples {
            Some(StepSamples::Rows(samples)) => Some(samples.at(microbatch)),
            _ => None,
        }
    }

    /// Buffers with a chunk's inputs, from a microbatch's samples or from the stage before, and with targets if the
    /// chunk has the head.
    fn columns(
        &self,
        cx: &mut StepContext<'_>,
        received: Option<Tensor>,
        chunk: &Chunk,
        microbatch: usize,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let own = (self.shape(cx, &self.row.inputs), self.dtype);
        let (shape, dtype) = received.map_or(own, |received| (received.shape, received.dtype));
        let x = cx.tensor("inputs", shape, dtype)?;
        let mut targets = None;
        if chunk.head.is_some() {
            targets = Some(cx.tensor("targets", self.shape(cx, &self.row.targets), self.dtype)?);
        }
        if let Some(input) = received {
            cx.run(Copy { input, output: x })?;
        }
        let begin = self.first_column(cx);
        let columns = |first: usize, output| ColumnRange { first: begin + first, share: self.sequence, output };
        let of_inputs = received.is_none().then(|| columns(self.row.inputs.start, x));
        let of_targets = targets.map(|targets| columns(self.row.targets.start, targets));
        if let (Some(input), parts @ ([Some(_), _] | [_, Some(_)])) = (self.rows(microbatch), [of_inputs, of_targets]) {
            cx.run(CopyColumns { input, parts })?;
        }
        Ok((x, targets))
    }

    /// See [`Hidden::pairs`].
    fn pairs(&self, cx: &mut StepContext<'_>, microbatch: usize) -> Result<Option<Tensor>> {
        let (Some(input), Some(pairs)) = (self.rows(microbatch), &self.row.pairs) else { return Ok(None) };
        let (samples, first) = (BatchSizes::of(cx).samples, self.first_column(cx) + pairs.columns.start);
        let output = cx.tensor("pairs", [samples, pairs.columns.len()], DType::I32)?;
        cx.run(CopyColumns { input, parts: [Some(ColumnRange { first, share: SequenceShare::WHOLE, output }), None] })?;
        Ok(Some(output))
    }

    /// See [`Hidden::references`].
    fn references(&self, cx: &mut StepContext<'_>, microbatch: usize) -> Result<Option<Tensor>> {
        let Some(all) = self.references.filter(|_| cx.mode().mode != Mode::Reference) else { return Ok(None) };
        let (input, samples) = (all.at(microbatch), BatchSizes::of(cx).samples);
        let output = cx.tensor("references", [samples, input.elements() / samples], DType::F32)?;
        cx.run(Copy { input: input.reshape(output.shape), output })?;
        Ok(Some(output))
    }

    /// See [`Hidden::further`].
    fn further(
        &self,
        cx: &mut StepContext<'_>,
        position_ids: Option<Tensor>,
        microbatch: usize,
    ) -> Result<Option<Tensor>> {
        let depths = self.further_tokens;
        let Some(samples) = self.rows(microbatch).filter(|_| depths > 0 && cx.mode().trains()) else { return Ok(None) };
        let BatchSizes { samples: batch, tokens_per_sample } = BatchSizes::of(cx);
        let further = cx.tensor("further", [depths, 2, batch, tokens_per_sample], DType::I32)?;
        for depth in 0..depths {
            let [tokens, targets] = [0, 1].map(|part| {
                let first = (2 * depth + part) * batch * tokens_per_sample;
                further.view(first, [batch, tokens_per_sample])
            });
            cx.run(FurtherTokens {
                samples,
                first_input: self.row.inputs.start,
                first_target: self.row.targets.start,
                ahead: depth + 1,
                position_ids,
                share: self.sequence,
                tokens,
                targets,
            })?;
        }
        Ok(Some(further))
    }

    /// See [`Samples::real`].
    fn real(&self, cx: &mut StepContext<'_>, microbatch: usize) -> Result<Option<Tensor>> {
        let (Some(input), Some(first)) = (self.rows(microbatch), self.real) else { return Ok(None) };
        let output = cx.tensor("real_tokens", [BatchSizes::of(cx).samples, 1], DType::I32)?;
        let first = self.first_column(cx) + first;
        let column = ColumnRange { first, share: SequenceShare::WHOLE, output };
        cx.run(CopyColumns { input, parts: [Some(column), None] })?;
        Ok(Some(output))
    }

    /// See [`Samples::positions_here`].
    fn positions_here(
        &self,
        cx: &mut StepContext<'_>,
        documents: Option<(Documents, Restart)>,
        microbatch: usize,
    ) -> Result<Option<Tensor>> {
        let restarts = documents.is_some_and(|(_, restart)| restart != Restart::Attention);
        let columns = self.row.documents.as_ref().filter(|_| restarts && self.sequence != SequenceShare::WHOLE);
        let (Some(input), Some(DocumentColumns { position_ids, .. })) = (self.rows(microbatch), columns) else {
            return Ok(None);
        };
        let output = cx.tensor("positions_here", self.shape(cx, position_ids), DType::I32)?;
        let part = ColumnRange { first: self.first_column(cx) + position_ids.start, share: self.sequence, output };
        cx.run(CopyColumns { input, parts: [Some(part), None] })?;
        Ok(Some(output))
    }

    /// See [`Samples::documents`]. Attention is about whole samples, also if ranks divide them.
    fn documents(&self, cx: &mut StepContext<'_>, microbatch: usize) -> Result<Option<(Documents, Restart)>> {
        let (Some(input), Some(columns)) = (self.rows(microbatch), &self.row.documents) else { return Ok(None) };
        let DocumentColumns { position_ids: columns, most, restart } = columns;
        let [samples, tokens] = [BatchSizes::of(cx).samples, BatchSizes::of(cx).tokens_per_sample];
        let position_ids = cx.tensor("position_ids", [samples, tokens * self.sequence.ranks], DType::I32)?;
        let first = self.first_column(cx) + columns.start;
        let part = ColumnRange { first, share: SequenceShare::WHOLE, output: position_ids };
        cx.run(CopyColumns { input, parts: [Some(part), None] })?;
        Ok(Some((Documents { position_ids, most: *most }, *restart)))
    }
}

/// All inputs or all targets of a microbatch, in the model's type. They are read in place if they have that
/// type, microbatches share no graphs, and every microbatch is aligned as buffers are: a GPU may multiply in another way
/// at another alignment. Otherwise they are copied.
fn whole(cx: &mut StepContext<'_>, name: &'static str, samples: Tensor, dtype: DType) -> Result<Tensor> {
    let aligned = samples.bytes().is_multiple_of(ALIGNMENT);
    let shares_graphs = cx.policy().graphs().is_some_and(Scope::is_part);
    if samples.dtype == dtype && aligned && !shares_graphs {
        return Ok(samples);
    }
    let output = cx.tensor(name, samples.shape, dtype)?;
    cx.run(Copy { input: samples, output })?;
    Ok(output)
}
