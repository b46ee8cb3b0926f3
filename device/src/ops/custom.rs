//! Operations that a user of this crate adds.

use std::fmt;
use std::rc::Rc;

use super::accesses::overlap;
use super::{Accesses, Operation, ensure};
use crate::gpu_types::{CudaWork, GpuProperties};
use crate::host::HostTensors;
use crate::tensor::VIRTUAL;
use crate::{Error, Result, Tensor};

/// An operation of a caller's own. It is submitted, recorded, captured, replayed and checked like the others.
///
/// Its effect is a function of the tensors that it declares to read, and of its own fields. The memory plan, the
/// checker and the replay order all rely on the tensors declared by [`CustomOp::accesses`].
///
/// # Example
/// `y = a * x + y` on f32 tensors. `device/examples/custom_operation.rs` is this operation with a CUDA kernel, on a GPU
/// if there is one.
///
/// ```
/// use device::ops::{Accesses, CustomOp};
/// use device::{DType, Device, Error, HostOptions, HostTensors, Result, Tensor};
///
/// #[derive(Debug)]
/// struct Axpy {
///     a: f32,
///     x: Tensor,
///     y: Tensor,
/// }
///
/// impl CustomOp for Axpy {
///     fn name(&self) -> &'static str {
///         "axpy"
///     }
///
///     fn check(&self) -> Result<()> {
///         let fits = self.x.dtype == DType::F32 && self.y.dtype == DType::F32 && self.x.shape == self.y.shape;
///         if fits { Ok(()) } else { Err(Error::operation("axpy", "`x` and `y` are f32 and of one shape")) }
///     }
///
///     fn accesses(&self) -> Accesses {
///         Accesses::new([self.x, self.y], [self.y])
///     }
///
///     fn run_host(&self, tensors: &mut HostTensors<'_>) -> Result<()> {
///         let x = tensors.read::<f32>(&self.x)?;
///         let y = tensors.write::<f32>(&self.y)?;
///         const CHUNK: usize = 4096;
///         tensors.pool().for_each_chunk(y, CHUNK, |chunk, y| {
///             for (y, x) in y.iter_mut().zip(&x[chunk * CHUNK..]) {
///                 *y += self.a * x;
///             }
///         });
///         Ok(())
///     }
/// }
///
/// let device = Device::host(HostOptions { check: true, ..HostOptions::default() })?;
/// let mut areas = Vec::new();
/// let x = device.allocate_tensor(&mut areas, "x", [3], DType::F32)?;
/// let y = device.allocate_tensor(&mut areas, "y", [3], DType::F32)?;
/// device.upload(&x, &[1.0f32, 2.0, 3.0])?;
/// device.upload(&y, &[10.0f32, 20.0, 30.0])?;
///
/// let stream = device.stream("compute");
/// stream.submit(Axpy { a: 2.0, x, y })?; // runs now
/// stream.begin_capture()?;
/// stream.submit(Axpy { a: 2.0, x, y })?; // is recorded
/// let graph = stream.end_capture("axpy")?;
/// graph.launch(&stream)?;
/// assert_eq!(device.download::<f32>(&y)?, [14.0, 28.0, 42.0]);
/// # Ok::<(), Error>(())
/// ```
///
/// Its `Debug` text tells operations apart: regions with operations of the same text and tensors share a graph. So the
/// text has every value that a run depends on, and nothing that changes while the operation runs, such as a counter.
pub trait CustomOp: fmt::Debug {
    /// The operation's name in errors, reports and traces.
    fn name(&self) -> &'static str;

    /// Checks shapes and types. Called when the operation is submitted, before anything else. Left out, all fit.
    ///
    /// # Errors
    /// [`Error::operation`](crate::Error::operation) with the shapes that do not fit.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// The tensors that the operation reads and those that it writes. A tensor that is updated in place, or that keeps
    /// some of its values, is in both. Memory that it needs only while it runs is a tensor that it writes. With the
    /// checker of a host device, what it writes and does not read is NaN before it runs: an update in place that is
    /// declared as a write alone shows.
    ///
    /// Called once, when the operation becomes an [`Op`](super::Op). If that is mapped to other tensors later, the
    /// operation still names these.
    fn accesses(&self) -> Accesses;

    /// Runs the operation on the host device, to its end. `tensors` gives access to the declared tensors, and to the
    /// device's threads. It uses nothing else of its device: a call that allocates, copies or waits fails with
    /// [`Error::Within`].
    ///
    /// Work is split by shape alone and partial sums are combined in order, so that the bits do not depend on the
    /// number of threads.
    ///
    /// Left out, the operation is for GPUs alone: a host device refuses it.
    ///
    /// # Errors
    /// Those of [`HostTensors`], and the operation's own.
    fn run_host(&self, _tensors: &mut HostTensors<'_>) -> Result<()> {
        let problem = "has no side for the host, and its stream is a host device's. Rule: an operation runs where its tensors \
                       are. Fix: implement CustomOp::run_host, or use a GPU (Device::cuda)";
        Err(Error::operation(self.name(), problem))
    }

    /// The operation's work on a GPU: the launch of a kernel ([`CudaLaunch`](crate::cuda::CudaLaunch)), or a call that
    /// submits work to the stream itself ([`CudaWork::call`]). `None`, the default, for an operation without a CUDA side: a
    /// CUDA stream refuses it.
    ///
    /// A kernel is compiled and loaded when the operation is first recorded by
    /// [`Device::begin_trace`](crate::Device::begin_trace) or first runs. A launch compiles and allocates nothing. A
    /// call is not made while a step is recorded.
    fn cuda_work(&self, _gpu: &GpuProperties) -> Option<CudaWork<'_>> {
        None
    }
}

/// A [`CustomOp`] with the accesses it declared when it was made into an operation.
///
/// The caller's operation names the tensors as they were declared. [`Op::map`](super::Op::map) places them elsewhere.
/// When the operation runs, a declared tensor, or a part of one, stands for the same bytes of the placed one.
#[derive(Clone, Debug)]
pub struct Custom {
    op: Rc<dyn CustomOp>,
    declared: Accesses,
    /// As many as declared, in the same order.
    placed: Accesses,
}

impl Custom {
    /// The operation, ready to submit. Anything that implements [`CustomOp`] can also be submitted as it is.
    pub fn new(op: Rc<dyn CustomOp>) -> Custom {
        let declared = op.accesses();
        Custom { op, placed: declared.clone(), declared }
    }

    /// The caller's operation.
    pub fn op(&self) -> &dyn CustomOp {
        &*self.op
    }

    /// The tensors that the operation declared to read and write.
    pub fn declared(&self) -> &Accesses {
        &self.declared
    }

    /// Fails if the caller's operation holds an address of a recording in another field than a tensor: in its text is a
    /// number of those addresses.
    pub(crate) fn refuse_raw_address(&self) -> Result<()> {
        let text = format!("{:?}", self.op);
        let mut rest = &*text;
        while let Some(begins) = rest.find(|c: char| c.is_ascii_digit()) {
            let (before, from) = rest.split_at(begins);
            let digits = from.find(|c: char| !c.is_ascii_digit()).unwrap_or(from.len());
            if !before.ends_with("address: ") {
                from[..digits].parse().map_or(Ok(()), |number| self.refuse_address(number, || "it holds".into()))?;
            }
            rest = &from[digits..];
        }
        Ok(())
    }

    /// Fails if a number is an address of a recording.
    pub(crate) fn refuse_address(&self, number: u64, holds: impl FnOnce() -> String) -> Result<()> {
        ensure(self.name(), !VIRTUAL.contains(&number), || {
            format!(
                "{} an address of a recording as a number. Rule: a tensor of a plan has no memory while a step is recorded, and \
                 its address is known when the operation runs. Fix: hold the tensor and declare it (CustomOp::accesses), and \
                 take its address in each run (KernelArgument::Tensor, CudaTensors::read)",
                holds()
            )
        })
    }

    /// The refusal of a tensor that is not declared to be read, or written.
    pub(crate) fn undeclared(&self, tensor: &Tensor, verb: &str) -> Error {
        let rule = format!("Rule: an operation takes the tensors that CustomOp::accesses declares to {verb}");
        Error::operation(self.name(), format!("took a tensor {:?} to {verb}. {rule}. Fix: declare it", tensor.shape))
    }

    /// The placed tensors that the operation writes and does not read.
    pub(crate) fn written_alone(&self) -> impl Iterator<Item = Tensor> {
        let is_read = |tensor: &Tensor| self.placed.reads.iter().any(|read| overlap(read, tensor));
        self.placed.writes.iter().filter(move |tensor| !is_read(tensor)).copied()
    }

    /// The place of a declared tensor that is read, or of a part of one. `None` if it is not declared.
    pub(crate) fn placed_read(&self, part: &Tensor) -> Option<Tensor> {
        placed(part, &self.declared.reads, &self.placed.reads)
    }

    /// The place of a declared tensor that is written, or of a part of one. `None` if it is not declared.
    pub(crate) fn placed_write(&self, part: &Tensor) -> Option<Tensor> {
        placed(part, &self.declared.writes, &self.placed.writes)
    }
}

/// The bytes of a placed tensor that a part of the declared one stands for.
fn placed(part: &Tensor, declared: &[Tensor], placed: &[Tensor]) -> Option<Tensor> {
    let (from, to) = declared.iter().zip(placed).find(|(declared, _)| declared.contains(part))?;
    Some(Tensor { address: to.address + (part.address - from.address), buffer: to.buffer, ..*part })
}

/// Callers' operations are compared by identity.
impl PartialEq for Custom {
    fn eq(&self, other: &Custom) -> bool {
        let one = std::ptr::addr_eq(Rc::as_ptr(&self.op), Rc::as_ptr(&other.op));
        one && self.placed == other.placed && self.declared == other.declared
    }
}

impl Operation for Custom {
    const NAME: &'static str = "custom";

    fn name(&self) -> &'static str {
        self.op.name()
    }

    fn check(&self) -> Result<()> {
        for (from, to) in self.declared.all().zip(self.placed.all()) {
            ensure(self.name(), (from.shape, from.dtype) == (to.shape, to.dtype), || {
                let (from, to) = [from, to].map(|tensor| format!("{:?} of {}", tensor.shape, tensor.dtype)).into();
                format!("declared a tensor {from}, which was placed in one {to}: a placed tensor keeps shape and type")
            })?;
        }
        self.op.check()
    }

    fn accesses(&self) -> Accesses {
        self.placed.clone()
    }

    fn each_tensor(&mut self, each: &mut dyn FnMut(&mut Tensor)) {
        self.placed.reads.iter_mut().chain(&mut self.placed.writes).for_each(each);
    }
}
