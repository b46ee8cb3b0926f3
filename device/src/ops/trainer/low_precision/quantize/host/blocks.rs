//! Scales for blocks of 128 values.

use super::larger;
use crate::host::{Pool, view};
use crate::ops::{BLOCK, Fp8Matrix, Scale};

/// Writes the scales of a copy of `value(row, column)` that has them for groups or blocks. Leaves others alone.
pub(super) fn make_block_scales(copy: &Fp8Matrix, value: impl Fn(usize, usize) -> f32 + Sync, pool: &Pool) {
    let (rows, columns) = (copy.values.shape.rows(), copy.values.shape.last());
    let scale = |first_row: usize, height: usize, block: usize| {
        let columns = block * BLOCK..columns.min((block + 1) * BLOCK);
        let rows = first_row..rows.min(first_row + height);
        let values = rows.flat_map(|row| columns.clone().map(move |column| (row, column)));
        block_scale(values.fold(0.0, |amax, (row, column)| larger(amax, value(row, column).abs())))
    };
    match copy.scale {
        Scale::Tensor(_) | Scale::Rows(_) => {}
        Scale::Groups(scales) => pool.for_each_chunk(view::write::<f32>(&scales), rows, |block, scales| {
            scales.iter_mut().enumerate().for_each(|(row, out)| *out = scale(row, 1, block));
        }),
        Scale::Blocks(scales) => {
            let width = scales.shape.last();
            pool.for_each_chunk(view::write::<f32>(&scales), width, |block_row, scales| {
                let blocks = columns.div_ceil(BLOCK);
                let of_block = |block| if block < blocks { scale(block_row * BLOCK, BLOCK, block) } else { 0.0 };
                scales.iter_mut().enumerate().for_each(|(block, out)| *out = of_block(block));
            });
        }
    }
}

/// The smallest power of two with a normal inverse whose product with the largest number of E4M3 is not below `amax`.
/// It is 1 for zeros, and NaN if a value is not finite.
///
/// That number, 448, is 1.75 * 2^8. So the scale has the exponent of `amax` less 8, and one more if its fraction is
/// above 1.75.
fn block_scale(amax: f32) -> f32 {
    if amax == 0.0 {
        1.0
    } else if amax.is_finite() {
        let exponent = (amax.to_bits() + 0x1f_ffff) >> 23;
        f32::from_bits((exponent.max(9) - 8) << 23)
    } else {
        f32::NAN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_is_the_smallest_power_of_two_that_the_largest_magnitude_fits() {
        let magnitudes = (1..2046u32).map(|step| f32::from_bits(step << 20));
        for amax in magnitudes.flat_map(|x| [x.next_down(), x, x.next_up()]).filter(|x| x.is_finite() && *x > 0.0) {
            let scale = block_scale(amax);
            assert_eq!(scale.to_bits() & 0x7f_ffff, 0, "{scale:e} of {amax:e} is no power of two");
            assert!(f64::from(amax) <= 448.0 * f64::from(scale), "{amax:e} does not fit {scale:e}");
            let smallest = scale == f32::MIN_POSITIVE || f64::from(amax) > 224.0 * f64::from(scale);
            assert!(smallest && (1.0 / scale).is_normal(), "{scale:e} of {amax:e}");
        }
        assert_eq!(block_scale(448.0), 1.0);
        assert_eq!(block_scale(448f32.next_up()), 2.0);
        assert!(block_scale(f32::NAN).is_nan() && block_scale(f32::INFINITY).is_nan());
    }
}
