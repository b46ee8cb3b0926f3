//! The operation of a caller's own whose code runs on this thread. It works on its tensors alone: its device is in use
//! while it runs.

use std::cell::Cell;

thread_local! {
    static RUNNING: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Ends the run that [`run`] began. Holds the operation that ran before: one of another device may run within one.
struct Running(Option<&'static str>);

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.set(self.0);
    }
}

/// Runs the code of the operation `op`.
pub(crate) fn run<T>(op: &'static str, code: impl FnOnce() -> T) -> T {
    let _running = Running(RUNNING.replace(Some(op)));
    code()
}

/// The operation whose code runs on this thread. `None` if none does.
pub(crate) fn running() -> Option<&'static str> {
    RUNNING.get()
}
