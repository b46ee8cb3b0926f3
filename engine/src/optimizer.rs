//! The update: norm, clip and optimizer, all on the device.

use std::rc::Rc;
use std::sync::Arc;

use device::ops::{AdamW, AdamWTensors, ClipScale, Collective, CollectiveKind, Sgd, SgdTensors, SquareSum};
use device::{Area, Communicator, DType, Device, Tensor};
use graph_manager::Result;

use crate::params::{ParamSpec, Params, Twin};
use crate::step_policy::StepContext;

/// Which optimizer, and its constants; the learning rate comes with each step's control block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OptimizerKind {
    /// AdamW.
    AdamW {
        /// Decay of the first moment.
        beta1: f32,
        /// Decay of the second moment.
        beta2: f32,
        /// Added to the root of the second moment.
        eps: f32,
    },
    /// SGD.
    Sgd {
        /// Momentum; 0 for none.
        momentum: f32,
    },
}

/// The groups whose ranks update what this one does not.
pub struct OtherRanks {
    /// Those with other parts of the batch, with a distributed optimizer.
    pub data_parallel: Option<Rc<dyn Communicator>>,
    /// Those that share layers.
    pub tensor_parallel: Option<Rc<dyn Communicator>>,
    /// Those with other layers.
    pub pipeline: Option<Rc<dyn Communicator>>,
}

/// The optimizer's state and operations.
pub struct Optimizer {
    kind: OptimizerKind,
    adamw: Arc<[AdamWTensors]>,
    sgd: Arc<[SgdTensors]>,
    /// The gradients that this rank counts in the norm, and the groups whose ranks have the others.
    counted: Arc<[Tensor]>,
    others: Vec<Rc<dyn Communicator>>,
    /// u8, a `Control`.
    control: Tensor,
    /// u8, a `Status`.
    pub status: Tensor,
    /// The moments of what this rank updates, f32, flat, [`Params::held_elements`] each, by their names in a checkpoint.
    pub state: Vec<(&'static str, Tensor)>,
    _areas: Vec<Area>,
}

impl Optimizer {
    /// Allocates state for all parameters that this rank updates and sets it to 0.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(
        device: &Device,
        params: &Params,
        kind: OptimizerKind,
        weight_decay: f32,
        control: Tensor,
        status: Tensor,
        others: OtherRanks,
    ) -> Result<Optimizer> {
        let OtherRanks { data_parallel, tensor_parallel, pipeline } = others;
        let total = params.held_elements();
        let mut areas = Vec::new();
        let mut moment = |name: &'static str| -> Result<(&'static str, Tensor)> {
            let tensor = device.allocate_tensor(&mut areas, name, [total], DType::F32)?;
            device.zero(&tensor)?;
            Ok((name, tensor))
        };
        let state = match kind {
            OptimizerKind::AdamW { .. } => vec![moment("exp_avg")?, moment("exp_avg_sq")?],
            OptimizerKind::Sgd { momentum } if momentum != 0.0 => vec![moment("momentum")?],
            OptimizerKind::Sgd { .. } => vec![],
        };
        device.zero(&status)?;
        let mut adamw = Vec::new();
        let mut sgd = Vec::new();
        for (index, (spec, param)) in params.iter().enumerate().filter(|(_, (_, param))| param.held.elements > 0) {
            let decay = if spec.decays() { weight_decay } else { 0.0 };
            let compute = (param.weight.dtype != DType::F32).then(|| param.held_of(param.weight));
            let (master, grad) = (param.master, param.held_of(param.grad));
            let part = |moment: usize| params.part_of(state[moment].1, index);
            match kind {
                OptimizerKind::AdamW { .. } => adamw.push(AdamWTensors {
                    master,
                    compute,
                    grad,
                    exp_avg: part(0),
                    exp_avg_sq: part(1),
                    weight_decay: decay,
                }),
                OptimizerKind::Sgd { momentum } => sgd.push(SgdTensors {
                    master,
                    compute,
                    grad,
                    momentum: (momentum != 0.0).then(|| part(0)),
                    weight_decay: decay,
                }),
            }
        }
        // A parameter that every rank of a tensor-parallel group has whole counts on the first, one that the first and the
        // last stage both have on the first of them.
        let first = tensor_parallel.as_ref().is_none_or(|group| group.rank() == 0);
        let counted: Vec<Tensor> = match first {
            true => {
                let counted = params.buckets().filter(|bucket| bucket.twin != Some(Twin::Replica));
                counted.map(|bucket| params.shard().of(bucket.grads)).collect()
            }
            false => {
                let counted = |spec: &ParamSpec| spec.cut.is_some() && spec.twin != Some(Twin::Replica);
                let cut = params.iter().filter(|(spec, param)| counted(spec) && param.held.elements > 0);
                cut.map(|(_, param)| param.held_of(param.grad)).collect()
            }
        };
        let others = data_parallel.into_iter().chain(tensor_parallel).chain(pipeline).collect();
        Ok(Optimizer {
            kind,
            adamw: adamw.into(),
            sgd: sgd.into(),
            counted: counted.into(),
            others,
            control,
            status,
            state,
            _areas: areas,
        })
    }

    /// Norm of all gradients, clip factor, and the update; nothing is updated when the norm is not finite.
    ///
    /// # Errors
    /// What the device refused.
    pub fn update(&self, cx: &mut StepContext<'_>) -> Result<()> {
        let square_sum = cx.tensor("square_sum", [1], DType::F32)?;
        cx.run(SquareSum { inputs: self.counted.clone(), total: square_sum })?;
        for group in &self.others {
            cx.run(Collective::in_place(CollectiveKind::AllReduceSum, group.clone(), square_sum))?;
        }
        let Optimizer { control, status, .. } = *self;
        cx.run(ClipScale { square_sum, control, status })?;
        match self.kind {
            OptimizerKind::AdamW { beta1, beta2, eps } => {
                cx.run(AdamW { tensors: self.adamw.clone(), beta1, beta2, eps, control, status })
            }
            OptimizerKind::Sgd { momentum } => cx.run(Sgd { tensors: self.sgd.clone(), momentum, control, status }),
        }
    }
}
