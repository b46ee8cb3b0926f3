//! Sums of columns.

use crate::Float;
use crate::host::{HostKernel, Pool, column_sums, store_sums, view, with_float};
use crate::ops::{AddPartialColumns, BiasGrad, PartialColumns};

/// Rows summed by one task.
const ROWS: usize = 256;

impl HostKernel for BiasGrad {
    fn run(&self, pool: &Pool) {
        with_float!(self.grad_output.dtype, T => {
            let columns = self.grad_output.shape.last();
            let grad = view::read::<T>(&self.grad_output);
            let partial = pool.map(grad.len().div_ceil(ROWS * columns), |chunk| {
                let rows = &grad[chunk * ROWS * columns..grad.len().min((chunk + 1) * ROWS * columns)];
                column_sums(columns, rows.chunks(columns), |x| x.to_f32())
            });
            store_sums(&partial, &self.grad_bias, self.accumulate);
        });
    }
}

impl HostKernel for AddPartialColumns {
    fn run(&self, _pool: &Pool) {
        for PartialColumns { partial, output } in self.sums.iter() {
            let columns = partial.shape.last();
            let parts: Vec<Vec<f32>> = view::read::<f32>(partial).chunks(columns).map(<[f32]>::to_vec).collect();
            store_sums(&parts, output, self.accumulate);
        }
    }
}
