//! The Newton-Schulz iteration: from a matrix to the nearest matrix with all singular values about 1.

use device::ops::{Corner, Gemm, MatrixPolynomial, ScaleBlock, SquareSum};
use device::{DType, Tensor};
use graph_manager::Result;

use crate::step_policy::StepContext;

/// Of one iteration, `x = a x + b (x x^T) x + c (x x^T)^2 x` (Jordan, 2024). Five iterations bring singular values from 0.01
/// to 1 into the range of 0.7 to 1.2.
const COEFFICIENTS: [f32; 3] = [3.4445, -4.7750, 2.0315];

/// Divides `matrix`, f32 `(rows, columns)`, by the matrix's Frobenius norm, and iterates. Products are computed in the
/// type `products`. The result has this type, and the same shape.
///
/// The products `x x^T` are made of the shorter side: `x^T x` if there are more rows than columns.
///
/// # Errors
/// Errors of the device.
pub(super) fn orthogonalize(cx: &mut StepContext<'_>, matrix: Tensor, steps: usize, products: DType) -> Result<Tensor> {
    let (rows, columns) = (matrix.shape.rows(), matrix.shape.last());
    let is_tall = rows > columns;
    let side = rows.min(columns);
    let square_sum = cx.tensor("square_sum of a matrix", [1], DType::F32)?;
    cx.run(SquareSum { inputs: [matrix].into(), total: square_sum })?;
    let mut x = cx.tensor("orthogonal", [rows, columns], products)?;
    cx.run(ScaleBlock {
        from: Corner::first(matrix),
        to: Corner::first(x),
        rows,
        columns,
        factor: 1.0,
        square_sum: Some(square_sum),
    })?;
    for _ in 0..steps {
        let gram = cx.tensor("gram", [side, side], products)?;
        cx.run(product(x, x, gram, is_tall, !is_tall))?;
        let squared = cx.tensor("gram squared", [side, side], products)?;
        cx.run(product(gram, gram, squared, false, false))?;
        let factor = cx.tensor("polynomial", [side, side], products)?;
        cx.run(MatrixPolynomial { x: gram, square: squared, coefficients: COEFFICIENTS, output: factor })?;
        let next = cx.tensor("orthogonal", [rows, columns], products)?;
        let (a, b) = if is_tall { (x, factor) } else { (factor, x) };
        cx.run(product(a, b, next, false, false))?;
        x = next;
    }
    Ok(x)
}

fn product(a: Tensor, b: Tensor, out: Tensor, transpose_a: bool, transpose_b: bool) -> Gemm {
    Gemm { transpose_a, transpose_b, ..Gemm::plain(a, b, out) }
}
