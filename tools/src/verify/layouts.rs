//! The ranks of a layout to verify.

use parallel::{Axis, Mesh, MeshSizes};

/// The most ranks that are threads of one host at once.
const MOST_RANKS: usize = 16;

/// A run's own layout, if it has at most 16 ranks. Otherwise smaller ones: all axes at 2, and every two of them at 3 or
/// 4. An axis of 2 ranks cannot show if a number of ranks is taken for 2, or a neighbour for all others.
pub(super) fn layouts(mesh: Mesh) -> Vec<Mesh> {
    if mesh.ranks() <= MOST_RANKS {
        return vec![of_sizes(Axis::DENSE.map(|axis| mesh.size(axis)))];
    }
    let size = |axis, most: usize| match mesh.size(axis) {
        size if size <= most => size,
        size if size.is_multiple_of(2) || most < 3 => most,
        _ => 3,
    };
    let at = |largest: &[Axis]| {
        let of = |axis| size(axis, if largest.contains(&axis) { 4 } else { 1 });
        of_sizes(Axis::DENSE.map(of))
    };
    let twos = of_sizes(Axis::DENSE.map(|axis| size(axis, 2)));
    let with_later = |first: usize| (first + 1..Axis::DENSE.len()).map(move |second| [first, second]);
    let places = (0..Axis::DENSE.len()).flat_map(with_later);
    let pairs: Vec<Mesh> = places.map(|pair| at(&pair.map(|axis| Axis::DENSE[axis]))).collect();
    // A layout that lies within another one shows nothing more.
    let within = |mesh: &Mesh, other: &Mesh| Axis::DENSE.iter().all(|&axis| mesh.size(axis) <= other.size(axis));
    let is_shown = |&(at, mesh): &(usize, &Mesh)| {
        let others = pairs.iter().enumerate().filter(|(other, pair)| *other < at || *pair != mesh);
        within(mesh, &twos) || others.into_iter().any(|(_, other)| within(mesh, other))
    };
    let shows_more = pairs.iter().enumerate().filter(|pair| !is_shown(pair)).map(|(_, mesh)| *mesh);
    [twos].into_iter().chain(shows_more).collect()
}

/// The mesh with these sizes along the axes of [`Axis::DENSE`].
pub(super) fn of_sizes([tensor, context, data, pipeline]: [usize; 4]) -> Mesh {
    match Mesh::new(MeshSizes { tensor, context, pipeline, ..MeshSizes::of(tensor * context * data * pipeline) }) {
        Ok(mesh) => mesh,
        Err(_) => unreachable!("the sizes are above 0 and make up the ranks"),
    }
}

/// The same mesh with another size of an axis; `None` if these are too many ranks.
pub(super) fn with_size(mesh: Mesh, axis: Axis, size: usize) -> Option<Mesh> {
    let other = of_sizes(Axis::DENSE.map(|of| if of == axis { size } else { mesh.size(of) }));
    (other.ranks() <= MOST_RANKS).then_some(other)
}

/// A layout in words.
pub(crate) fn words(mesh: Mesh) -> String {
    let [tensor, context, data, pipeline] = Axis::DENSE.map(|axis| mesh.size(axis));
    let context = if context > 1 { format!(" x context {context}") } else { String::new() };
    format!("tensor {tensor}{context} x pipeline {pipeline} x data {data}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_layout_becomes_small_ones_in_which_every_two_axes_of_three_ranks_and_more_meet() {
        let sizes = |sizes: [usize; 4]| {
            let of = |mesh: Mesh| Axis::DENSE.map(|axis| mesh.size(axis));
            layouts(of_sizes(sizes)).into_iter().map(of).collect::<Vec<_>>()
        };
        assert_eq!(sizes([2, 1, 4, 2]), [[2, 1, 4, 2]]);
        assert_eq!(sizes([8, 1, 8, 4]), [[2, 1, 2, 2], [4, 1, 4, 1], [4, 1, 1, 4], [1, 1, 4, 4]]);
        assert_eq!(sizes([2, 1, 9, 6]), [[2, 1, 2, 2], [2, 1, 3, 1], [2, 1, 1, 4], [1, 1, 3, 4]]);
        assert_eq!(sizes([1, 1, 64, 1]), [[1, 1, 2, 1], [1, 1, 4, 1]]);
        let all = [[2, 2, 2, 2], [4, 4, 1, 1], [4, 1, 4, 1], [4, 1, 1, 4], [1, 4, 4, 1], [1, 4, 1, 4], [1, 1, 4, 4]];
        assert_eq!(sizes([8, 8, 8, 8]), all);
    }
}
