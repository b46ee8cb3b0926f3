//! Losses of 8-bit copies.

use super::super::quantize::host::values;
use crate::host::{CHUNK, HostKernel, Pool, view};
use crate::ops::{CountQuantized, QuantizeCounts, Scale, SumCounts};

impl HostKernel for CountQuantized {
    fn run(&self, pool: &Pool) {
        let values = values(&self.source, pool);
        let copy = &self.copy;
        let copied = view::to_f32(&copy.values);
        let (inverse, edge) = match copy.scale {
            Scale::Tensor(scale) => {
                let scale = view::read::<f32>(&scale)[0];
                (if scale == 0.0 { 0.0 } else { 1.0 / scale }, copy.values.dtype.saturates_above())
            }
            _ => (0.0, f32::INFINITY),
        };
        let of_chunk = |chunk: usize| {
            let range = chunk * CHUNK..values.len().min((chunk + 1) * CHUNK);
            let mut counts = QuantizeCounts { values: range.len() as u64, ..QuantizeCounts::default() };
            for (x, copied) in values[range.clone()].iter().zip(&copied[range]) {
                let kind = match (x.abs(), *copied) {
                    (0.0, _) => &mut counts.zeros,
                    (x, _) if !x.is_finite() => &mut counts.not_finite,
                    (_, 0.0) => &mut counts.underflowed,
                    (x, _) if x * inverse > edge => &mut counts.saturated,
                    _ => continue,
                };
                *kind += 1;
            }
            counts
        };
        let mut total = read(view::read::<u8>(&self.counts));
        for counts in pool.map(values.len().div_ceil(CHUNK), of_chunk) {
            total.values += counts.values;
            total.zeros += counts.zeros;
            total.not_finite += counts.not_finite;
            total.saturated += counts.saturated;
            total.underflowed += counts.underflowed;
        }
        view::write::<u8>(&self.counts).copy_from_slice(bytemuck::bytes_of(&total));
    }

    fn scratch_bytes(&self, _pool: &Pool) -> usize {
        let (rows, columns) = self.source.dimensions();
        4 * rows * columns
    }
}

impl HostKernel for SumCounts {
    fn run(&self, _pool: &Pool) {
        let sums = view::write::<f32>(&self.sums);
        let kinds = self.sums.shape.rows();
        let counts = view::read::<u8>(&self.counts).chunks(size_of::<QuantizeCounts>()).map(read);
        let mut totals = vec![[0u64; 3]; kinds];
        for (index, counts) in counts.enumerate() {
            let [values, saturated, underflowed] = &mut totals[index % kinds];
            *values += counts.values;
            *saturated += counts.saturated;
            *underflowed += counts.underflowed;
        }
        sums.iter_mut().zip(totals.as_flattened()).for_each(|(sum, total)| *sum = *total as f32);
    }
}

fn read(bytes: &[u8]) -> QuantizeCounts {
    bytemuck::pod_read_unaligned(bytes)
}
