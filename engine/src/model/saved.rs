//! The values that a forward leaves for its backward.

use std::any::Any;
use std::rc::Rc;

/// The values that the forward of a layer or a part leaves for its backward. Each kind of layer has a type of its own.
#[derive(Clone)]
pub struct Saved(Rc<dyn Any>);

impl Saved {
    /// Wraps the values that a forward leaves.
    pub fn new<T: 'static>(value: T) -> Saved {
        Saved(Rc::new(value))
    }

    /// The values that the forward left.
    ///
    /// # Panics
    /// If it left another type: a backward gets the values of the same layer's forward.
    pub fn get<T: 'static>(&self) -> &T {
        match self.0.downcast_ref::<T>() {
            Some(value) => value,
            None => unreachable!("a backward gets what its own forward left"),
        }
    }
}
