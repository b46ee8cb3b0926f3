//! Delayed scales: their state, and the update that ends a step.

use std::rc::Rc;

use device::ops::{Collective, CollectiveKind, Condition, Copy, Select, UpdateScales};
use device::{Area, Communicator, DType, Device, Result, Shape, Tensor};

use super::recipe::Fp8;
use crate::params::ParamSpec;
use crate::step_policy::StepContext;

/// The alignment of scales: multiples of 16 bytes, for products. The numbers between are not used.
pub(super) const SCALE_STRIDE: usize = 4;

/// The state of one scale; see [`ScaleState`].
#[derive(Clone, Copy, Debug)]
pub struct ScaleCell {
    /// `(1)`, f32.
    pub scale: Tensor,
    /// `(1)`, f32: the largest magnitude so far in this step.
    pub amax: Tensor,
    /// `(length)`, f32: those of earlier steps, the newest first.
    pub history: Tensor,
}

/// The delayed scales of all inputs and output gradients, and the magnitudes that the scales follow from. Each weight
/// with 8-bit products has two: its input's, its output gradient's. Scales and magnitudes are 0 before the first step.
#[derive(Clone, Copy, Debug)]
pub struct ScaleState {
    /// `(n)`, f32. 0 if none is known.
    pub scale: Tensor,
    /// `(n)`, f32: largest magnitudes of this step.
    pub amax: Tensor,
    /// `(n, length)`, f32: those of earlier steps, the newest first.
    pub history: Tensor,
    /// `(n)`, f32: the largest number of each type.
    pub largest: Tensor,
    /// Powers of two left free.
    margin: i32,
}

impl ScaleState {
    /// The scale state of the weights `all`. They have one recipe.
    pub(super) fn allocate(device: &Device, areas: &mut Vec<Area>, all: &[(&ParamSpec, Fp8)]) -> Result<ScaleState> {
        let (_, Fp8 { amax_history, margin, .. }) = all[0];
        let count = 2 * all.len() * SCALE_STRIDE;
        let mut flat = |name, shape: &[usize]| device.allocate_tensor(areas, name, Shape::new(shape), DType::F32);
        let state = ScaleState {
            scale: flat("8-bit scales", &[count])?,
            amax: flat("largest magnitudes", &[count])?,
            history: flat("history of magnitudes", &[count, amax_history])?,
            largest: flat("largest numbers", &[count])?,
            margin,
        };
        for tensor in [state.scale, state.amax, state.history] {
            device.zero(&tensor)?;
        }
        if !device.is_dry() {
            let types = all.iter().flat_map(|(_, fp8)| [fp8.input(), fp8.grad_output()]);
            let largest: Vec<f32> = types.flat_map(|dtype| [dtype.largest_fp8(); SCALE_STRIDE]).collect();
            device.upload(&state.largest, &largest)?;
        }
        Ok(state)
    }

    /// Ends a step: makes new scales from its magnitudes, the largest of all ranks in `groups`.
    ///
    /// # Errors
    /// A failed collective.
    pub(crate) fn update(&self, cx: &StepContext<'_>, groups: &[Rc<dyn Communicator>]) -> graph_manager::Result<()> {
        for group in groups {
            cx.run(Collective::in_place(CollectiveKind::AllReduceMax, group.clone(), self.amax))?;
        }
        // Graphs make no delayed scale, so each must be known from now on.
        cx.run(UpdateScales { default: 1.0, ..self.refresh() })
    }

    /// Copies of the present scales and of the scales' history.
    ///
    /// # Errors
    /// A failed copy.
    pub(crate) fn copied(&self, cx: &mut StepContext<'_>) -> graph_manager::Result<[Tensor; 2]> {
        let scale = cx.tensor("scales_before", self.scale.shape, DType::F32)?;
        let history = cx.tensor("magnitudes_before", self.history.shape, DType::F32)?;
        cx.run(Copy { input: self.scale, output: scale })?;
        cx.run(Copy { input: self.history, output: history })?;
        Ok([scale, history])
    }

    /// Puts [copies](ScaleState::copied) back if `void`, one f32, is above 0: then the step has not been.
    ///
    /// # Errors
    /// A failed copy.
    pub(crate) fn put_back(
        &self,
        cx: &StepContext<'_>,
        void: Tensor,
        before: [Tensor; 2],
    ) -> graph_manager::Result<()> {
        // The bits of a number above 0 are not 0.
        let condition = Condition::Flag(Tensor { dtype: DType::I32, ..void });
        let of = |(a, output): (Tensor, Tensor)| cx.run(Select { condition, a, b: output, output });
        before.into_iter().zip([self.scale, self.history]).try_for_each(of)
    }

    /// The scales that follow from the history. The others stay unknown, for the next step to make.
    pub(crate) fn refresh(&self) -> UpdateScales {
        let ScaleState { scale, amax, history, largest, margin } = *self;
        UpdateScales { amax, history, largest, scale, margin, default: 0.0 }
    }

    /// Reads the values that steps change.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn remember(&self, device: &Device) -> Result<ScaleValues> {
        let mut values = Vec::new();
        for tensor in [self.scale, self.amax, self.history] {
            values.push((tensor, device.download(&tensor)?));
        }
        Ok(ScaleValues(values))
    }

    /// The state of the scale with that index.
    pub(super) fn cell(&self, index: usize) -> ScaleCell {
        let at = index * SCALE_STRIDE;
        let length = self.history.shape.last();
        let history = self.history.view(at * length, [length]);
        ScaleCell { scale: self.scale.view(at, [1]), amax: self.amax.view(at, [1]), history }
    }
}

/// The values of a [`ScaleState`] at some time.
pub(crate) struct ScaleValues(Vec<(Tensor, Vec<f32>)>);

impl ScaleValues {
    /// Writes the scale values back.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn restore(&self, device: &Device) -> Result<()> {
        self.0.iter().try_for_each(|(tensor, values)| device.upload(tensor, values))
    }
}
