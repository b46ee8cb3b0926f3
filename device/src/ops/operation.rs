//! The interface of every operation.

use super::Accesses;
use crate::{DType, Result, Tensor};

/// The interface of every operation.
pub trait Operation: Clone + PartialEq {
    /// The operation's name in errors, reports and traces.
    const NAME: &'static str;
    /// The names that values have.
    const NAMES: &'static [&'static str] = &[Self::NAME];

    /// The name of this value. Some operations have several names.
    fn name(&self) -> &'static str {
        Self::NAME
    }

    /// Checks shapes and types.
    ///
    /// # Errors
    /// [`Error::Operation`](crate::Error::Operation) with the shapes that do not fit.
    fn check(&self) -> Result<()>;

    /// The tensors that the operation reads and writes.
    fn accesses(&self) -> Accesses;

    /// Floating-point operations of the operation's matrix products. For attention only unmasked pairs count. 0 for
    /// operations without products.
    fn flops(&self) -> f64 {
        0.0
    }

    /// Bytes that the operation reads and writes. A tensor updated in place counts twice.
    fn bytes(&self) -> f64 {
        self.accesses().all().map(|tensor| tensor.bytes() as f64).sum()
    }

    /// The operation's shape in words: rows, columns and inner size of a product, otherwise the shape of the largest
    /// tensor that it writes, or reads if it writes none.
    fn shape(&self) -> String {
        let accesses = self.accesses();
        let of = if accesses.writes.is_empty() { &accesses.reads } else { &accesses.writes };
        let largest = of.iter().max_by_key(|tensor| tensor.bytes());
        let words = |tensor: &Tensor| tensor.shape.sizes().iter().map(usize::to_string).collect::<Vec<_>>().join(" x ");
        largest.map_or_else(String::new, words)
    }

    /// The type of the factors of a product or attention. `None` for other operations.
    fn factor_type(&self) -> Option<DType> {
        None
    }

    /// The status of the step's gradients that the operation makes.
    fn makes_status(&self) -> Option<Tensor> {
        None
    }

    /// The status that decides whether the operation writes anything. An operation before it in the step must make that
    /// status. Otherwise it would skip every step in silence.
    fn follows_status(&self) -> Option<Tensor> {
        None
    }

    /// Calls `each` with every tensor of the operation. `each` may replace the tensor. The order is always the same. A tensor
    /// that is named twice is shown twice.
    fn each_tensor(&mut self, each: &mut dyn FnMut(&mut Tensor));
}
