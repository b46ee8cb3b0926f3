//! Any operation, as one type.

use std::rc::Rc;

#[cfg(feature = "trainer-ops")]
use super::trainer::*;
use super::{
    Accesses, Add, AddPartialColumns, BiasGrad, Collective, Copy, CopyColumns, Custom, CustomOp, Fill, Move, Multiply,
    Operation, OrderRows, PlaceRows, Poison, ProgressMark, Select, When,
};
use crate::cuda::CudaOperation;
#[cfg(feature = "cuda")]
use crate::cuda::KernelFile;
use crate::host::HostOperation;
use crate::{DType, Result, Tensor};

/// An enum over all operations, a conversion from each, and `each!`, an expression of the operation, whichever it is. `$d` is a
/// dollar sign.
macro_rules! operations {
    (
        $d:tt
        always { $($(#[$doc:meta])* $name:ident),* $(,)? }
        $feature:tt { $($(#[$more_doc:meta])* $more:ident),* $(,)? }
    ) => {
        /// Any operation.
        ///
        /// Two are equal if they do the same with the same tensors. Tensors are equal if address, shape, type and buffer are.
        /// Communicators, and the callers' own operations, are compared by identity.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Op {
            $($(#[$doc])* $name($name),)*
            $($(#[$more_doc])* #[cfg(feature = $feature)] $more($more),)*
        }

        $(impl From<$name> for Op {
            fn from(op: $name) -> Op { Op::$name(op) }
        })*

        $(#[cfg(feature = $feature)]
        impl From<$more> for Op {
            fn from(op: $more) -> Op { Op::$more(op) }
        })*

        macro_rules! each {
            ($d any:expr, $d op:ident => $d call:expr) => {
                match $d any {
                    $(Op::$name($d op) => $d call,)*
                    $(#[cfg(feature = $feature)] Op::$more($d op) => $d call,)*
                }
            };
        }

        impl Op {
            /// The names of all operations, by kind.
            pub const NAMES: &[&[&str]] = &[
                $(<$name as Operation>::NAMES,)*
                $(#[cfg(feature = $feature)] <$more as Operation>::NAMES,)*
            ];

            /// The files of the kernels of each operation.
            #[cfg(feature = "cuda")]
            pub(crate) fn kernel_files() -> Vec<&'static [KernelFile]> {
                [
                    $(<$name as CudaOperation>::files(),)*
                    $(#[cfg(feature = $feature)] <$more as CudaOperation>::files(),)*
                ].to_vec()
            }
        }
    };
}

operations! {
    $
    always {
        /// Column sums.
        BiasGrad,
        /// Column sums from parts that other operations left.
        AddPartialColumns,
        /// Elementwise sum.
        Add,
        /// Product with a number in device memory.
        Multiply,
        /// Copy, converting between types.
        Copy,
        /// Copy of bytes, also to and from the host.
        Move,
        /// Copy of ranges of columns.
        CopyColumns,
        /// Rows of sequences in another order.
        OrderRows,
        /// Choice between two tensors.
        Select,
        /// A constant everywhere.
        Fill,
        /// Bytes no valid value has.
        Poison,
        /// The places of rows that come from all ranks.
        PlaceRows,
        /// Operations that run if a flag says so.
        When,
        /// Communication between ranks.
        Collective,
        /// An operation of a caller's own.
        Custom,
        /// A mark of the work's progress.
        ProgressMark,
    }
    "trainer-ops" {
        /// Matrix product with epilogue.
        Gemm,
        /// Random numbers that a parameter begins with.
        FirstValues,
        /// 8-bit copies of a matrix.
        Quantize,
        /// Counts of losses in an 8-bit copy.
        CountQuantized,
        /// Sums of such counts.
        SumCounts,
        /// The scale of an 8-bit copy.
        MakeScale,
        /// Scales of many 8-bit copies.
        UpdateScales,
        /// The transposed copy of an 8-bit matrix.
        TransposeFp8,
        /// GELU or ReLU.
        Activation,
        /// Gradient of [`Activation`].
        ActivationBackward,
        /// SwiGLU or GeGLU.
        Glu,
        /// Gradient of [`Glu`].
        GluBackward,
        /// LayerNorm or RMSNorm, with the residual add before it.
        Norm,
        /// Gradient of [`Norm`].
        NormBackward,
        /// RMSNorm of query and key heads, with the rotation after it.
        HeadNorm,
        /// Gradient of [`HeadNorm`].
        HeadNormBackward,
        /// Sums over the channels of all query heads, and of all key heads.
        HeadSums,
        /// RMSNorm over all query heads, and over all key heads.
        JointNorm,
        /// Gradient of [`JointNorm`].
        JointNormBackward,
        /// Rotary position embedding.
        Rotary,
        /// Heads of latent attention, packed.
        PackLatent,
        /// Gradient of [`PackLatent`].
        PackLatentBackward,
        /// Heads with fewer or more channels.
        ResizeHeads,
        /// Causal attention.
        Attention,
        /// Gradient of [`Attention`].
        AttentionBackward,
        /// Attention over two parts of the keys from that over each.
        MergeAttention,
        /// Attention with sinks from that without.
        AddSinks,
        /// Gradients of sinks, by the row.
        SinkGradients,
        /// Sum of rows of samples.
        AddRows,
        /// Attention over a cache of keys and values.
        CachedAttention,
        /// Latent attention over a cache of latents.
        CachedLatentAttention,
        /// Rows of a table at a position in device memory.
        TakeRows,
        /// Dropout.
        Dropout,
        /// ReLU, then dropout.
        ReluDropout,
        /// Gradient of [`ReluDropout`].
        ReluDropoutBackward,
        /// Inputs and targets of samples some places further on.
        FurtherTokens,
        /// Table lookup.
        Embedding,
        /// Gradient of [`Embedding`].
        EmbeddingBackward,
        /// Choice of experts.
        Route,
        /// Gradient of [`Route`], and the router's losses.
        RouteBackward,
        /// A bound of the number of tokens of each expert.
        LimitLoad,
        /// The order of tokens by expert.
        SortByExpert,
        /// The places of rows in a transfer to the ranks that have their experts.
        SlotsOfPairs,
        /// The experts of the slots that a rank received.
        ExpertsOfSlots,
        /// Tokens in the order of experts.
        GatherRows,
        /// Sums of each token's rows.
        CombineRows,
        /// Products of each expert's rows.
        GroupedGemm,
        /// Biases of each expert's rows.
        AddExpertBias,
        /// Gradient of the biases of [`AddExpertBias`].
        ExpertBiasGradient,
        /// Gradient of the weights of [`AddExpertBias`].
        ExpertBiasDots,
        /// SwiGLU or GeGLU of each expert's rows, weighted.
        ExpertGlu,
        /// Gradient of [`ExpertGlu`].
        ExpertGluBackward,
        /// The number of tokens of each expert.
        CountLoad,
        /// The bias of the choice of experts.
        UpdateSelectionBias,
        /// Values of weights that lie as codes.
        CodedValues,
        /// Codes of weights.
        CodesOfValues,
        /// Softmax and cross-entropy, forward and backward.
        CrossEntropy,
        /// Cross-entropy over a part of the vocabulary, before the gather: three numbers per row.
        CrossEntropyPart,
        /// Cross-entropy over a part of the vocabulary, after the gather, forward and backward.
        CrossEntropyJoin,
        /// Losses of pairs of answers.
        PairLoss,
        /// Bound of logits.
        SoftCap,
        /// Mean squared error, forward and backward.
        Mse,
        /// Sum of a vector.
        SumInto,
        /// Sum of squares over many tensors.
        SquareSum,
        /// Gradient norm, clip factor and finite flag.
        ClipScale,
        /// No update for a step that is a spike.
        SkipStep,
        /// No update for a step that runs again.
        VoidStep,
        /// AdamW, Lion or SGD over many tensors.
        Update,
        /// Muon's momentum over many tensors.
        NesterovMomentum,
        /// Copy of a block of a matrix, scaled.
        ScaleBlock,
        /// Polynomial of a square matrix.
        MatrixPolynomial,
        /// Muon's update over many tensors.
        DecayedStep,
        /// Per-step scalars.
        WriteControl,
        /// Per-microbatch counters for dropout.
        WriteSampleRecord,
    }
}

impl Op {
    /// The operation's name.
    pub fn name(&self) -> &'static str {
        each!(self, op => op.name())
    }

    /// Checks shapes and types; see [`Operation::check`].
    ///
    /// # Errors
    /// [`Error::Operation`](crate::Error::Operation) with the shapes that do not fit.
    pub fn check(&self) -> Result<()> {
        each!(self, op => op.check())
    }

    /// The tensors that the operation reads and writes.
    pub fn accesses(&self) -> Accesses {
        each!(self, op => op.accesses())
    }

    /// Floating-point operations; see [`Operation::flops`].
    pub fn flops(&self) -> f64 {
        each!(self, op => op.flops())
    }

    /// The bytes that the operation reads and writes; see [`Operation::bytes`].
    pub fn bytes(&self) -> f64 {
        each!(self, op => Operation::bytes(op))
    }

    /// The operation's shape in words; see [`Operation::shape`].
    pub fn shape(&self) -> String {
        each!(self, op => op.shape())
    }

    /// The type of the factors of a product or attention. `None` for other operations.
    pub fn factor_type(&self) -> Option<DType> {
        each!(self, op => op.factor_type())
    }

    /// The status of the step's gradients that the operation makes.
    pub fn makes_status(&self) -> Option<Tensor> {
        each!(self, op => op.makes_status())
    }

    /// The status that decides whether the operation writes anything. An operation before it in the step must make
    /// that status.
    pub fn follows_status(&self) -> Option<Tensor> {
        each!(self, op => op.follows_status())
    }

    /// The operation as a host device runs it.
    pub(crate) fn on_host(&self) -> &dyn HostOperation {
        each!(self, op => op)
    }

    /// The operation as a GPU runs it.
    pub(crate) fn on_cuda(&self) -> &dyn CudaOperation {
        each!(self, op => op)
    }

    /// Calls `each` with every tensor of the operation. `each` may replace the tensor. The order is always the
    /// same. A tensor that is named twice is shown twice.
    ///
    /// Equal operations show equal tensors and have the same [discriminant](std::mem::discriminant). A hash can
    /// be made of these.
    pub fn each_tensor(&mut self, each: &mut dyn FnMut(&mut Tensor)) {
        each!(self, op => op.each_tensor(each))
    }

    /// The same operation on other tensors. `place` gives the tensor for each old one. It keeps shapes and types,
    /// and gives the same answer if a tensor is named again.
    #[must_use]
    pub fn map(mut self, mut place: impl FnMut(Tensor) -> Tensor) -> Op {
        self.each_tensor(&mut |tensor| *tensor = place(*tensor));
        self
    }
}

impl<T: CustomOp + 'static> From<T> for Op {
    fn from(op: T) -> Op {
        Custom::new(Rc::new(op)).into()
    }
}
