//! The interface for a step's code: the stream to submit to, buffers from the plan, and side streams.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use device::{Accesses, BufferName, DType, Device, Home, Op, Shape, Stream, Tensor};

use crate::error::{Error, Result};
use crate::manager::CudaGraphManager;
use crate::passes::{DoneIn, Passes, Then};
use crate::policy::Policy;
use crate::program::{HostCall, Recorder};
use crate::side_stream::{Fork, SideStream};
use crate::tensor_tree::{TensorTree, tensors};

/// A step during the step's recording: its list is being made. Nothing runs. So there are no values to read and there
/// is nothing to wait for: code that reads or waits fails.
pub struct StepContext<'m, P: Policy> {
    pub(crate) manager: &'m mut CudaGraphManager<P>,
    pub(crate) mode: P::Mode,
    pub(crate) microbatches: usize,
    pub(crate) recorder: RefCell<Recorder<P::Region>>,
    pub(crate) passes: Passes<P::Region>,
    /// The innermost region.
    pub(crate) current: Option<Current<P::Region>>,
    /// See [`StepContext::is_last_microbatch`].
    pub(crate) every_microbatch_is_last: bool,
    /// The innermost region is on the second lane.
    pub(crate) is_aside: bool,
    /// The innermost region that a panic has left.
    pub(crate) unwound: Option<P::Region>,
}

#[derive(Clone)]
pub(crate) struct Current<R> {
    pub(crate) region: R,
    /// The index of the region's visit in the list.
    pub(crate) visit: usize,
    /// The region's microbatch, if the region belongs to one.
    pub(crate) microbatch: Option<usize>,
    /// Whether none of the region's pieces has ended yet, so the next one to end is the first.
    pub(crate) begins: Cell<bool>,
}

impl<'m, P: Policy> StepContext<'m, P> {
    /// A step at the step's beginning.
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
            every_microbatch_is_last: false,
            is_aside: false,
            unwound: None,
        }
    }

    /// The purpose of the step, such as training.
    pub fn mode(&self) -> P::Mode {
        self.mode
    }

    /// Microbatches of the step.
    pub fn microbatches(&self) -> usize {
        self.microbatches
    }

    /// The policy: it describes regions to the manager.
    pub fn policy(&self) -> &P {
        &self.manager.policy
    }

    /// The innermost region under way; `None` outside of any.
    pub fn current_region(&self) -> Option<P::Region> {
        self.current.as_ref().map(|current| current.region)
    }

    /// Whether the current work belongs to the step's first microbatch, or to none. Such work overwrites sums; that of
    /// later microbatches adds to them.
    pub fn is_first_microbatch(&self) -> bool {
        self.microbatch().is_none_or(|microbatch| microbatch == 0)
    }

    /// Whether the current work belongs to the step's last microbatch, or to none. After such work the step adds nothing
    /// more to sums, so it may reduce them over ranks.
    pub fn is_last_microbatch(&self) -> bool {
        self.every_microbatch_is_last || self.microbatch().is_none_or(|microbatch| microbatch + 1 == self.microbatches)
    }

    /// The microbatch that the current work belongs to, counted from 0. `None` if it belongs to none.
    pub fn microbatch(&self) -> Option<usize> {
        self.current.as_ref().and_then(|current| current.microbatch)
    }

    /// The stream that the current region runs on: the compute stream, or the second lane. It has been given all that
    /// the region has submitted so far, so work may be submitted to it directly.
    ///
    /// If passes refuse that, the end of the region returns the error.
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

    /// As [`StepContext::compute`]. Operations that wait for the passes are not given to it yet.
    pub(crate) fn stream(&self) -> &Stream {
        if self.is_aside { self.manager.pool.lane().stream() } else { self.manager.pool.compute() }
    }

    /// Submits an operation to the stream of the current region.
    ///
    /// # Errors
    /// Errors of the device; an update of weights with a status that no `clip_scale` of the step has written. The
    /// region that returns the error adds its name.
    pub fn run(&self, op: impl Into<Op>) -> Result<()> {
        let op = op.into();
        if self.has_passes() {
            return self.give(op, DoneIn::AllSteps);
        }
        self.recorder.borrow().check_status(&op)?;
        Ok(self.stream().submit(op)?)
    }

    /// As [`StepContext::run`], for an operation with a lasting result: steps with graphs leave it out and use the
    /// result of earlier steps. The first real step of a mode always runs it, also after a rehearsal.
    ///
    /// # Errors
    /// As [`StepContext::run`].
    pub fn run_early(&mut self, op: impl Into<Op>) -> Result<()> {
        if self.has_passes() {
            return self.give(op.into(), DoneIn::FirstSteps);
        }
        self.recorder.borrow_mut().hear(self.manager.pool.device());
        self.run(op)?;
        self.recorder.borrow_mut().hear_early(self.manager.pool.device());
        Ok(())
    }

    /// Has the host call `call` each time that the step runs, in the call's place in the step. `call` gets the stream
    /// of the region, with all earlier work submitted to it, and `reads` and `writes` with their addresses in the step.
    /// It may read, write and wait. A graph cannot contain a host call, so the region must be eager.
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

    /// Starts operations on a side stream, after all earlier submissions. They run next to later work until they are
    /// joined.
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

    /// Makes later work wait for the operations of the fork, and for all work started on the fork's stream since.
    ///
    /// # Errors
    /// Errors of the device, such as a failed transfer.
    pub fn join(&self, fork: Fork) -> Result<()> {
        self.end_piece(Then::More)?;
        Ok(fork.join(self.stream())?)
    }

    /// A buffer of the current region. It lives until its last use. That may be in a later region.
    ///
    /// # Errors
    /// [`Error::Usage`] outside of a region.
    pub fn tensor(&mut self, name: &'static str, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        self.tensor_in(Home::Device, name, shape, dtype)
    }

    /// As [`StepContext::tensor`], in the device's memory or the host's. Of operations only a
    /// [`Move`](device::ops::Move) may use memory of the host.
    ///
    /// # Errors
    /// As [`StepContext::tensor`].
    pub fn tensor_in(
        &mut self,
        home: Home,
        name: &'static str,
        shape: impl Into<Shape>,
        dtype: DType,
    ) -> Result<Tensor> {
        let Some(current) = &self.current else {
            let problem = format!("buffer `{name}` was taken outside of any region");
            return Err(Error::usage(problem, "take it inside StepContext::region"));
        };
        let device = self.manager.pool.device();
        let region = self.recorder.borrow().name(current.visit);
        let tensor = device.virtual_tensor(BufferName::Within(region, name), shape, dtype);
        self.recorder.borrow_mut().take(device, name, &tensor, home);
        Ok(tensor)
    }

    /// Keeps the memory of tensors up to here, for code outside of the step that reads a region's results.
    pub(crate) fn keep(&mut self, tree: &impl TensorTree) -> Result<()> {
        self.recorder.borrow_mut().keep(self.manager.pool.device(), &tensors(tree)?);
        Ok(())
    }

    /// Fails if a panic has left a region of this step and the step goes on: the region's work is half done.
    pub(crate) fn check_unwound(&self) -> Result<()> {
        let Some(region) = self.unwound else { return Ok(()) };
        let problem = format!("{region}: it ended with a panic, and the step went on");
        Err(Error::usage(problem, "catch the panic around the whole step"))
    }
}
