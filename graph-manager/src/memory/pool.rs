//! Memory that several managers and captures share.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use device::{Area, Device, Stream, StreamId};

use crate::error::{Error, Result};
use crate::finally::Finally;
use crate::side_stream::SideStream;

/// A stream, and the scratch memory of all graphs captured on that stream. Managers and captures of one pool share scratch,
/// because a stream runs one of their graphs at a time. The results of a graph lie outside of the shared scratch.
///
/// Memory is given back when the last manager or capture that uses it is dropped.
///
/// A pool, and all that uses it, belong to the thread that made the device:
///
/// ```compile_fail,E0277
/// # use device::{Device, HostOptions};
/// # use graph_manager::Pool;
/// let device = Device::host(HostOptions::default())?;
/// let pool = Pool::new(device.stream("compute"));
/// std::thread::spawn(move || pool.bytes()); // error: `Rc<..>` cannot be sent between threads safely
/// # Ok::<(), graph_manager::Error>(())
/// ```
#[derive(Clone)]
pub struct Pool {
    shared: Rc<Shared>,
}

struct Shared {
    scratch: RefCell<Vec<(StreamId, Weak<Area>)>>,
    /// Whether a step of the pool is under way.
    busy: Cell<bool>,
    /// See [`StepContext::side_stream`](crate::StepContext::side_stream).
    side: Rc<SideStream>,
    /// The second lane; see [`StepPass::runs_aside`](crate::StepPass::runs_aside).
    lane: Rc<SideStream>,
    hooks: Option<Rc<dyn GraphHooks>>,
    compute: Stream,
}

impl Pool {
    /// A pool of graphs that are launched on `compute`.
    pub fn new(compute: Stream) -> Pool {
        Pool::of(compute, None)
    }

    /// As [`Pool::new`]. The hooks are called at the turning points of each graph.
    pub fn with_hooks(compute: Stream, hooks: Rc<dyn GraphHooks>) -> Pool {
        Pool::of(compute, Some(hooks))
    }

    fn of(compute: Stream, hooks: Option<Rc<dyn GraphHooks>>) -> Pool {
        let side = SideStream::new(compute.device(), "side");
        let lane = SideStream::background(compute.device(), "second lane");
        let (scratch, busy) = (RefCell::default(), Cell::new(false));
        Pool { shared: Rc::new(Shared { scratch, busy, side, lane, hooks, compute }) }
    }

    /// The stream that the pool's graphs are launched on.
    pub fn compute(&self) -> &Stream {
        &self.shared.compute
    }

    /// The stream's device.
    pub fn device(&self) -> &Device {
        self.shared.compute.device()
    }

    /// Bytes of scratch in use.
    pub fn bytes(&self) -> usize {
        self.shared.scratch.borrow().iter().filter_map(|(_, area)| area.upgrade()).map(|area| area.bytes()).sum()
    }

    pub(crate) fn side(&self) -> &Rc<SideStream> {
        &self.shared.side
    }

    pub(crate) fn lane(&self) -> &Rc<SideStream> {
        &self.shared.lane
    }

    /// Calls a hook, if the pool has hooks.
    pub(crate) fn hook(&self, call: impl FnOnce(&dyn GraphHooks)) {
        if let Some(hooks) = &self.shared.hooks {
            call(&**hooks);
        }
    }

    /// Whether a region of some step is being recorded or captured.
    pub(crate) fn is_nested(&self) -> bool {
        self.device().is_tracing() || self.compute().is_capturing()
    }

    /// Fails while a step of the pool is under way: another one would write over the scratch in use.
    pub(crate) fn check_free(&self) -> Result<()> {
        if !self.shared.busy.get() {
            return Ok(());
        }
        let problem = "a capture or step was run inside a region that it shares scratch with";
        Err(Error::usage(problem, "give the inner one a Pool of its own, on the same stream"))
    }

    /// Does the work of a step.
    ///
    /// # Errors
    /// Errors of the step; as [`Pool::check_free`].
    pub(crate) fn during<T>(&self, step: impl FnOnce() -> Result<T>) -> Result<T> {
        self.check_free()?;
        self.shared.busy.set(true);
        let _free_again = Finally(|| self.shared.busy.set(false));
        step()
    }

    /// Scratch of a stream: the memory that is there if it is large enough, else new memory. Graphs hold the addresses
    /// of the old memory, so it cannot grow.
    pub(crate) fn scratch(&self, stream: StreamId, name: &str, bytes: usize) -> Result<Rc<Area>> {
        let mut scratch = self.shared.scratch.borrow_mut();
        scratch.retain(|(_, area)| area.strong_count() > 0);
        let of_stream = scratch.iter().filter(|(of, _)| *of == stream).filter_map(|(_, area)| area.upgrade());
        if let Some(area) = of_stream.filter(|area| area.bytes() >= bytes).min_by_key(|area| area.bytes()) {
            return Ok(area);
        }
        let area = Rc::new(self.device().allocate(name, bytes)?);
        scratch.push((stream, Rc::downgrade(&area)));
        Ok(area)
    }
}

/// Called by the host at the turning points of a graph. `graph` is its name: that of its region. Give them to
/// [`Pool::with_hooks`](crate::Pool::with_hooks). Each method does nothing unless you write it.
pub trait GraphHooks {
    /// The region is about to be captured.
    fn before_capture(&self, _graph: &str) {}

    /// All operations of the region are captured. The stream still captures, so submit nothing to it. Next, the driver
    /// makes a graph of them that can be launched.
    fn before_instantiate(&self, _graph: &str) {}

    /// The graph can be launched. It has so many operations.
    fn after_instantiate(&self, _graph: &str, _nodes: usize) {}

    /// The graph is about to be launched, for the first time right after the capture. A graph that becomes a part of
    /// another, because a [`Capture`](crate::Capture) runs inside a region, is not launched itself.
    fn before_replay(&self, _graph: &str) {}

    /// The graph was launched. Its work may still be under way.
    fn after_replay(&self, _graph: &str) {}

    /// The graph is about to be given back to the driver.
    fn before_drop(&self, _graph: &str) {}
}
