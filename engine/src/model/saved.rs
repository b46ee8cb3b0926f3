//! What a forward leaves for its backward.

use std::any::Any;
use std::rc::Rc;

/// What a layer's or a part's forward leaves for its backward: a type of its own.
#[derive(Clone)]
pub struct Saved(Rc<dyn Any>);

impl Saved {
    /// Wraps what a forward leaves.
    pub fn new<T: 'static>(value: T) -> Saved {
        Saved(Rc::new(value))
    }

    /// What the forward left.
    ///
    /// # Panics
    /// If it left another type: a backward gets what the forward of the same layer left.
    pub fn get<T: 'static>(&self) -> &T {
        match self.0.downcast_ref::<T>() {
            Some(value) => value,
            None => unreachable!("a backward gets what its own forward left"),
        }
    }
}
