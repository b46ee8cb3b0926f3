//! The trial of an operation, and the list that trials are added to.

use super::workbench::{Make, Workbench};
use crate::{DType, Op, Result};

/// The trial of an operation.
pub struct Case {
    /// The operation, and how it differs from other cases of it.
    pub name: String,
    /// The type of the operation's larger tensors.
    pub dtype: DType,
    /// Makes the operation and its tensors.
    pub make: Make,
}

/// Trials, and how further ones differ.
pub(super) struct Trials {
    pub(super) cases: Vec<Case>,
    pub(super) dtype: DType,
    /// The end of the names of further trials.
    pub(super) label: String,
}

impl Trials {
    /// Adds a trial, by its name.
    pub(super) fn add<O: Into<Op>>(&mut self, name: &str, make: impl Fn(&mut Workbench) -> Result<O> + 'static) {
        let name = format!("{name}{}", self.label);
        self.cases.push(Case { name, dtype: self.dtype, make: Box::new(move |bench| make(bench).map(O::into)) });
    }

    /// Adds the trials that `add` adds, their names followed by `label`.
    pub(super) fn labelled(&mut self, label: &str, add: impl FnOnce(&mut Trials)) {
        let outer = self.label.clone();
        self.label = format!("{label}{outer}");
        add(self);
        self.label = outer;
    }
}
