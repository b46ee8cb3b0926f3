//! The GEMM library behind a slice interface.
#![allow(unsafe_code)]

use gemm_common::Parallelism;
use gemm_f32::gemm::f32::get_gemm_fn;

/// Rows of `out` that one task computes. Fixed, so that bits do not depend on the threads.
pub(crate) const TILE_ROWS: usize = 128;

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

    /// The rows from `row` on.
    pub(crate) fn below(self, row: usize) -> Matrix<'a> {
        Matrix { offset: self.offset + row * self.row_stride, ..self }
    }

    /// Whether a matrix of at least one element lies within the slice.
    fn fits(&self, rows: usize, columns: usize) -> bool {
        self.offset + (rows - 1) * self.row_stride + (columns - 1) * self.column_stride < self.data.len()
    }
}

/// `out = alpha * a @ b`, or `out += alpha * a @ b`, on the calling thread. `out` is row-major `(m, n)` with rows
/// `out_stride` apart; `a` is `(m, k)`, `b` is `(k, n)`. With `k = 0` the product is 0.
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
    if m == 0 || n == 0 {
        return;
    }
    assert!((m - 1) * out_stride + n <= out.len());
    if k == 0 {
        // The factors have no element, and their slices may be shorter than their offsets.
        if !accumulate {
            (0..m).for_each(|row| out[row * out_stride..][..n].fill(0.0));
        }
        return;
    }
    assert!(a.fits(m, k) && b.fits(k, n));
    // The library's kernels want a result with contiguous columns. A row-major one is the transposed product's.
    let (m, n, a, b, column_stride, row_stride) = match out_stride {
        0 | 1 => (m, n, a, b, 1, out_stride),
        _ => (n, m, b.transposed(), a.transposed(), out_stride, 1),
    };
    // SAFETY: the assertions above keep every access within its slice, and `out` is borrowed mutably, apart from both.
    unsafe {
        get_gemm_fn()(
            m,
            n,
            k,
            out.as_mut_ptr(),
            column_stride as isize,
            row_stride as isize,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_over_no_elements_is_zero_and_reads_neither_factor() {
        let nowhere = Matrix { data: &[], offset: 5, row_stride: 3, column_stride: 1 };
        let product = |accumulate| {
            // Two rows of two, three apart.
            let mut out = [1.0, 2.0, 3.0, 4.0, 5.0];
            multiply((2, 2, 0), 1.0, nowhere, nowhere, &mut out, 3, accumulate);
            out
        };
        assert_eq!(product(false), [0.0, 0.0, 3.0, 0.0, 0.0]);
        assert_eq!(product(true), [1.0, 2.0, 3.0, 4.0, 5.0]);
    }

    #[test]
    #[should_panic(expected = "fits")]
    fn a_factor_that_ends_outside_of_its_slice_is_refused() {
        multiply((2, 1, 2), 1.0, Matrix::rows(&[0.0; 3], 2), Matrix::rows(&[0.0; 2], 1), &mut [0.0; 2], 1, false);
    }
}
