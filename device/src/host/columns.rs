//! Sums of columns.

use crate::Tensor;
use crate::host::view;

/// Sums rows of `columns` elements.
pub(crate) fn column_sums<'a, T: 'a>(
    columns: usize,
    rows: impl Iterator<Item = &'a [T]>,
    f: impl Fn(&T) -> f32,
) -> Vec<f32> {
    let mut sums = vec![0.0f32; columns];
    for row in rows {
        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f(x));
    }
    sums
}

/// Adds partial sums in order: to the values of `output` with `accumulate`, else to 0.
pub(crate) fn store_sums(partial: &[Vec<f32>], output: &Tensor, accumulate: bool) {
    let output = view::write::<f32>(output);
    let mut total = vec![0.0f32; output.len()];
    for sums in partial {
        total.iter_mut().zip(sums).for_each(|(total, x)| *total += x);
    }
    for (out, total) in output.iter_mut().zip(total) {
        *out = if accumulate { *out + total } else { total };
    }
}
