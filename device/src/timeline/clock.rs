//! Times of the host device. Streams run inline, so an operation's span is the time of its run here.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use super::Span;

/// Collects spans between `begin` and `end`.
#[derive(Clone, Default)]
pub(crate) struct HostClock {
    running: Rc<RefCell<Option<Running>>>,
}

struct Running {
    began: Instant,
    spans: Vec<Span>,
    /// Spans so far.
    opened: u64,
}

/// A span that ends when this is dropped.
pub(crate) struct OpenSpan {
    clock: HostClock,
    /// Complete but for the duration.
    span: Option<Span>,
}

impl HostClock {
    pub(crate) fn begin(&self) {
        *self.running.borrow_mut() = Some(Running { began: Instant::now(), spans: Vec::new(), opened: 0 });
    }

    pub(crate) fn end(&self) -> Vec<Span> {
        self.running.borrow_mut().take().map_or_else(Vec::new, |running| running.spans)
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running.borrow().is_some()
    }

    /// Begins a span. `None` when no timeline is being made.
    pub(crate) fn open(
        &self,
        row: &str,
        category: &'static str,
        name: &str,
        details: impl FnOnce() -> Vec<(&'static str, String)>,
    ) -> Option<OpenSpan> {
        let start_ns = self.now()?;
        let submission = self.running.borrow_mut().as_mut().map_or(0, |running| {
            running.opened += 1;
            running.opened
        });
        let (row, name) = (row.to_string(), name.to_string());
        let span = Span { row, name, category, start_ns, duration_ns: 0, details: details(), submission };
        Some(OpenSpan { clock: self.clone(), span: Some(span) })
    }

    /// Nanoseconds since `begin`. `None` when no timeline is being made.
    fn now(&self) -> Option<u64> {
        self.running.borrow().as_ref().map(|running| running.began.elapsed().as_nanos() as u64)
    }
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        let end = self.clock.now();
        if let (Some(mut span), Some(end), Some(running)) =
            (self.span.take(), end, self.clock.running.borrow_mut().as_mut())
        {
            span.duration_ns = end.saturating_sub(span.start_ns);
            running.spans.push(span);
        }
    }
}
