//! What a step changes outside of itself goes back, however the step ends.

/// Does something when it is dropped: at the end of a scope, and where a panic leaves it.
pub(crate) struct Finally<F: FnMut()>(pub(crate) F);

impl<F: FnMut()> Drop for Finally<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
