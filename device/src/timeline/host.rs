//! The host's clock: streams run inline, so an operation's span is when it ran here.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use super::{Note, Span};

/// Collects spans between `begin` and `end`.
#[derive(Clone, Default)]
pub(crate) struct HostClock {
    running: Rc<RefCell<Option<Running>>>,
}

struct Running {
    began: Instant,
    spans: Vec<Span>,
}

/// A span that ends when this is dropped.
pub(crate) struct OpenSpan {
    clock: HostClock,
    /// All of it but the duration.
    span: Option<Span>,
}

impl HostClock {
    pub(super) fn begin(&self) {
        *self.running.borrow_mut() = Some(Running { began: Instant::now(), spans: Vec::new() });
    }

    pub(super) fn end(&self) -> Vec<Span> {
        self.running.borrow_mut().take().map_or_else(Vec::new, |running| running.spans)
    }

    pub(super) fn is_running(&self) -> bool {
        self.running.borrow().is_some()
    }

    pub(super) fn open(&self, row: &str, category: &'static str, name: &str) -> Note {
        let Some(start_ns) = self.now() else { return Note::Nothing };
        let (row, name) = (row.to_string(), name.to_string());
        let span = Span { row, name, category, start_ns, duration_ns: 0, details: Vec::new() };
        Note::Host(OpenSpan { clock: self.clone(), span: Some(span) })
    }

    /// Nanoseconds from the beginning, while a timeline is made.
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
