//! The order of a parameter's values in a file.

use crate::families::FileLayout;

impl FileLayout {
    /// Experts whose tensors lie one after the other; 1 for other tensors.
    pub(super) fn experts(self) -> usize {
        match self {
            FileLayout::OfExperts { experts, .. }
            | FileLayout::FactorA { experts }
            | FileLayout::FactorB { experts, .. } => experts,
            FileLayout::Ours | FileLayout::Transposed => 1,
        }
    }

    /// The sizes in the file of `sizes` of ours.
    pub(super) fn sizes(self, mut sizes: Vec<usize>) -> Vec<usize> {
        match self {
            FileLayout::Ours | FileLayout::FactorA { .. } => {}
            FileLayout::FactorB { experts, .. } => {
                sizes[0] /= experts;
                sizes[1] *= experts;
            }
            FileLayout::Transposed => sizes.reverse(),
            FileLayout::OfExperts { experts, .. } => {
                sizes[0] /= experts;
                sizes.reverse();
                sizes.insert(0, experts);
            }
        }
        sizes
    }

    /// Whole experts, of `each` rows of `width` values, from the values of a file.
    pub(super) fn as_ours(self, values: Vec<f32>, each: usize, width: usize) -> Vec<f32> {
        match self {
            FileLayout::Ours | FileLayout::FactorA { .. } => values,
            FileLayout::Transposed => transposed(&values, width),
            FileLayout::FactorB { experts, .. } => {
                let at = |expert: usize, row: usize, low: usize| {
                    values[(self.row_in_file(row, each) * width + low) * experts + expert]
                };
                let rows = (0..experts).flat_map(|expert| (0..each).map(move |row| (expert, row)));
                rows.flat_map(|(expert, row)| (0..width).map(move |low| (expert, row, low)))
                    .map(|(expert, row, low)| at(expert, row, low))
                    .collect()
            }
            FileLayout::OfExperts { .. } => {
                let rows: Vec<f32> = values.chunks(each * width).flat_map(|expert| transposed(expert, width)).collect();
                self.ordered(&rows, each, width)
            }
        }
    }

    /// The values of a file, from whole experts.
    pub(super) fn to_file(self, values: Vec<f32>, each: usize, width: usize) -> Vec<f32> {
        match self {
            FileLayout::Ours | FileLayout::FactorA { .. } => values,
            FileLayout::Transposed => transposed(&values, each),
            FileLayout::FactorB { experts, .. } => {
                let mut file = vec![0.0; values.len()];
                for (at, value) in values.iter().enumerate() {
                    let (expert, row, low) = (at / (each * width), at / width % each, at % width);
                    file[(self.row_in_file(row, each) * width + low) * experts + expert] = *value;
                }
                file
            }
            FileLayout::OfExperts { .. } => {
                let mut rows = vec![0.0; values.len()];
                for (at, row) in values.chunks(width).enumerate() {
                    let to = at / each * each + self.row_in_file(at % each, each);
                    rows[to * width..(to + 1) * width].copy_from_slice(row);
                }
                rows.chunks(each * width).flat_map(|expert| transposed(expert, each)).collect()
            }
        }
    }

    /// Rows of experts in our order, from rows in the order of the file.
    pub(super) fn ordered(self, rows: &[f32], each: usize, width: usize) -> Vec<f32> {
        let from = |at: usize| at / each * each + self.row_in_file(at % each, each);
        (0..rows.len() / width).flat_map(|at| &rows[from(at) * width..(from(at) + 1) * width]).copied().collect()
    }

    /// The place in a file of a row of an expert, of which there are `each`.
    fn row_in_file(self, row: usize, each: usize) -> usize {
        match self {
            FileLayout::OfExperts { in_turns: true, .. } | FileLayout::FactorB { in_turns: true, .. } => {
                row % (each / 2) * 2 + row / (each / 2)
            }
            _ => row,
        }
    }
}

/// The transpose of a matrix of so many rows.
fn transposed(values: &[f32], rows: usize) -> Vec<f32> {
    let columns = values.len() / rows.max(1);
    (0..columns).flat_map(|column| (0..rows).map(move |row| values[row * columns + column])).collect()
}
