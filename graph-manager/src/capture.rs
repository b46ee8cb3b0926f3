//! A piece of GPU work captured by hand, as `torch.cuda.graph` does.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroUsize;

use device::ops::Copy;

use crate::context::StepContext;
use crate::error::{Error, Result};
use crate::manager::CudaGraphManager;
use crate::options::ManagerOptions;
use crate::policy::Policy;
use crate::pool::Pool;
use crate::report::Report;
use crate::tensor_tree::{TensorTree, tensors};

/// The shapes and types of a capture's inputs, as one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Signature(u64);

/// The policy of a [`Capture`]: one region, captured for each [`Signature`].
#[derive(Clone, Copy, Debug, Default)]
pub struct ByHand;

impl Policy for ByHand {
    type Region = &'static str;
    type Mode = Signature;
}

/// The work of a capture.
type Code<I, O> = Box<dyn for<'m> FnMut(&mut StepContext<'m, ByHand>, I) -> Result<O>>;

/// A piece of GPU work that becomes a graph: forward, loss, backward, update, or any part of them.
///
/// Each [`Capture::run`] does the work once. The first runs are eager and warm up, then one captures, the later ones
/// launch the graph. Inputs are copied into buffers of the capture, so they may lie anywhere. An input of another shape
/// has a plan and a graph of its own, within a bound.
///
/// Tensors that the code names itself, such as weights or static buffers, are read and written in place. Fill a static
/// buffer before each run with [`device::Stream::write`].
///
/// ```
/// use std::num::NonZeroUsize;
///
/// use device::ops::Add;
/// use device::{DType, Device, HostOptions, Tensor};
/// use graph_manager::{Capture, Pool};
///
/// let device = Device::host(HostOptions::default())?;
/// let area = device.allocate("x", 4 * 4)?;
/// let x = area.tensor("x", 0, [4], DType::F32);
/// let pool = Pool::new(device.stream("compute"));
/// let mut double = Capture::new(&pool, "double", 1, NonZeroUsize::MIN, |cx, x: Tensor| {
///     let output = cx.tensor("output", x.shape, DType::F32)?;
///     cx.run(Add { a: x, b: x, output })?;
///     Ok(output)
/// })?;
/// for value in [1.0_f32, 2.0, 3.0] {
///     device.upload(&x, &[value; 4])?;
///     let output = double.run(x)?; // eager, captured, replayed
///     assert_eq!(device.download::<f32>(&output)?, [2.0 * value; 4]);
/// }
/// assert_eq!(double.report().graphs.len(), 1);
/// # Ok::<(), graph_manager::Error>(())
/// ```
pub struct Capture<I: TensorTree, O: TensorTree> {
    name: &'static str,
    manager: CudaGraphManager<ByHand>,
    code: Code<I, O>,
}

impl<I: TensorTree, O: TensorTree> Capture<I, O> {
    /// A capture. Its graphs run on the pool's stream and share the pool's scratch. `warm_up` runs, at least one, are
    /// eager for each shape of input; at most `shapes` shapes have graphs at a time. `code` owns the tensors that it
    /// uses: move copies into it.
    ///
    /// # Errors
    /// [`Error::Usage`] without a warm-up run.
    pub fn new(
        pool: &Pool,
        name: &'static str,
        warm_up: usize,
        shapes: NonZeroUsize,
        code: impl for<'m> FnMut(&mut StepContext<'m, ByHand>, I) -> Result<O> + 'static,
    ) -> Result<Capture<I, O>> {
        let options = ManagerOptions { plan_limit: shapes, ..ManagerOptions::for_one_plan(warm_up) };
        Ok(Capture { name, manager: CudaGraphManager::in_pool(pool, options, ByHand)?, code: Box::new(code) })
    }

    /// Does the work. Its result stays until the next run overwrites it; see [`Capture::run_into`].
    ///
    /// Inside a region of another step, or another capture, the graph becomes a child of the other graph. It needs a
    /// [`Pool`] of its own then.
    ///
    /// # Errors
    /// Errors of the work; [`Error::Usage`] inside another region of the same pool, or inside a region of another pool
    /// before this shape has its graph.
    pub fn run(&mut self, input: I) -> Result<O> {
        let signature = signature(&input)?;
        let pool = &self.manager.pool;
        pool.check_free()?;
        if pool.is_nested() && !self.manager.is_settled(signature, 1) {
            let problem = format!("`{}` has no graph yet and was run inside another region", self.name);
            let fix = "run it before, once more than it has warm-up runs, with inputs of this shape";
            return Err(Error::usage(problem, fix));
        }
        let (name, code, inputs) = (self.name, &mut self.code, tensors(&input)?);
        let step = &mut |cx: &mut StepContext<'_, ByHand>| cx.region(name, input.clone(), &mut *code);
        // Regions inside have inputs of their own.
        self.manager.step_from(signature, 1, step, &|visit, number, own| if visit == 0 { inputs[number] } else { own })
    }

    /// Does the work, and copies its result to `output`. Later runs do not overwrite `output`.
    ///
    /// # Errors
    /// As [`Capture::run`]; shapes or numbers of tensors that do not fit.
    pub fn run_into(&mut self, input: I, output: &O) -> Result<()> {
        let (from, to) = (tensors(&self.run(input)?)?, tensors(output)?);
        if from.len() != to.len() {
            let problem = format!("`{}` returns {}, and `output` has {}", self.name, from.len(), to.len());
            return Err(Error::usage(problem, "give an output with a tensor for each that is returned"));
        }
        let compute = self.manager.pool.compute();
        from.into_iter().zip(to).try_for_each(|(input, output)| Ok(compute.submit(Copy { input, output })?))
    }

    /// The report on all graphs captured so far.
    pub fn report(&self) -> Report {
        self.manager.report()
    }

    /// Forgets all graphs and gives their memory back. The next run begins anew.
    ///
    /// # Errors
    /// As [`CudaGraphManager::reset`].
    pub fn reset(&mut self) -> Result<()> {
        self.manager.reset()
    }
}

fn signature(input: &impl TensorTree) -> Result<Signature> {
    let mut hasher = DefaultHasher::new();
    for tensor in tensors(input)? {
        (tensor.shape, tensor.dtype).hash(&mut hasher);
    }
    Ok(Signature(hasher.finish()))
}
