//! State outside of a step is restored, however the step ends.

/// Calls a function when the guard is dropped: at the end of a scope, and also if a panic leaves the scope.
pub(crate) struct Finally<F: FnMut()>(pub(crate) F);

impl<F: FnMut()> Drop for Finally<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
