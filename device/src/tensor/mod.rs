//! A tensor is a view of planned memory: an address, a shape, a type. It owns nothing and is `Copy`.

mod buffer_name;

use crate::DType;
pub use buffer_name::BufferName;
pub(crate) use buffer_name::BufferNames;

/// Most axes a tensor can have.
pub const MAX_RANK: usize = 4;

/// Sizes of up to [`MAX_RANK`] axes, outermost first; memory is dense and row-major.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    sizes: [usize; MAX_RANK],
    rank: u8,
}

impl Shape {
    /// # Panics
    /// If more than [`MAX_RANK`] axes are given: shapes are written by code, never by users.
    pub fn new(sizes: &[usize]) -> Shape {
        assert!(sizes.len() <= MAX_RANK, "a tensor has at most {MAX_RANK} axes, got {sizes:?}");
        let mut all = [1; MAX_RANK];
        all[..sizes.len()].copy_from_slice(sizes);
        Shape { sizes: all, rank: sizes.len() as u8 }
    }

    /// The sizes, outermost first.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes[..self.rank as usize]
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.sizes().iter().product()
    }

    /// Size of the innermost axis (1 for a scalar).
    pub fn last(&self) -> usize {
        self.sizes().last().copied().unwrap_or(1)
    }

    /// Product of all axes but the innermost: the rows of the matrix this is seen as by a GEMM or a norm.
    pub fn rows(&self) -> usize {
        let sizes = self.sizes();
        sizes[..sizes.len().saturating_sub(1)].iter().product()
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(sizes: [usize; N]) -> Shape {
        Shape::new(&sizes)
    }
}

impl std::fmt::Debug for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "(")?;
        for (i, size) in self.sizes().iter().enumerate() {
            write!(f, "{}{size}", if i > 0 { ", " } else { "" })?;
        }
        write!(f, ")")
    }
}

/// Names the buffer a tensor is a view of, and its device. Two buffers may share an address at different times; by the
/// id the checker tells their values apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(u32);

impl BufferId {
    /// No buffer of any device: for a tensor that is only an address and a shape.
    pub const NOTHING: BufferId = BufferId(0);

    /// No buffer of any device either: the buffer of that number in a table of somebody's own. An operation that names it
    /// cannot be submitted before it is mapped to other tensors.
    ///
    /// # Panics
    /// A number of 67 million or more.
    pub fn placeholder(number: u32) -> BufferId {
        assert!(number < (1 << BufferId::NUMBER_BITS) - 1, "a table has fewer buffers");
        BufferId(number + 1)
    }

    /// The number of a [placeholder](BufferId::placeholder). `None` for buffers of devices.
    pub fn placeholder_number(self) -> Option<u32> {
        if self.0 >> BufferId::NUMBER_BITS == 0 { self.0.checked_sub(1) } else { None }
    }

    /// Bits for the buffer; those above are for the device. An operation holds many tensors, so an id is four bytes.
    const NUMBER_BITS: u32 = 26;

    /// A device's buffer of that number. Of 63 devices made after each other in a process, each has ids of its own.
    ///
    /// # Panics
    /// The device has named 67 million buffers before.
    pub(crate) fn new(device: u32, number: usize) -> BufferId {
        assert!(number >> BufferId::NUMBER_BITS == 0, "a device names at most {} buffers", 1 << BufferId::NUMBER_BITS);
        BufferId((1 + device % 63) << BufferId::NUMBER_BITS | number as u32)
    }

    /// The number of the buffer on its device. Buffers are counted in the order in which they were named.
    pub fn number(self) -> usize {
        (self.0 & ((1 << BufferId::NUMBER_BITS) - 1)) as usize
    }

    /// Whether the buffer is of the device of that number, or of none.
    pub(crate) fn is_of(self, device: u32) -> bool {
        self == BufferId::NOTHING || self.0 >> BufferId::NUMBER_BITS == 1 + device % 63
    }
}

/// Virtual addresses, far above any real address. They are given while nothing is allocated, and nothing runs at them.
pub(crate) const VIRTUAL: std::ops::Range<u64> = 1 << 60..1 << 61;

/// A dense, row-major view of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tensor {
    /// Device address of the first element, in bytes.
    pub address: u64,
    /// Sizes of the axes.
    pub shape: Shape,
    /// Type of the elements.
    pub dtype: DType,
    /// The buffer this is a view of.
    pub buffer: BufferId,
}

impl Tensor {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.elements()
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.size()
    }

    /// The same memory with other axes.
    ///
    /// # Panics
    /// If the number of elements differs.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Tensor {
        let shape = shape.into();
        assert_eq!(shape.elements(), self.elements(), "reshape of {:?} to {shape:?}", self.shape);
        Tensor { shape, ..*self }
    }

    /// `count` entries of the outermost axis, from `start` on.
    ///
    /// # Panics
    /// If the range leaves the tensor.
    pub fn narrow(&self, start: usize, count: usize) -> Tensor {
        let mut sizes = self.shape.sizes().to_vec();
        assert!(start + count <= sizes[0], "narrow {start}..{} of {:?}", start + count, self.shape);
        let stride = self.elements() / sizes[0].max(1) * self.dtype.size();
        sizes[0] = count;
        Tensor { address: self.address + (start * stride) as u64, shape: Shape::new(&sizes), ..*self }
    }

    /// Entry `index` of the outermost axis, without that axis.
    pub fn at(&self, index: usize) -> Tensor {
        let entry = self.narrow(index, 1);
        Tensor { shape: Shape::new(&entry.shape.sizes()[1..]), ..entry }
    }

    /// A tensor of the given shape within this tensor, from its element `start` on.
    ///
    /// # Panics
    /// If it does not fit.
    pub fn view(&self, start: usize, shape: impl Into<Shape>) -> Tensor {
        let shape = shape.into();
        assert!(start + shape.elements() <= self.elements(), "view {shape:?} at {start} of {:?}", self.shape);
        Tensor { address: self.address + (start * self.dtype.size()) as u64, shape, ..*self }
    }

    /// The same memory as bytes.
    pub(crate) fn as_bytes(&self) -> Tensor {
        Tensor { shape: Shape::new(&[self.bytes()]), dtype: DType::U8, ..*self }
    }

    /// The bytes this occupies, `[start, end)`.
    pub fn range(&self) -> std::ops::Range<u64> {
        self.address..self.address + self.bytes() as u64
    }

    /// As [`Tensor::range`]. `None` if its end is beyond the last address: fields can hold any numbers.
    pub(crate) fn checked_range(&self) -> Option<std::ops::Range<u64>> {
        let elements = self.shape.sizes().iter().try_fold(1usize, |elements, size| elements.checked_mul(*size))?;
        let bytes = elements.checked_mul(self.dtype.size())?;
        Some(self.address..self.address.checked_add(bytes as u64)?)
    }

    /// Whether `part` lies in this tensor's memory.
    pub(crate) fn contains(&self, part: &Tensor) -> bool {
        let (Some(whole), Some(part)) = (self.checked_range(), part.checked_range()) else { return false };
        whole.start <= part.start && part.end <= whole.end
    }
}
