//! Counts of the values that 8-bit copies lose: values beyond the largest number of the type, and values that became 0.
//! A step of [`Mode::Measure`] counts them on the device.

use common::choice;
use device::ops::{CountQuantized, Fill, Fp8Matrix, QuantizeCounts, QuantizeSource};
use device::{Area, DType, Device, Readback, Result, Stream, Tensor};
use serde::{Deserialize, Serialize};

use crate::regions::Mode;
use crate::step_policy::StepContext;

choice! {
    /// The role of a tensor in the products of a linear layer.
    pub enum TensorKind {
        /// The layer's input.
        Input = "input",
        /// A layer's weight.
        Weight = "weight",
        /// The gradient of the layer's output.
        GradOutput = "grad_output",
    }
}

/// The number of kinds.
const KINDS: usize = 3;
/// Bytes of the counts of a tensor.
const BYTES: usize = size_of::<QuantizeCounts>();

/// The memory of a tensor's counts: u8, a [`QuantizeCounts`].
#[derive(Clone, Copy, Debug)]
pub struct CountCell(Tensor);

impl CountCell {
    /// In a step that measures, counts the values of `source` that `copy` lost, and adds the counts here.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn count(
        &self,
        cx: &StepContext<'_>,
        source: QuantizeSource,
        copy: Fp8Matrix,
    ) -> graph_manager::Result<()> {
        self.counting(cx, source, copy).map_or(Ok(()), |count| cx.run(count))
    }

    /// The operation of [`CountCell::count`].
    pub(crate) fn counting(
        &self,
        cx: &StepContext<'_>,
        source: QuantizeSource,
        copy: Fp8Matrix,
    ) -> Option<CountQuantized> {
        (cx.mode().mode == Mode::Measure).then_some(CountQuantized { source, copy, counts: self.0 })
    }
}

/// The counts of a weight's tensors.
#[derive(Clone, Copy, Debug)]
pub struct CountCells {
    /// Of the layer's input.
    pub input: CountCell,
    /// Of the weight.
    pub weight: CountCell,
    /// Of the gradient of the layer's output.
    pub grad_output: CountCell,
}

/// The counts of all 8-bit weights of a rank, in the order of the weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fp8Counts {
    /// u8, [`QuantizeCounts`] of input, weight and output gradient of each weight.
    pub(crate) all: Tensor,
    /// The memory of `all` as f32, to set all counts to 0.
    zeroed: Tensor,
}

impl Fp8Counts {
    /// Allocates the counts of `weights` weights.
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn allocate(device: &Device, areas: &mut Vec<Area>, weights: usize) -> Result<Fp8Counts> {
        let bytes = weights * KINDS * BYTES;
        let area = device.allocate("counts of 8-bit copies", bytes)?;
        let all = area.tensor("counts of 8-bit copies", 0, [bytes], DType::U8);
        let zeroed = area.place(all.buffer, 0, [bytes / DType::F32.size()], DType::F32);
        areas.push(area);
        device.zero(&zeroed)?;
        Ok(Fp8Counts { all, zeroed })
    }

    /// The counts of a weight's tensors.
    pub(crate) fn of(&self, weight: usize) -> CountCells {
        let cell = |kind: TensorKind| CountCell(self.all.view((KINDS * weight + kind as usize) * BYTES, [BYTES]));
        CountCells {
            input: cell(TensorKind::Input),
            weight: cell(TensorKind::Weight),
            grad_output: cell(TensorKind::GradOutput),
        }
    }

    /// Sets all to 0.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn zero(&self, cx: &StepContext<'_>) -> graph_manager::Result<()> {
        cx.run(Fill { output: self.zeroed, value: 0.0 })
    }

    /// Begins to read the counts back, after all work submitted to `stream` so far. `names` are those of the weights.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn read(&self, stream: &Stream, names: Vec<String>) -> Result<PendingCounts> {
        Ok(PendingCounts { counts: stream.read(&self.all)?, names })
    }
}

/// Counts of a step that measured, under way to the host.
pub struct PendingCounts {
    counts: Readback<u8>,
    names: Vec<String>,
}

/// The losses of a tensor's copies in a step, on this rank.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorCounts {
    /// The weight of the layer that the tensor belongs to.
    pub weight: String,
    /// The tensor's role in that layer.
    pub kind: TensorKind,
    /// The counts, over all microbatches.
    pub counts: QuantizeCounts,
}

impl PendingCounts {
    /// Waits for the step to finish and returns the step's counts.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn wait(self) -> Result<Vec<TensorCounts>> {
        use common::Choice;
        let bytes = self.counts.wait()?;
        let tensors = self.names.iter().flat_map(|name| TensorKind::ALL.iter().map(move |kind| (name.clone(), *kind)));
        let counts = bytes.chunks(BYTES).map(bytemuck::pod_read_unaligned);
        Ok(tensors.zip(counts).map(|((weight, kind), counts)| TensorCounts { weight, kind, counts }).collect())
    }
}

/// Sums over the tensors of each kind, on all ranks: values, saturated ones, underflowed ones.
pub(crate) type LossSums = [[f32; 3]; KINDS];

/// The losses of all tensors of a kind in a step, as shares of the tensors' values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Losses {
    /// Values beyond the largest number of the type.
    pub saturated: f64,
    /// Values that are not 0, but 0 in 8 bits.
    pub underflowed: f64,
}

/// The losses of all 8-bit copies of a step, over all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Fp8Losses {
    /// Inputs of linear layers.
    pub input: Losses,
    /// The layers' weights.
    pub weight: Losses,
    /// The losses in gradients of layers' outputs.
    pub grad_output: Losses,
}

impl Fp8Losses {
    /// The shares that follow from sums; 0 if there are no values.
    pub(crate) fn of(sums: LossSums) -> Fp8Losses {
        let [input, weight, grad_output] = sums.map(|sums| {
            let [values, saturated, underflowed] = sums.map(f64::from);
            let share = |count: f64| if values > 0.0 { count / values } else { 0.0 };
            Losses { saturated: share(saturated), underflowed: share(underflowed) }
        });
        Fp8Losses { input, weight, grad_output }
    }

    /// Each kind of tensor with the kind's shares.
    pub fn by_kind(&self) -> [(TensorKind, Losses); KINDS] {
        let Fp8Losses { input, weight, grad_output } = *self;
        [(TensorKind::Input, input), (TensorKind::Weight, weight), (TensorKind::GradOutput, grad_output)]
    }
}
