//! Scalars that the host gives to a step: small blocks written by value, so that no graph holds a host scalar.

mod host;

use crate::cuda::{Arg, Grid, KernelFile, KernelOperation, Queue, args, kernel_file, kernel_struct};
use crate::ops::{Operation, ensure_elements, ensure_values, tensors};
use crate::{DType, Result, Tensor};

/// The control block of a step, as it lies in device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
pub struct Control {
    /// Global number of the first sample of the step on this data-parallel rank.
    pub first_sample: u64,
    /// The step, counted from 0.
    pub step: u32,
    /// Microbatches of the step, of all data-parallel ranks.
    pub microbatches: u32,
    /// Tokens of the step that are no padding, of all data-parallel ranks.
    pub tokens: u32,
    /// Documents of the step, of all data-parallel ranks; samples, if each is one document.
    pub documents: u32,
    /// Learning rate.
    pub learning_rate: f32,
    /// Largest gradient norm; 0 = no clipping.
    pub clip: f32,
    /// The factor of a loss gradient: 1 / global number of targets, times a loss scale if there is one.
    pub grad_scale: f32,
    /// 1 / loss scale, applied before norm, clip and update.
    pub inverse_loss_scale: f32,
}

/// The first step, without scales: gradients and updates are multiplied by 1. The learning rate is 0.
impl Default for Control {
    fn default() -> Control {
        Control {
            first_sample: 0,
            step: 0,
            microbatches: 1,
            tokens: 1,
            documents: 1,
            learning_rate: 0.0,
            clip: 0.0,
            grad_scale: 1.0,
            inverse_loss_scale: 1.0,
        }
    }
}

/// The state that the optimizer's update keeps on the device from step to step.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
pub struct Status {
    /// Updates applied; a skipped one does not count. The `t` of Adam's bias correction.
    pub applied: u32,
    /// Updates skipped because the gradient was not finite.
    pub skipped: u32,
    /// Updates skipped because loss or gradient norm was a spike; see [`crate::ops::SkipStep`].
    pub spikes: u32,
    /// Steps that entered the history of [`crate::ops::SkipStep`].
    pub recorded: u32,
    /// 1 if this step's gradient was finite.
    pub finite: u32,
    /// 1 if this step updates the weights: its gradient was finite, and it was no spike.
    pub applies: u32,
    /// Gradient norm before clipping, loss scale removed.
    pub grad_norm: f32,
    /// The factor of every gradient in the update: clip factor / loss scale.
    pub grad_factor: f32,
}

impl Status {
    /// The flag in a status that tells if this step's gradient was finite: for [`crate::ops::When`] and [`crate::ops::Select`].
    pub fn finite_flag(status: Tensor) -> Tensor {
        let offset = std::mem::offset_of!(Status, finite);
        Tensor { address: status.address + offset as u64, shape: [1].into(), dtype: DType::I32, ..status }
    }
}

/// The samples in a microbatch slot: read by every dropout of the slot.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
pub struct SampleRecord {
    /// Global number of the first sample.
    pub first_sample: u64,
    /// The step.
    pub step: u32,
    /// Keeps the size a multiple of 8.
    pub reserved: u32,
}

/// Writes the control block; submitted eagerly at the start of each step.
#[derive(Clone, Debug, PartialEq)]
pub struct WriteControl {
    /// u8, `size_of::<Control>()` bytes.
    pub control: Tensor,
    /// The block, passed by value.
    pub value: Control,
}

impl Operation for WriteControl {
    const NAME: &'static str = "write_control";

    fn check(&self) -> Result<()> {
        ensure_values(Self::NAME, "control", &self.control, DType::U8, size_of::<Control>())
    }

    tensors! { write control }

    /// A step's scalars do not count.
    fn bytes(&self) -> f64 {
        0.0
    }
}

/// `record = (control.step, control.first_sample + offset)`.
#[derive(Clone, Debug, PartialEq)]
pub struct WriteSampleRecord {
    /// u8, a [`Control`].
    pub control: Tensor,
    /// The number of the step's samples before this microbatch's first.
    pub offset: u64,
    /// u8, `size_of::<SampleRecord>()` bytes.
    pub record: Tensor,
}

impl Operation for WriteSampleRecord {
    const NAME: &'static str = "write_sample_record";

    fn check(&self) -> Result<()> {
        ensure_elements(Self::NAME, "control", &self.control, size_of::<Control>())?;
        ensure_values(Self::NAME, "record", &self.record, DType::U8, size_of::<SampleRecord>())
    }

    tensors! { read control; write record }

    /// A step's scalars do not count.
    fn bytes(&self) -> f64 {
        0.0
    }
}

kernel_struct! {
    /// `WriteControl` of `kernels/updates/control.cu`.
    WriteControlArgs {
        u64: control;
        Control: value;
    }
}

impl KernelOperation for WriteControl {
    const FILES: &'static [KernelFile] = &[kernel_file!("updates/control.cu")];

    /// A kernel writes the value, and not the stream itself (`cuStreamBatchMemOp`): after a copy to the host the driver
    /// has the stream write where such copies wait for each other, behind a checkpoint's:
    /// `bench/results/2026-11-27-saves-and-starts-on-a-gpu.md`.
    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let block = WriteControlArgs { control: self.control.address, value: self.value };
        queue.launch_block("write_control", Grid::line(1, 1), &block)
    }
}

impl KernelOperation for WriteSampleRecord {
    const FILES: &'static [KernelFile] = &[kernel_file!("updates/control.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        queue.launch(
            "write_sample_record",
            Grid::line(1, 1),
            args! { self.control, Arg::U64(self.offset), self.record },
        )
    }
}
