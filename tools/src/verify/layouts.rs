//! The ranks of a layout to verify.

use parallel::{Axis, Mesh, MeshSizes};

/// The most ranks that are threads of one host at once.
const MOST_RANKS: usize = 16;

/// The axes along which layouts are tried. Of [`Axis::ExpertData`] only the ranks count that other axes do not have: so the
/// sizes multiply to the number of ranks, if context and expert ranks are not the same ones. Ranks of whole experts are
/// among those of the other axes.
pub(super) const AXES: [Axis; 5] = [Axis::Tensor, Axis::Context, Axis::Expert, Axis::ExpertData, Axis::Pipeline];

/// What a rank that shares layers with others has of an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OfExpert {
    /// Some of the expert's channels.
    Channels,
    /// The whole expert.
    Whole,
}

impl OfExpert {
    /// The division of a mesh.
    pub(super) fn on(mesh: Mesh) -> OfExpert {
        let MeshSizes { tensor, expert_tensor, .. } = mesh.sizes();
        if expert_tensor < tensor { OfExpert::Whole } else { OfExpert::Channels }
    }
}

/// The size of a mesh along one of the [`AXES`].
pub(super) fn size_of(mesh: Mesh, axis: Axis) -> usize {
    let [tensor, context, expert, pipeline] =
        [Axis::Tensor, Axis::Context, Axis::Expert, Axis::Pipeline].map(|axis| mesh.size(axis));
    match (axis, OfExpert::on(mesh)) {
        (Axis::ExpertData, OfExpert::Whole) => mesh.ranks() / (tensor * context * pipeline),
        (Axis::ExpertData, OfExpert::Channels) => (mesh.ranks() / (tensor * context * expert * pipeline)).max(1),
        (axis, _) => mesh.size(axis),
    }
}

/// The sizes of a mesh along [`AXES`].
pub(super) fn sizes(mesh: Mesh) -> [usize; 5] {
    AXES.map(|axis| size_of(mesh, axis))
}

/// A run's own layout, if of at most 16 ranks. Otherwise smaller ones: all axes at 2, and every two of them at 3 or
/// 4. An axis of 2 ranks cannot show if a number of ranks is taken for 2, or a neighbour for all others.
pub(super) fn layouts(mesh: Mesh) -> Vec<Mesh> {
    if mesh.ranks() <= MOST_RANKS {
        let sizes = MeshSizes { key_head_copies: 1, ..mesh.sizes() };
        return vec![Mesh::new(sizes).unwrap_or(mesh)];
    }
    let size = |axis, most: usize| match size_of(mesh, axis) {
        size if size <= most => size,
        size if size.is_multiple_of(2) || most < 3 => most,
        _ => 3,
    };
    let kind = OfExpert::on(mesh);
    let at = |largest: &[Axis]| {
        let of = |axis| size(axis, if largest.contains(&axis) { 4 } else { 1 });
        of_sizes(AXES.map(of), kind)
    };
    let twos = of_sizes(AXES.map(|axis| size(axis, 2)), kind);
    let with_later = |first: usize| (first + 1..AXES.len()).map(move |second| [AXES[first], AXES[second]]);
    let mut all: Vec<Mesh> = Vec::new();
    for mesh in [twos].into_iter().chain((0..AXES.len()).flat_map(with_later).map(|pair| at(&pair))) {
        // A layout that lies within another one shows nothing more.
        let within = |other: &Mesh| sizes(mesh).into_iter().zip(sizes(*other)).all(|(size, other)| size <= other);
        if !all.iter().any(within) {
            all.retain(|other| !sizes(*other).into_iter().zip(sizes(mesh)).all(|(size, larger)| size <= larger));
            all.push(mesh);
        }
    }
    all
}

/// The mesh with the given sizes along [`AXES`]. If whole experts have no ranks among the others, they have more of their
/// own.
pub(super) fn of_sizes([tensor, context, expert, data, pipeline]: [usize; 5], of_expert: OfExpert) -> Mesh {
    let stage = tensor * context * data;
    let with = |stage: usize, expert_tensor: usize| {
        let ranks = stage * pipeline;
        Mesh::new(MeshSizes { tensor, context, expert, expert_tensor, pipeline, ..MeshSizes::of(ranks) }).ok()
    };
    let whole = || with(stage, 1).or_else(|| with(stage * expert, 1));
    let mesh = (of_expert == OfExpert::Whole).then(whole).flatten();
    match mesh.or_else(|| with(stage * expert, tensor)) {
        Some(mesh) => mesh,
        None => unreachable!("the sizes are above 0 and make up the ranks"),
    }
}

/// The same mesh with another size of an axis; `None` for too many ranks.
pub(super) fn with_size(mesh: Mesh, axis: Axis, size: usize) -> Option<Mesh> {
    let sizes = AXES.map(|of| if of == axis { size } else { size_of(mesh, of) });
    Some(of_sizes(sizes, OfExpert::on(mesh))).filter(|other| other.ranks() <= MOST_RANKS)
}

/// The name of one of the [`AXES`]: where no ranks divide experts, or whole ones, the last ranks are those that share the
/// batch.
pub(super) fn name(mesh: Mesh, axis: Axis) -> &'static str {
    let is_data = mesh.size(Axis::Expert) == 1 || OfExpert::on(mesh) == OfExpert::Whole;
    if axis == Axis::ExpertData && is_data { Axis::Data.name() } else { axis.name() }
}

/// A layout in words.
pub(crate) fn words(mesh: Mesh) -> String {
    let [tensor, context, expert, data, pipeline] = sizes(mesh);
    let context = if context > 1 { format!(" x context {context}") } else { String::new() };
    let dense = format!("tensor {tensor}{context} x pipeline {pipeline}");
    match (expert, OfExpert::on(mesh)) {
        (_, OfExpert::Whole) => format!("{dense} x data {data}, whole experts over {expert}"),
        (1, OfExpert::Channels) => format!("{dense} x data {data}"),
        (_, OfExpert::Channels) => format!("{dense} x expert {expert} x expert data {data}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_layout_becomes_small_ones_in_which_every_two_axes_of_three_ranks_and_more_meet() {
        let small = |[tensor, data, pipeline]: [usize; 3]| {
            let of = |mesh: Mesh| {
                let [tensor, _, _, data, pipeline] = sizes(mesh);
                [tensor, data, pipeline]
            };
            layouts(of_sizes([tensor, 1, 1, data, pipeline], OfExpert::Channels))
                .into_iter()
                .map(of)
                .collect::<Vec<_>>()
        };
        assert_eq!(small([2, 4, 2]), [[2, 4, 2]]);
        assert_eq!(small([8, 8, 4]), [[2, 2, 2], [4, 4, 1], [4, 1, 4], [1, 4, 4]]);
        assert_eq!(small([2, 9, 6]), [[2, 2, 2], [2, 3, 1], [2, 1, 4], [1, 3, 4]]);
        assert_eq!(small([1, 64, 1]), [[1, 4, 1]]);
        let all = |of| layouts(of_sizes(of, OfExpert::Channels)).into_iter().map(sizes).collect::<Vec<_>>();
        assert_eq!(all([2, 1, 8, 4, 1]), [[2, 1, 2, 2, 1], [2, 1, 4, 1, 1], [2, 1, 1, 4, 1], [1, 1, 4, 4, 1]]);
        let with_context = [
            [2, 2, 1, 2, 2],
            [4, 4, 1, 1, 1],
            [4, 1, 1, 4, 1],
            [4, 1, 1, 1, 4],
            [1, 4, 1, 4, 1],
            [1, 4, 1, 1, 4],
            [1, 1, 1, 4, 4],
        ];
        assert_eq!(all([8, 8, 1, 8, 8]), with_context);
        // Ranks of whole experts are among the others.
        let whole = layouts(of_sizes([8, 1, 16, 4, 1], OfExpert::Whole));
        assert!(whole.iter().all(|mesh| mesh.sizes().expert_tensor == 1 && mesh.ranks() <= MOST_RANKS), "{whole:?}");
        let whole: Vec<_> = whole.into_iter().map(|mesh| (sizes(mesh), mesh.ranks())).collect();
        assert_eq!(whole, [([2, 1, 2, 2, 1], 4), ([4, 1, 4, 1, 1], 4), ([4, 1, 1, 4, 1], 16)]);
    }
}
