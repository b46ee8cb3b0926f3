//! Times of work on the GPU from CUPTI, NVIDIA's profiling library: kernels, copies and memory sets, inside graphs too,
//! and the calls that the host made.
//!
//! Work gets its name in one of two ways. Work that is submitted eagerly has an external correlation id. CUPTI reports
//! it together with the correlation id of the driver's call, and so of the kernel. A kernel in a graph carries its
//! node's id. [`nodes`] notes the operation of a node when it is captured and again when instantiation clones it.

mod library;
mod nodes;
mod records;
mod spans;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use library::{call, sys};
pub(super) use nodes::name_nodes_like;
use spans::Submitted;

use super::driver::RawStream;
use super::libraries::Library;
use crate::Result;
use crate::timeline::Span;

/// The kinds of activity that are recorded.
const KINDS: [sys::CUpti_ActivityKind; 6] = [
    sys::CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
    sys::CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMCPY,
    sys::CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMSET,
    sys::CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_DRIVER,
    sys::CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_RUNTIME,
    sys::CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
];

/// The process's subscription to CUPTI.
pub(crate) struct Cupti {
    subscription: library::Subscription,
    /// When the timeline under way began, in CUPTI's nanoseconds.
    began: Cell<Option<u64>>,
    /// The entry at index n has id n + 1 in CUPTI.
    submitted: Rc<RefCell<Vec<Submitted>>>,
}

/// An operation that is being submitted. All that CUPTI sees until this is dropped belongs to it.
pub(crate) struct CuptiNote {
    correlated: bool,
    /// The submitted operations, and the index of this one, if the operation's time is taken.
    timed: Option<(Rc<RefCell<Vec<Submitted>>>, usize)>,
}

impl Cupti {
    /// Loads CUPTI and subscribes to every graph node from now on.
    ///
    /// # Errors
    /// The library is missing, or another profiler is attached to this process.
    pub(crate) fn open() -> Result<Cupti> {
        Library::Cupti.load()?;
        let subscription = library::Subscription::new(nodes::on_resource)?;
        records::register()?;
        Ok(Cupti { subscription, began: Cell::new(None), submitted: Rc::default() })
    }

    pub(crate) fn is_running(&self) -> bool {
        self.began.get().is_some()
    }

    /// Gives a name to all submissions until the note is dropped. `None` if neither a timeline nor a capture is under
    /// way.
    pub(crate) fn submit(
        &self,
        label: &str,
        graph: Option<&str>,
        details: impl FnOnce() -> Vec<(&'static str, String)>,
        capturing: bool,
    ) -> Option<CuptiNote> {
        if !capturing && !self.is_running() {
            return None;
        }
        let mut submitted = self.submitted.borrow_mut();
        let (label, graph, index) = (label.into(), graph.map(str::to_string), submitted.len());
        submitted.push(Submitted { label, graph, details: details(), host: None });
        let id = submitted.len() as u64;
        if capturing {
            nodes::set_current(id);
        }
        // A failure costs a name, not the step.
        let correlated = self.is_running() && library::push_correlation(id).is_ok();
        // The time begins last, so it is without the work above. A failure costs the time.
        let began = if self.is_running() { library::now().ok() } else { None };
        submitted[index].host = began.map(|now| now..now);
        let timed = began.map(|_| (self.submitted.clone(), index));
        Some(CuptiNote { correlated, timed })
    }

    /// Begins a timeline. No work is under way.
    ///
    /// # Errors
    /// CUPTI's.
    pub(crate) fn begin(&self) -> Result<()> {
        records::take();
        for kind in KINDS {
            call("cuptiActivityEnable", library::activity::enable(kind))?;
        }
        self.began.set(Some(library::now()?));
        Ok(())
    }

    /// Ends the timeline and returns its spans. No work is under way. `streams` are the streams and their names.
    ///
    /// # Errors
    /// CUPTI's.
    pub(crate) fn end<'a>(&self, streams: impl Iterator<Item = (Rc<RawStream>, &'a str)>) -> Result<Vec<Span>> {
        let Some(began) = self.began.take() else { return Ok(Vec::new()) };
        library::flush()?;
        for kind in KINDS {
            call("cuptiActivityDisable", library::activity::disable(kind))?;
        }
        library::flush()?;
        let mut names = HashMap::new();
        for (stream, name) in streams {
            names.insert(self.subscription.stream_id(&stream)?, name.to_string());
        }
        let (records, lost) = records::take();
        if lost > 0 {
            tracing::warn!("CUPTI had no room for {lost} records: the timeline has gaps");
        }
        let submitted = self.submitted.borrow();
        let names = spans::SpanNames { submitted: &submitted, nodes: &nodes::all(), streams: &names };
        Ok(spans::spans(&records, began, &names, library::callback_name))
    }
}

impl Drop for CuptiNote {
    fn drop(&mut self) {
        if let Some((submitted, index)) = self.timed.take()
            && let Some(host) = &mut submitted.borrow_mut()[index].host
        {
            host.end = library::now().unwrap_or(host.start);
        }
        nodes::set_current(0);
        if self.correlated {
            library::pop_correlation();
        }
    }
}
