//! A graph of cuDNN operations: tensors, and operations that connect them. cuDNN matches it against the patterns that
//! it has fused kernels for, so the order of operations and every shape matter.

use cudarc::cudnn::sys::{
    cudnnBackendAttributeName_t as Attribute, cudnnBackendDescriptorType_t as DescriptorType, cudnnDataType_t,
    cudnnPointwiseMode_t as Pointwise, cudnnReduceTensorOp_t,
};

use super::descriptor::Descriptor;
use crate::Result;

pub(super) const F32: cudnnDataType_t = cudnnDataType_t::CUDNN_DATA_FLOAT;
pub(super) const BF16: cudnnDataType_t = cudnnDataType_t::CUDNN_DATA_BFLOAT16;
const I32: cudnnDataType_t = cudnnDataType_t::CUDNN_DATA_INT32;
const I64: cudnnDataType_t = cudnnDataType_t::CUDNN_DATA_INT64;
const BOOLEAN: cudnnDataType_t = cudnnDataType_t::CUDNN_DATA_BOOLEAN;

/// Every address is a multiple of this many bytes.
pub(super) const ALIGNMENT: u64 = 16;

/// The first number of tensors without memory. The caller numbers those with memory.
const FIRST_VIRTUAL: i64 = 1000;

/// Sizes and strides of a tensor, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TensorLayout {
    pub(super) sizes: [i64; 4],
    pub(super) strides: [i64; 4],
}

impl TensorLayout {
    /// Dense, row-major.
    pub(super) fn dense(sizes: [i64; 4]) -> TensorLayout {
        let [_, b, c, d] = sizes;
        TensorLayout { sizes, strides: [b * c * d, c * d, d, 1] }
    }

    /// The same memory with the last two axes exchanged.
    pub(super) fn transposed(self) -> TensorLayout {
        let swap = |[a, b, c, d]: [i64; 4]| [a, b, d, c];
        TensorLayout { sizes: swap(self.sizes), strides: swap(self.strides) }
    }
}

/// A tensor of an [`OperationGraph`].
#[derive(Clone, Copy)]
pub(super) struct GraphTensor(usize);

/// The extent of a product for each item of the first axis: i32 tensors with its rows `m`, its columns `n` and the length `k` of
/// its sums. `None` is the whole axis.
#[derive(Clone, Copy, Default)]
pub(super) struct Extent {
    pub(super) m: Option<GraphTensor>,
    pub(super) n: Option<GraphTensor>,
    pub(super) k: Option<GraphTensor>,
    /// Zeros fill the rest.
    pub(super) pads: bool,
}

/// Tensors and operations, in the order they were added.
#[derive(Default)]
pub(super) struct OperationGraph {
    pub(super) operations: Vec<Descriptor>,
    tensors: Vec<Descriptor>,
    /// Descriptors that operations refer to, kept alive.
    kept: Vec<Descriptor>,
}

impl OperationGraph {
    fn tensor(
        &mut self,
        number: i64,
        dtype: cudnnDataType_t,
        layout: TensorLayout,
        role: Option<Attribute>,
        offsets: Option<GraphTensor>,
    ) -> Result<GraphTensor> {
        let mut descriptor = Descriptor::new(DescriptorType::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?
            .data_type(Attribute::CUDNN_ATTR_TENSOR_DATA_TYPE, dtype)?
            .integers(Attribute::CUDNN_ATTR_TENSOR_DIMENSIONS, &layout.sizes)?
            .integers(Attribute::CUDNN_ATTR_TENSOR_STRIDES, &layout.strides)?
            .integers(Attribute::CUDNN_ATTR_TENSOR_UNIQUE_ID, &[number])?
            .integers(Attribute::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &[ALIGNMENT as i64])?;
        if let Some(role) = role {
            descriptor = descriptor.yes(role)?;
        }
        if let Some(offsets) = offsets {
            descriptor =
                descriptor.descriptor(Attribute::CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, &self.tensors[offsets.0])?;
        }
        self.tensors.push(descriptor.finalize()?);
        Ok(GraphTensor(self.tensors.len() - 1))
    }

    /// A tensor in memory. The variant pack gives its address under `number`.
    pub(super) fn real(&mut self, number: i64, dtype: cudnnDataType_t, layout: TensorLayout) -> Result<GraphTensor> {
        self.tensor(number, dtype, layout, None, None)
    }

    /// As [`OperationGraph::real`]. With `offsets` the tensor is ragged: each item of the first axis begins at an offset of its
    /// own.
    pub(super) fn ragged(
        &mut self,
        number: i64,
        dtype: cudnnDataType_t,
        layout: TensorLayout,
        offsets: Option<GraphTensor>,
    ) -> Result<GraphTensor> {
        self.tensor(number, dtype, layout, None, offsets)
    }

    /// `count` i32 in memory, such as offsets.
    pub(super) fn integers(&mut self, number: i64, count: i64) -> Result<GraphTensor> {
        self.real(number, I32, TensorLayout::dense([count, 1, 1, 1]))
    }

    /// `count` i64 in memory.
    pub(super) fn wide_integers(&mut self, number: i64, count: i64) -> Result<GraphTensor> {
        self.real(number, I64, TensorLayout::dense([count, 1, 1, 1]))
    }

    /// A tensor that exists within the fused kernel alone.
    pub(super) fn inner(&mut self, dtype: cudnnDataType_t, layout: TensorLayout) -> Result<GraphTensor> {
        self.inner_ragged(dtype, layout, None)
    }

    /// As [`OperationGraph::inner`], ragged with `offsets`.
    pub(super) fn inner_ragged(
        &mut self,
        dtype: cudnnDataType_t,
        layout: TensorLayout,
        offsets: Option<GraphTensor>,
    ) -> Result<GraphTensor> {
        let number = FIRST_VIRTUAL + self.tensors.len() as i64;
        self.tensor(number, dtype, layout, Some(Attribute::CUDNN_ATTR_TENSOR_IS_VIRTUAL), offsets)
    }

    /// An f32 on the host. The launch takes its value.
    pub(super) fn scalar(&mut self, number: i64) -> Result<GraphTensor> {
        self.tensor(number, F32, TensorLayout::dense([1; 4]), Some(Attribute::CUDNN_ATTR_TENSOR_IS_BY_VALUE), None)
    }

    /// An i32 on the host, likewise.
    pub(super) fn integer(&mut self, number: i64) -> Result<GraphTensor> {
        self.tensor(number, I32, TensorLayout::dense([1; 4]), Some(Attribute::CUDNN_ATTR_TENSOR_IS_BY_VALUE), None)
    }

    fn pointwise(
        &mut self,
        mode: (Pointwise, cudnnDataType_t, Option<i64>),
        x: GraphTensor,
        b: Option<GraphTensor>,
        t: Option<GraphTensor>,
        y: GraphTensor,
    ) -> Result<()> {
        let (mode, precision, axis) = mode;
        let mut pointwise = Descriptor::new(DescriptorType::CUDNN_BACKEND_POINTWISE_DESCRIPTOR)?
            .pointwise_mode(Attribute::CUDNN_ATTR_POINTWISE_MODE, mode)?
            .data_type(Attribute::CUDNN_ATTR_POINTWISE_MATH_PREC, precision)?;
        if let Some(axis) = axis {
            pointwise = pointwise.integers(Attribute::CUDNN_ATTR_POINTWISE_AXIS, &[axis])?;
        }
        let pointwise = pointwise.finalize()?;
        let mut operation = Descriptor::new(DescriptorType::CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)?
            .descriptor(Attribute::CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, &pointwise)?
            .descriptor(Attribute::CUDNN_ATTR_OPERATION_POINTWISE_XDESC, &self.tensors[x.0])?
            .descriptor(Attribute::CUDNN_ATTR_OPERATION_POINTWISE_YDESC, &self.tensors[y.0])?;
        if let Some(b) = b {
            operation = operation.descriptor(Attribute::CUDNN_ATTR_OPERATION_POINTWISE_BDESC, &self.tensors[b.0])?;
        }
        if let Some(t) = t {
            operation = operation.descriptor(Attribute::CUDNN_ATTR_OPERATION_POINTWISE_TDESC, &self.tensors[t.0])?;
        }
        self.operations.push(operation.finalize()?);
        self.kept.push(pointwise);
        Ok(())
    }

    /// `y = mode(x)`
    pub(super) fn unary(&mut self, mode: Pointwise, x: GraphTensor, y: GraphTensor) -> Result<()> {
        self.pointwise((mode, F32, None), x, None, None, y)
    }

    /// `y = mode(x, b)`
    pub(super) fn binary(&mut self, mode: Pointwise, x: GraphTensor, b: GraphTensor, y: GraphTensor) -> Result<()> {
        self.pointwise((mode, F32, None), x, Some(b), None, y)
    }

    /// `y = x` if row >= column, else `otherwise`. All have the layout `scores`. With `lengths`, the host scalars of the
    /// numbers of keys and of queries, the last query sees the last key.
    pub(super) fn causal(
        &mut self,
        scores: TensorLayout,
        x: GraphTensor,
        lengths: Option<[GraphTensor; 2]>,
        otherwise: GraphTensor,
        y: GraphTensor,
    ) -> Result<()> {
        let (mut row, column) = (self.inner(I32, scores)?, self.inner(I32, scores)?);
        let mask = self.inner(BOOLEAN, scores)?;
        self.pointwise((Pointwise::CUDNN_POINTWISE_GEN_INDEX, F32, Some(2)), x, None, None, row)?;
        self.pointwise((Pointwise::CUDNN_POINTWISE_GEN_INDEX, F32, Some(3)), x, None, None, column)?;
        let shifts = [Pointwise::CUDNN_POINTWISE_ADD, Pointwise::CUDNN_POINTWISE_SUB];
        for (mode, length) in shifts.into_iter().zip(lengths.into_iter().flatten()) {
            let shifted = self.inner(I32, scores)?;
            self.pointwise((mode, I32, None), row, Some(length), None, shifted)?;
            row = shifted;
        }
        self.pointwise((Pointwise::CUDNN_POINTWISE_CMP_GE, BOOLEAN, None), row, Some(column), None, mask)?;
        let select = (Pointwise::CUDNN_POINTWISE_BINARY_SELECT, F32, None);
        self.pointwise(select, x, Some(otherwise), Some(mask), y)
    }

    /// `y = x` if column + window > row, else `otherwise`. `window` is a host scalar; the others have the layout
    /// `scores`. The pattern wants the sum as f32, and indices of its own, not those of [`OperationGraph::causal`].
    pub(super) fn window(
        &mut self,
        scores: TensorLayout,
        x: GraphTensor,
        window: GraphTensor,
        otherwise: GraphTensor,
        y: GraphTensor,
    ) -> Result<()> {
        let (row, column) = (self.inner(I32, scores)?, self.inner(I32, scores)?);
        let (end, mask) = (self.inner(F32, scores)?, self.inner(BOOLEAN, scores)?);
        self.pointwise((Pointwise::CUDNN_POINTWISE_GEN_INDEX, F32, Some(2)), x, None, None, row)?;
        self.pointwise((Pointwise::CUDNN_POINTWISE_GEN_INDEX, F32, Some(3)), x, None, None, column)?;
        self.pointwise((Pointwise::CUDNN_POINTWISE_ADD, F32, Some(3)), column, Some(window), None, end)?;
        self.pointwise((Pointwise::CUDNN_POINTWISE_CMP_GT, BOOLEAN, None), end, Some(row), None, mask)?;
        let select = (Pointwise::CUDNN_POINTWISE_BINARY_SELECT, F32, None);
        self.pointwise(select, x, Some(otherwise), Some(mask), y)
    }

    /// `y = x` if the row is below `rows` and the column below `columns`, else `otherwise`. `rows` and `columns` have a number for
    /// each item of the first axis; the others have the layout `scores`.
    pub(super) fn within(
        &mut self,
        scores: TensorLayout,
        x: GraphTensor,
        [rows, columns]: [GraphTensor; 2],
        otherwise: GraphTensor,
        y: GraphTensor,
    ) -> Result<()> {
        let (row, column) = (self.inner(I32, scores)?, self.inner(I32, scores)?);
        let (of_rows, of_columns) = (self.inner(BOOLEAN, scores)?, self.inner(BOOLEAN, scores)?);
        let mask = self.inner(BOOLEAN, scores)?;
        self.pointwise((Pointwise::CUDNN_POINTWISE_GEN_INDEX, I32, Some(2)), x, None, None, row)?;
        self.pointwise((Pointwise::CUDNN_POINTWISE_GEN_INDEX, I32, Some(3)), x, None, None, column)?;
        let less = (Pointwise::CUDNN_POINTWISE_CMP_LT, BOOLEAN, None);
        self.pointwise(less, row, Some(rows), None, of_rows)?;
        self.pointwise(less, column, Some(columns), None, of_columns)?;
        let both = (Pointwise::CUDNN_POINTWISE_LOGICAL_AND, BOOLEAN, None);
        self.pointwise(both, of_rows, Some(of_columns), None, mask)?;
        let select = (Pointwise::CUDNN_POINTWISE_BINARY_SELECT, F32, None);
        self.pointwise(select, x, Some(otherwise), Some(mask), y)
    }

    /// `c = a @ b`, over the last two axes, as far as `extent` says.
    pub(super) fn matmul(&mut self, a: GraphTensor, b: GraphTensor, c: GraphTensor, extent: Extent) -> Result<()> {
        let mut matmul = Descriptor::new(DescriptorType::CUDNN_BACKEND_MATMUL_DESCRIPTOR)?
            .data_type(Attribute::CUDNN_ATTR_MATMUL_COMP_TYPE, F32)?;
        if extent.pads {
            matmul = matmul.double(Attribute::CUDNN_ATTR_MATMUL_PADDING_VALUE, 0.0)?;
        }
        let matmul = matmul.finalize()?;
        let mut operation = Descriptor::new(DescriptorType::CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)?
            .descriptor(Attribute::CUDNN_ATTR_OPERATION_MATMUL_ADESC, &self.tensors[a.0])?
            .descriptor(Attribute::CUDNN_ATTR_OPERATION_MATMUL_BDESC, &self.tensors[b.0])?
            .descriptor(Attribute::CUDNN_ATTR_OPERATION_MATMUL_CDESC, &self.tensors[c.0])?
            .descriptor(Attribute::CUDNN_ATTR_OPERATION_MATMUL_DESC, &matmul)?;
        for (attribute, lengths) in [
            (Attribute::CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, extent.m),
            (Attribute::CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, extent.n),
            (Attribute::CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, extent.k),
        ] {
            if let Some(lengths) = lengths {
                operation = operation.descriptor(attribute, &self.tensors[lengths.0])?;
            }
        }
        self.operations.push(operation.finalize()?);
        self.kept.push(matmul);
        Ok(())
    }

    /// `y` = the sum or maximum of `x`, taken over each axis that has size 1 or fewer heads in `y`.
    pub(super) fn reduce(&mut self, operator: cudnnReduceTensorOp_t, x: GraphTensor, y: GraphTensor) -> Result<()> {
        let reduction = Descriptor::new(DescriptorType::CUDNN_BACKEND_REDUCTION_DESCRIPTOR)?
            .data_type(Attribute::CUDNN_ATTR_REDUCTION_COMP_TYPE, F32)?
            .reduction(Attribute::CUDNN_ATTR_REDUCTION_OPERATOR, operator)?
            .finalize()?;
        let operation = Descriptor::new(DescriptorType::CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)?
            .descriptor(Attribute::CUDNN_ATTR_OPERATION_REDUCTION_XDESC, &self.tensors[x.0])?
            .descriptor(Attribute::CUDNN_ATTR_OPERATION_REDUCTION_YDESC, &self.tensors[y.0])?
            .descriptor(Attribute::CUDNN_ATTR_OPERATION_REDUCTION_DESC, &reduction)?
            .finalize()?;
        self.operations.push(operation);
        self.kept.push(reduction);
        Ok(())
    }

    /// `y` = the values of `x` under another layout, by their indices
    pub(super) fn reshape(&mut self, x: GraphTensor, y: GraphTensor) -> Result<()> {
        let operation = Descriptor::new(DescriptorType::CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)?
            .descriptor(Attribute::CUDNN_ATTR_OPERATION_RESHAPE_XDESC, &self.tensors[x.0])?
            .descriptor(Attribute::CUDNN_ATTR_OPERATION_RESHAPE_YDESC, &self.tensors[y.0])?
            .finalize()?;
        self.operations.push(operation);
        Ok(())
    }
}
