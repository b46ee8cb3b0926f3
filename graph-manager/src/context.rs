//! What a step's code sees: the stream to submit to, buffers from the plan, and side streams.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use device::{Accesses, BufferName, DType, Device, Op, Shape, Stream, Tensor};

use crate::error::{Error, Result};
use crate::manager::CudaGraphManager;
use crate::passes::{Passes, Then};
use crate::policy::Policy;
use crate::program::{HostCall, Recorder};
use crate::side_stream::{Fork, SideStream};
use crate::tensor_tree::{TensorTree, tensors};

/// A step whose list is being made. Nothing runs: there are no values to read and nothing to wait for, and code that does so
/// fails.
pub struct StepContext<'m, P: Policy> {
    pub(crate) manager: &'m mut CudaGraphManager<P>,
    pub(crate) mode: P::Mode,
    pub(crate) microbatches: usize,
    pub(crate) recorder: RefCell<Recorder<P::Region>>,
    pub(crate) passes: Passes<P::Region>,
    /// The innermost region.
    pub(crate) current: Option<Current<P::Region>>,
    /// The innermost region is on the second lane.
    pub(crate) is_aside: bool,
    /// The innermost region that a panic has left.
    pub(crate) unwound: Option<P::Region>,
}

#[derive(Clone)]
pub(crate) struct Current<R> {
    pub(crate) region: R,
    /// Index in the recorded order.
    pub(crate) visit: usize,
    /// It belongs to the first microbatch, or to none.
    pub(crate) is_of_first: bool,
    /// No piece of it has ended.
    pub(crate) begins: Cell<bool>,
}

impl<'m, P: Policy> StepContext<'m, P> {
    /// A step at its beginning.
    pub(crate) fn new(
        manager: &'m mut CudaGraphManager<P>,
        mode: P::Mode,
        microbatches: usize,
        recorder: Recorder<P::Region>,
    ) -> StepContext<'m, P> {
        StepContext {
            manager,
            mode,
            microbatches,
            recorder: RefCell::new(recorder),
            passes: Passes::none(),
            current: None,
            is_aside: false,
            unwound: None,
        }
    }

    /// What the step is for.
    pub fn mode(&self) -> P::Mode {
        self.mode
    }

    /// Microbatches of the step.
    pub fn microbatches(&self) -> usize {
        self.microbatches
    }

    /// What the manager was told about regions.
    pub fn policy(&self) -> &P {
        &self.manager.policy
    }

    /// The innermost region under way; `None` outside of any.
    pub fn current_region(&self) -> Option<P::Region> {
        self.current.as_ref().map(|current| current.region)
    }

    /// Whether what runs now belongs to the step's first microbatch: it overwrites what later ones add to. Work of no microbatch
    /// does too.
    pub fn is_first_microbatch(&self) -> bool {
        self.current.as_ref().is_none_or(|current| current.is_of_first)
    }

    /// The stream that the current region runs on. It has been given all that the region has submitted so far, so work may be
    /// submitted to it directly.
    ///
    /// What passes find wrong with that is an error of the region's end.
    pub fn compute(&self) -> &Stream {
        if let Err(error) = self.end_piece(Then::More) {
            self.passes.note(error);
        }
        self.stream()
    }

    /// The device of the step.
    pub fn device(&self) -> &Device {
        self.manager.pool.device()
    }

    /// The stream that the current region runs on.
    pub(crate) fn stream(&self) -> &Stream {
        if self.is_aside { self.manager.pool.lane().stream() } else { self.manager.pool.compute() }
    }

    /// Submits an operation to the stream of the current region.
    ///
    /// # Errors
    /// Errors of the device; an update of weights whose status no `clip_scale` of the step has written. The region that
    /// returns the error adds its name.
    pub fn run(&self, op: impl Into<Op>) -> Result<()> {
        let op = op.into();
        if self.has_passes() {
            return self.give(op, false);
        }
        self.recorder.borrow().check_status(&op)?;
        Ok(self.stream().submit(op)?)
    }

    /// As [`StepContext::run`], of an operation that the first steps do and that later ones find done: steps with graphs leave
    /// it out. The first real step of a mode always does it, also after a rehearsal.
    ///
    /// # Errors
    /// As [`StepContext::run`].
    pub fn run_early(&mut self, op: impl Into<Op>) -> Result<()> {
        if self.has_passes() {
            return self.give(op.into(), true);
        }
        self.recorder.borrow_mut().hear(self.manager.pool.device());
        self.run(op)?;
        self.recorder.borrow_mut().hear_early(self.manager.pool.device());
        Ok(())
    }

    /// Has the host call `call` each time that the step runs, in its place in the step. It gets the stream of the region, which
    /// has been given all that comes before, and `reads` and `writes` with their addresses in the step. It may read, write and
    /// wait. Graphs cannot have it: the region is eager.
    ///
    /// # Errors
    /// The first of `reads` and `writes` that cannot be named.
    pub fn host_call<R: TensorTree, W: TensorTree>(
        &mut self,
        name: &'static str,
        reads: R,
        writes: W,
        call: impl Fn(&Stream, R, W) -> Result<()> + 'static,
    ) -> Result<()> {
        self.end_piece(Then::More)?;
        let accesses = Accesses::new(tensors(&reads)?, tensors(&writes)?);
        self.passes.check_direct(self.current_region(), name, &accesses)?;
        let call = Box::new(move |stream: &Stream, place: &dyn Fn(Tensor) -> Tensor| {
            let (reads, writes) =
                (reads.map(&mut |_, tensor| Ok(place(tensor)))?, writes.map(&mut |_, tensor| Ok(place(tensor)))?);
            call(stream, reads, writes)
        });
        self.recorder.borrow_mut().host_call(self.manager.pool.device(), HostCall { name, accesses, call });
        Ok(())
    }

    /// A side stream that all regions share.
    pub fn side_stream(&self) -> &Rc<SideStream> {
        self.manager.pool.side()
    }

    /// Starts operations on a side stream, after all that was submitted so far. They run next to what follows until they
    /// are joined.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn fork(&self, side: &Rc<SideStream>, work: impl IntoIterator<Item = Op>) -> Result<Fork> {
        self.end_piece(Then::More)?;
        let work: Vec<Op> = work.into_iter().collect();
        let region = self.current_region();
        work.iter().try_for_each(|op| self.passes.check_direct(region, op.name(), &op.accesses()))?;
        Ok(Fork::start(side, self.stream(), work)?)
    }

    /// Makes what follows wait for the operations under way, and for all that was started on their stream since.
    ///
    /// # Errors
    /// Errors of the device, such as a failed transfer.
    pub fn join(&self, fork: Fork) -> Result<()> {
        self.end_piece(Then::More)?;
        Ok(fork.join(self.stream())?)
    }

    /// A buffer of the current region. It lives until its last use, which may be in a later region.
    ///
    /// # Errors
    /// [`Error::Usage`] outside of a region.
    pub fn tensor(&mut self, name: &'static str, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        let Some(current) = &self.current else {
            let problem = format!("buffer `{name}` was taken outside of any region");
            return Err(Error::usage(problem, "take it inside StepContext::region"));
        };
        let device = self.manager.pool.device();
        let region = self.recorder.borrow().name(current.visit);
        let tensor = device.virtual_tensor(BufferName::Within(region, name), shape, dtype);
        self.recorder.borrow_mut().take(device, name, &tensor);
        Ok(tensor)
    }

    /// Keeps the memory of tensors up to here, for code outside of the step that reads what a region returned.
    pub(crate) fn keep(&mut self, tree: &impl TensorTree) -> Result<()> {
        self.recorder.borrow_mut().keep(self.manager.pool.device(), &tensors(tree)?);
        Ok(())
    }

    /// Fails if a panic has left a region of this step, and the step goes on: what the region had to do is half done.
    pub(crate) fn check_unwound(&self) -> Result<()> {
        let Some(region) = self.unwound else { return Ok(()) };
        let problem = format!("{region}: it ended with a panic, and the step went on");
        Err(Error::usage(problem, "catch the panic around the whole step"))
    }
}
