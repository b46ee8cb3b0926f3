//! The GEMM library behind a slice interface.
#![allow(unsafe_code)]

use gemm::Parallelism;

/// A matrix within a slice: element `(r, c)` lies at `offset + r * row_stride + c * column_stride`.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) offset: usize,
    pub(crate) row_stride: usize,
    pub(crate) column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// A row-major matrix at the start of `data`.
    pub(crate) fn rows(data: &'a [f32], row_stride: usize) -> Matrix<'a> {
        Matrix { data, offset: 0, row_stride, column_stride: 1 }
    }

    pub(crate) fn transposed(self) -> Matrix<'a> {
        Matrix { row_stride: self.column_stride, column_stride: self.row_stride, ..self }
    }

    fn fits(&self, rows: usize, columns: usize) -> bool {
        rows == 0
            || columns == 0
            || self.offset + (rows - 1) * self.row_stride + (columns - 1) * self.column_stride < self.data.len()
    }
}

/// `out = alpha * a @ b`, or `out += alpha * a @ b`, on the calling thread. `out` is row-major `(m, n)` with rows
/// `out_stride` apart; `a` is `(m, k)`, `b` is `(k, n)`.
///
/// # Panics
/// If a matrix does not fit its slice.
pub(crate) fn multiply(
    (m, n, k): (usize, usize, usize),
    alpha: f32,
    a: Matrix<'_>,
    b: Matrix<'_>,
    out: &mut [f32],
    out_stride: usize,
    accumulate: bool,
) {
    assert!(a.fits(m, k) && b.fits(k, n) && (m == 0 || n == 0 || (m - 1) * out_stride + n <= out.len()));
    if m == 0 || n == 0 {
        return;
    }
    // SAFETY: the assertion above keeps every access within its slice, and `out` is borrowed mutably, apart from both.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            out_stride as isize,
            accumulate,
            a.data.as_ptr().add(a.offset),
            a.column_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr().add(b.offset),
            b.column_stride as isize,
            b.row_stride as isize,
            1.0,
            alpha,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}
