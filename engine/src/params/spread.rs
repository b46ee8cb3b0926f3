//! How a parameter lies over the ranks of a mesh.

use std::ops::Range;

use parallel::{Axes, Axis, Ranks};
use rayon::prelude::*;

use super::slab::Slab;

/// A dimension that ranks divide, in equal parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The dimension: those of [`Part::rows`] come first, then the others of the parameter.
    pub dim: usize,
    /// The ranks that divide the dimension. Other ranks store copies.
    pub over: Axes,
}

/// Consecutive rows of a parameter that ranks divide separately, such as the queries of a packed weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Rows, with padding, in the layers' order: `[rows]`, or of experts `[experts, gate and values, channels]`. The
    /// last are those of one matrix.
    pub rows: Vec<usize>,
    /// Divided dimensions, in ascending order.
    pub cuts: Vec<Cut>,
    /// The ranks that each compute a partial sum of the part's gradient.
    pub partial: Axes,
}

impl Part {
    /// Rows that every rank stores whole.
    pub fn whole(rows: Vec<usize>) -> Part {
        Part { rows, cuts: Vec::new(), partial: Axes::NONE }
    }

    /// The same rows, divided along a dimension.
    pub fn cut(mut self, dim: usize, over: Axes) -> Part {
        self.cuts.push(Cut { dim, over });
        self
    }

    /// All ranks that divide the part in memory.
    pub fn cut_over(&self) -> Axes {
        self.cuts.iter().fold(Axes::NONE, |all, cut| all | cut.over)
    }

    /// This rank's range of a dimension of that size.
    ///
    /// # Panics
    /// If the ranks that divide the dimension do not divide its size.
    pub fn range(&self, ranks: &Ranks, dim: usize, size: usize) -> Range<usize> {
        let over = self.cuts.iter().filter(|cut| cut.dim == dim).fold(Axes::NONE, |all, cut| all | cut.over);
        let place = ranks.place(over);
        assert!(size.is_multiple_of(place.count), "{size} rows or columns over {} ranks", place.count);
        let part = size / place.count;
        place.index * part..(place.index + 1) * part
    }
}

/// How a parameter lies over the ranks of a mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spread {
    /// All rows, in order.
    pub parts: Vec<Part>,
    /// The ranks beyond [`Axis::Tokens`] that have other tokens where the parameter is used: of experts that are whole,
    /// the ranks that share the layers around them.
    pub more_tokens: Axes,
    /// The ranks that divide the parameter's master weights and optimizer state further: flat, each a part of every
    /// bucket (ZeRO stage 1, Rajbhandari et al., 2020).
    pub rest: Axes,
}

impl Spread {
    /// A parameter of so many rows that every rank stores whole.
    pub fn whole(rows: usize) -> Spread {
        Spread::of(vec![Part::whole(vec![rows])])
    }

    /// The spread of a parameter in `parts`, whose gradient is summed over the ranks of [`Axis::Tokens`] that
    /// do not divide the parameter.
    pub fn of(parts: Vec<Part>) -> Spread {
        Spread { parts, more_tokens: Axes::NONE, rest: Axes::NONE }
    }

    /// The ranks over which the parameter's complete gradient is summed: those with other tokens that do not divide it.
    pub fn sums(&self, ranks: &Ranks) -> Axes {
        (ranks.axes(Axis::Tokens) | self.more_tokens) - self.cut_over()
    }

    /// All ranks that divide the parameter in memory.
    pub fn cut_over(&self) -> Axes {
        self.parts.iter().fold(Axes::NONE, |all, part| all | part.cut_over())
    }

    /// The sizes that a rank stores of a parameter with the sizes `padded`.
    pub(super) fn stored_sizes(&self, ranks: &Ranks, padded: &[usize]) -> Vec<usize> {
        let rows = self.stored_rows(ranks).last().map_or(0, |last| last.end);
        let columns = padded.iter().enumerate().skip(1).map(|(dim, &size)| self.columns(ranks, dim, size).len());
        [rows].into_iter().chain(columns).collect()
    }

    /// The stored rows of each part.
    pub(super) fn stored_rows(&self, ranks: &Ranks) -> Vec<Range<usize>> {
        let mut end = 0;
        let rows = self.parts.iter().map(|part| {
            let start = end;
            end +=
                part.rows.iter().enumerate().map(|(dim, &size)| part.range(ranks, dim, size).len()).product::<usize>();
            start..end
        });
        rows.collect()
    }

    /// This rank's range of a dimension behind the rows, counted from 1. All parts divide it alike.
    fn columns(&self, ranks: &Ranks, dim: usize, size: usize) -> Range<usize> {
        let of_part = |part: &Part| part.range(ranks, part.rows.len() - 1 + dim, size);
        self.parts.first().map_or(0..0, of_part)
    }

    /// The slabs that a rank stores of a parameter with the sizes `whole`, without padding.
    pub(super) fn slabs(&self, ranks: &Ranks, whole: &[usize]) -> Vec<Slab> {
        let columns: Vec<Range<usize>> =
            whole.iter().enumerate().skip(1).map(|(dim, &size)| self.columns(ranks, dim, size)).collect();
        let width: usize = columns.iter().map(ExactSizeIterator::len).product();
        let is_divided = self.parts.iter().any(|part| ranks.place(part.cut_over()).has_others());
        if !is_divided {
            return vec![Slab { offset: vec![0; whole.len()], sizes: whole.to_vec(), start: 0 }];
        }
        let (mut before, mut stored) = (0, 0);
        let mut slabs = Vec::new();
        for part in &self.parts {
            for rows in runs(part, ranks) {
                // Rows beyond the whole are padding.
                let first = before + rows.start;
                let sizes = [rows.len().min(whole[0].saturating_sub(first))];
                slabs.push(Slab {
                    offset: [first].into_iter().chain(columns.iter().map(|range| range.start)).collect(),
                    sizes: sizes.into_iter().chain(columns.iter().map(ExactSizeIterator::len)).collect(),
                    start: stored * width,
                });
                stored += rows.len();
            }
            before += part.rows.iter().product::<usize>();
        }
        slabs.retain(|slab| slab.elements() > 0);
        slabs
    }
}

/// The rows of a part that this rank stores, as ranges among the part's rows.
fn runs(part: &Part, ranks: &Ranks) -> Vec<Range<usize>> {
    let mut runs = Vec::from([Range { start: 0, end: 1 }]);
    let innermost = part.cuts.iter().map(|cut| cut.dim).filter(|&dim| dim < part.rows.len()).max();
    for (dim, &size) in part.rows.iter().enumerate() {
        let here = part.range(ranks, dim, size);
        let scaled = |run: &Range<usize>| run.start * size..run.end * size;
        runs = match innermost {
            // A run is one entry of the dimensions so far.
            Some(last) if dim < last => {
                let entries = runs.iter().flat_map(|run| here.clone().map(move |at| run.start * size + at));
                entries.map(|entry| entry..entry + 1).collect()
            }
            Some(last) if dim == last => {
                runs.iter().map(|run| run.start * size + here.start..run.start * size + here.end).collect()
            }
            _ => runs.iter().map(scaled).collect(),
        };
    }
    runs
}

/// A core computes so many values in turn.
const FILLED: usize = 4096;

/// The values of `slabs` in `range` of the stored values, with 0 for padding. `value` gives an element of the
/// whole by its index.
pub(super) fn fill(
    whole: &[usize],
    slabs: &[Slab],
    range: Range<usize>,
    value: impl Fn(usize) -> f32 + Send + Sync,
) -> Vec<f32> {
    let width: usize = whole[1..].iter().product();
    let mut values = vec![0.0; range.len()];
    for slab in slabs {
        let (row, column) = (slab.offset[0], slab.offset.get(1).copied().unwrap_or(0));
        let columns: usize = slab.sizes[1..].iter().product();
        let (first, end) = (slab.start.max(range.start), (slab.start + slab.elements()).min(range.end));
        if first >= end {
            continue;
        }
        let here = &mut values[first - range.start..end - range.start];
        here.par_chunks_mut(FILLED).enumerate().for_each(|(number, here)| {
            for (at, here) in (first - slab.start + number * FILLED..).zip(here) {
                *here = value((row + at / columns) * width + column + at % columns);
            }
        });
    }
    values
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use parallel::{Connections, Mesh, MeshSizes, Placement};

    use super::*;
    use crate::params::{Init, ParamSpec};

    /// A rank of a mesh without communicators.
    fn rank_of(sizes: MeshSizes, rank: usize) -> Rc<Ranks> {
        let mesh = Mesh::new(sizes).unwrap();
        let connections = Connections { groups: Vec::new(), ..Connections::new(mesh, Placement::new(1, 1)) };
        Ranks::connect(&connections, rank, &mut |_, _| Ok(None)).unwrap()
    }

    /// So many ranks that share layers, of which some store copies of the same key head.
    fn tensor(ranks: usize, key_head_copies: usize, rank: usize) -> Rc<Ranks> {
        rank_of(MeshSizes { tensor: ranks, key_head_copies, ..MeshSizes::of(ranks) }, rank)
    }

    /// Parts of rows that all tensor-parallel ranks divide.
    fn rows(sizes: &[usize], ranks: &Ranks) -> Vec<Part> {
        sizes.iter().map(|&size| Part::whole(vec![size]).cut(0, ranks.axes(Axis::Tensor))).collect()
    }

    /// The elements of the whole that a rank stores, counted from 1, with 0 for padding.
    fn filled(whole: &[usize], padded: &[usize], parts: Vec<Part>, ranks: &Ranks) -> Vec<usize> {
        let spread = Spread::of(parts);
        let slabs = spread.slabs(ranks, whole);
        let elements = spread.stored_sizes(ranks, padded).iter().product();
        let of = |range| fill(whole, &slabs, range, |i| i as f32 + 1.0);
        let all = of(0..elements);
        for (first, end) in [(0, elements / 2), (1, elements), (elements / 3, elements / 3), (elements - 1, elements)] {
            assert_eq!(of(first..end), all[first..end], "{first}..{end} of {whole:?}");
        }
        all.into_iter().map(|x| x as usize).collect()
    }

    #[test]
    fn a_packed_weight_is_divided_within_each_of_its_parts() {
        // Four query heads, two key heads, two value heads of one row of two columns.
        let second = tensor(2, 1, 1);
        let parts = rows(&[4, 2, 2], &second);
        assert_eq!(filled(&[8, 2], &[8, 2], parts.clone(), &second), [5, 6, 7, 8, 11, 12, 15, 16]);
        let slabs = Spread::of(parts).slabs(&second, &[8, 2]);
        assert_eq!(slabs.iter().map(|slab| slab.start).collect::<Vec<_>>(), [0, 4, 6]);
    }

    #[test]
    fn ranks_store_copies_of_parts_that_fewer_ranks_divide() {
        // Four query heads, two key heads, two value heads, of one row of two columns, over four ranks.
        let of = |rank: usize| {
            let ranks = tensor(4, 2, rank);
            let copies = ranks.axes(Axis::KeyHeadCopies);
            let heads = ranks.axes(Axis::Tensor) - copies;
            let keys = || Part { partial: copies, ..Part::whole(vec![2]).cut(0, heads) };
            let mut parts = rows(&[4], &ranks);
            parts.extend([keys(), keys()]);
            (
                filled(&[8, 2], &[8, 2], parts.clone(), &ranks),
                ParamSpec::new("p", [8, 2], Init::Constant(0.0), 0).lying_in(&ranks, parts),
                ranks,
            )
        };
        assert_eq!(of(1).0, [3, 4, 9, 10, 13, 14]);
        assert_eq!(of(2).0, [5, 6, 11, 12, 15, 16]);
        assert_eq!(of(3).0, [7, 8, 11, 12, 15, 16]);
        // The first rank with a copy counts it.
        let counted = |rank: usize| {
            let (_, spec, ranks) = of(rank);
            spec.counted(&ranks, spec.spread.cut_over())
                .iter()
                .map(|range| (range.start, range.end))
                .collect::<Vec<_>>()
        };
        assert_eq!([0, 1, 2, 3].map(counted), [[(0, 6)], [(0, 2)], [(0, 6)], [(0, 2)]]);
    }

    #[test]
    fn columns_are_one_slab() {
        let second = tensor(3, 1, 1);
        let parts = vec![Part::whole(vec![2]).cut(1, second.axes(Axis::Tensor))];
        assert_eq!(filled(&[2, 6], &[2, 6], parts.clone(), &second), [3, 4, 9, 10]);
        let slab = Slab { offset: vec![0, 2], sizes: vec![2, 2], start: 0 };
        assert_eq!(Spread::of(parts).slabs(&second, &[2, 6]), [slab]);
    }

    #[test]
    fn padding_is_zero_and_in_no_slab() {
        // Five real rows of eight, over four ranks.
        let of = |rank| tensor(4, 1, rank);
        assert_eq!(filled(&[5, 1], &[8, 1], rows(&[8], &of(2)), &of(2)), [5, 0]);
        assert_eq!(filled(&[5, 1], &[8, 1], rows(&[8], &of(3)), &of(3)), [0, 0]);
        assert_eq!(Spread::of(rows(&[8], &of(3))).slabs(&of(3), &[5, 1]), []);
    }

    #[test]
    fn experts_are_divided_by_themselves_and_within() {
        // Four experts of a gate and values, each of four channels, over two expert ranks of two ranks each.
        let sizes = MeshSizes { expert: 2, expert_tensor: 2, ..MeshSizes::of(4) };
        let of = |rank: usize| {
            let ranks = rank_of(sizes, rank);
            let [experts, within] = [Axis::Expert, Axis::ExpertTensor].map(|axis| ranks.axes(axis));
            let part = Part::whole(vec![4, 2, 4]).cut(0, experts).cut(2, within);
            filled(&[32, 1], &[32, 1], vec![part], &ranks)
        };
        assert_eq!(of(0), [1, 2, 5, 6, 9, 10, 13, 14]);
        assert_eq!(of(3), [19, 20, 23, 24, 27, 28, 31, 32]);
    }

    #[test]
    fn every_element_is_stored_owned_and_counted_once_in_random_meshes() {
        let mut state = 7_u64;
        let mut random = move |below: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % below
        };
        let mut meshes = 0;
        while meshes < 200 {
            let mut size = || 1 << random(3);
            let [tensor, context, pipeline, expert_tensor, expert, copies] = [(); 6].map(|()| size());
            let ranks = tensor * context * pipeline * copies * size();
            let key_head_copies = 1 << random(3);
            let sizes = MeshSizes { ranks, tensor, key_head_copies, context, expert, expert_tensor, pipeline, copies };
            let Some(mesh) = Mesh::new(sizes).ok().filter(|_| tensor >= key_head_copies && ranks <= 64) else {
                continue;
            };
            meshes += 1;
            let axes = Axis::ALL.map(|axis| mesh.axes(axis));
            let of = |axis: Axis| mesh.axes(axis);
            let (copies, stage) = (of(Axis::KeyHeadCopies), of(Axis::Tensor) | of(Axis::Context) | of(Axis::Data));
            // Packed heads, columns, experts, and a parameter that is whole, each at rest over the ranks with other tokens.
            let columns = 16;
            let kind = random(4);
            let parts = match kind {
                0 => vec![
                    Part::whole(vec![16]).cut(0, of(Axis::Tensor)),
                    Part::whole(vec![16]).cut(0, of(Axis::Tensor) - copies),
                ],
                1 => vec![Part::whole(vec![5]).cut(1, axes[random(axes.len())] - of(Axis::Pipeline))],
                2 => vec![Part::whole(vec![16, 2, 16]).cut(0, of(Axis::Expert)).cut(2, of(Axis::ExpertTensor))],
                _ => vec![Part::whole(vec![7])],
            };
            let more_tokens = if kind == 2 { of(Axis::ExpertData) - of(Axis::Tokens) } else { Axes::NONE };
            let spread = Spread { more_tokens, ..Spread::of(parts) };
            let over = if random(2) == 0 { Axes::NONE } else { stage - of(Axis::Copies) };
            let rows: usize = spread.parts.iter().map(|part| part.rows.iter().product::<usize>()).sum();
            let (mut counted, mut stored) = (vec![0; rows * columns], vec![0; rows * columns]);
            // The ranks of the first stage.
            for rank in 0..ranks / pipeline {
                let here = rank_of(sizes, rank);
                let spec = ParamSpec::new("p", [rows, columns], Init::Constant(0.0), 0);
                let mut spec = spec.lying_in(&here, spread.parts.clone());
                spec.spread.more_tokens = more_tokens;
                let spec = spec.resting(&here, over);
                let place = here.place(spec.spread.rest);
                let elements = spec.shape.elements();
                let owned = elements * place.index / place.count..elements * (place.index + 1) / place.count;
                let mark = |range: Range<usize>, marks: &mut Vec<usize>| {
                    for slab in spec.slabs.iter().flat_map(|slab| slab.within(range.clone())) {
                        for row in slab.offset[0]..slab.offset[0] + slab.sizes[0] {
                            let first = row * columns + slab.offset[1];
                            marks[first..first + slab.sizes[1]].iter_mut().for_each(|mark| *mark += 1);
                        }
                    }
                };
                mark(0..elements, &mut stored);
                for range in spec.counted(&here, stage) {
                    mark(
                        range.start.max(owned.start)..range.end.min(owned.end).max(range.start.max(owned.start)),
                        &mut counted,
                    );
                }
            }
            assert!(counted.iter().all(|&times| times == 1), "{sizes:?}, {spread:?}: {counted:?}");
            assert!(stored.iter().all(|&times| times >= 1), "{sizes:?}, {spread:?}");
        }
    }
}
