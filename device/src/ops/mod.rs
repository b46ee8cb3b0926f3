//! The operations. Each is a plain value that names its tensors: submitting it to a stream runs it there,
//! or records it while the stream captures. What an operation reads and writes is part of its value, so the
//! same list serves the host kernels, the CUDA kernels, the memory plan and the graph checker.
//!
//! Shapes are written `(batch, seq, hidden)`; matrices are row-major. Floating operations load f32 or bf16,
//! compute in f32 and round once when storing, unless their documentation says otherwise.

mod activation;
mod attention;
mod cache;
mod collective;
mod control;
mod dropout;
mod elementwise;
mod embedding;
mod gemm;
mod loss;
mod loss_parallel;
mod mark;
mod norm;
mod optimizer;
mod rotary;

pub use activation::{Activation, ActivationBackward, ActivationKind, SwiGlu, SwiGluBackward};
pub use attention::{Attention, AttentionBackward};
pub use cache::{CachedAttention, TakeRows};
pub use collective::{Collective, CollectiveKind};
pub use control::{Control, SampleRecord, Status, WriteControl, WriteSampleRecord};
pub use dropout::{Dropout, DropoutPart, DropoutSite};
pub use elementwise::{Add, BiasGrad, Copy, Fill, Poison};
pub use embedding::{Embedding, EmbeddingBackward};
pub use gemm::{Epilogue, Gemm};
pub use loss::{CrossEntropy, Mse, SumInto};
pub use loss_parallel::{CrossEntropyJoin, CrossEntropyPart, VocabPart};
pub use mark::Mark;
pub use norm::{Norm, NormBackward, NormKind};
pub use optimizer::{AdamW, AdamWTensors, ClipScale, Sgd, SgdTensors, SquareSum};
pub use rotary::Rotary;

use crate::{DType, Error, Result, Tensor};

/// What every operation tells about itself.
pub trait Operation: Clone {
    /// Its name in errors, reports and traces.
    const NAME: &'static str;

    /// The same, where it depends on the value.
    fn name(&self) -> &'static str {
        Self::NAME
    }

    /// Checks shapes and types.
    ///
    /// # Errors
    /// [`Error::Operation`] with the shapes that do not fit.
    fn check(&self) -> Result<()>;

    /// What it reads and writes.
    fn accesses(&self) -> Accesses;
}

/// The tensors an operation reads and those it writes; one that is updated in place is in both.
#[derive(Clone, Debug, Default)]
pub struct Accesses {
    /// Read.
    pub reads: Vec<Tensor>,
    /// Written.
    pub writes: Vec<Tensor>,
}

impl Accesses {
    /// Starts from what is always read and written.
    pub fn new(reads: impl IntoIterator<Item = Tensor>, writes: impl IntoIterator<Item = Tensor>) -> Accesses {
        Accesses { reads: reads.into_iter().collect(), writes: writes.into_iter().collect() }
    }

    /// Adds optional reads.
    pub fn reads(mut self, tensors: impl IntoIterator<Item = Tensor>) -> Accesses {
        self.reads.extend(tensors);
        self
    }

    /// Adds optional writes.
    pub fn writes(mut self, tensors: impl IntoIterator<Item = Tensor>) -> Accesses {
        self.writes.extend(tensors);
        self
    }

    /// Whether one writes memory that the other reads or writes, so that their order matters.
    pub fn conflicts(&self, other: &Accesses) -> bool {
        let meet = |a: &[Tensor], b: &[Tensor]| a.iter().any(|a| b.iter().any(|b| overlap(a, b)));
        meet(&self.writes, &other.writes) || meet(&self.writes, &other.reads) || meet(&self.reads, &other.writes)
    }
}

fn overlap(a: &Tensor, b: &Tensor) -> bool {
    a.range().start < b.range().end && b.range().start < a.range().end
}

/// One enum over all operations, a conversion from each, and the three questions passed on.
macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Any operation.
        #[derive(Clone, Debug)]
        pub enum Op { $($(#[$doc])* $name($name)),* }

        $(impl From<$name> for Op {
            fn from(op: $name) -> Op { Op::$name(op) }
        })*

        impl Op {
            /// The operation's name.
            pub fn name(&self) -> &'static str {
                match self { $(Op::$name(op) => op.name()),* }
            }

            /// Checks shapes and types; see [`Operation::check`].
            ///
            /// # Errors
            /// [`Error::Operation`] with the shapes that do not fit.
            pub fn check(&self) -> Result<()> {
                match self { $(Op::$name(op) => op.check()),* }
            }

            /// What it reads and writes.
            pub fn accesses(&self) -> Accesses {
                match self { $(Op::$name(op) => op.accesses()),* }
            }
        }
    };
}

operations! {
    /// Matrix product with epilogue.
    Gemm,
    /// Column sums.
    BiasGrad,
    /// Elementwise sum.
    Add,
    /// Copy, converting between types.
    Copy,
    /// A constant everywhere.
    Fill,
    /// Bytes no valid value has.
    Poison,
    /// GELU or ReLU.
    Activation,
    /// Its gradient.
    ActivationBackward,
    /// Gated SiLU.
    SwiGlu,
    /// Its gradient.
    SwiGluBackward,
    /// LayerNorm or RMSNorm, with the residual add before it.
    Norm,
    /// Its gradient.
    NormBackward,
    /// Rotary position embedding.
    Rotary,
    /// Causal attention.
    Attention,
    /// Its gradient.
    AttentionBackward,
    /// Attention over a cache of keys and values.
    CachedAttention,
    /// Rows of a table at a position in device memory.
    TakeRows,
    /// Dropout.
    Dropout,
    /// Table lookup.
    Embedding,
    /// Its gradient.
    EmbeddingBackward,
    /// Softmax and cross-entropy, forward and backward.
    CrossEntropy,
    /// Cross-entropy over a part of the vocabulary: what is to be gathered.
    CrossEntropyPart,
    /// The rest of it, forward and backward.
    CrossEntropyJoin,
    /// Mean squared error, forward and backward.
    Mse,
    /// Sum of a vector.
    SumInto,
    /// Sum of squares over many tensors.
    SquareSum,
    /// Gradient norm, clip factor and finite flag.
    ClipScale,
    /// AdamW over many tensors.
    AdamW,
    /// SGD over many tensors.
    Sgd,
    /// Per-step scalars.
    WriteControl,
    /// Per-microbatch counters for dropout.
    WriteSampleRecord,
    /// Communication between ranks.
    Collective,
    /// How far the work has come.
    Mark,
}

/// Fails with `problem` unless `ok`.
pub(crate) fn ensure(op: &'static str, ok: bool, problem: impl FnOnce() -> String) -> Result<()> {
    if ok { Ok(()) } else { Err(Error::operation(op, problem())) }
}

/// Fails unless `tensor` has the given sizes.
pub(crate) fn ensure_shape(op: &'static str, name: &str, tensor: &Tensor, sizes: &[usize]) -> Result<()> {
    ensure(op, tensor.shape.sizes() == sizes, || {
        format!("`{name}` has shape {:?}, needs {:?}", tensor.shape, crate::Shape::new(sizes))
    })
}

/// Fails unless `tensor` has the given number of elements.
pub(crate) fn ensure_elements(op: &'static str, name: &str, tensor: &Tensor, elements: usize) -> Result<()> {
    ensure(op, tensor.elements() == elements, || {
        format!("`{name}` of shape {:?} has {} elements, needs {elements}", tensor.shape, tensor.elements())
    })
}

/// Fails unless `tensor` is of the given type.
pub(crate) fn ensure_dtype(op: &'static str, name: &str, tensor: &Tensor, dtype: DType) -> Result<()> {
    ensure(op, tensor.dtype == dtype, || format!("`{name}` is {}, needs {dtype}", tensor.dtype))
}

/// Fails unless all tensors are of one floating type.
pub(crate) fn ensure_float(op: &'static str, tensors: &[(&str, Tensor)]) -> Result<()> {
    let dtype = tensors[0].1.dtype;
    for (name, tensor) in tensors {
        ensure(op, matches!(tensor.dtype, DType::F32 | DType::Bf16) && tensor.dtype == dtype, || {
            format!("`{name}` is {}, needs {dtype} like `{}`, f32 or bf16", tensor.dtype, tensors[0].0)
        })?;
    }
    Ok(())
}
