//! The mesh: how the ranks of a run are numbered, and the sets of ranks that divide a tensor or sum over each other.
//!
//! A rank's number is cut at the sizes of the layout: ranks that share a layer are neighbours, then come those with other
//! tokens, then those with other samples, and the stages of a pipeline are furthest apart. Experts cut the same numbers at
//! other places. If each cut divides the next, the ratios of neighbouring cuts are **digits** of a rank's number. Every
//! group of ranks is then a set of digits ([`Axes`]): those in which its members differ. This is Megatron's order of ranks.

use std::fmt::{self, Display};
use std::ops::{BitAnd, BitOr, Sub};

/// The sizes of a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeshSizes {
    /// All ranks of the run.
    pub ranks: usize,
    /// Ranks that share each layer.
    pub tensor: usize,
    /// The number of ranks that store the same key heads, among the ranks that share each layer.
    pub key_head_copies: usize,
    /// Ranks with other tokens of the same samples.
    pub context: usize,
    /// Ranks that share the experts of a layer.
    pub expert: usize,
    /// Ranks that share each expert.
    pub expert_tensor: usize,
    /// Stages of the pipeline.
    pub pipeline: usize,
    /// Groups of the ranks of a stage that each hold all that ranks with other tokens divide.
    pub copies: usize,
}

impl MeshSizes {
    /// So many ranks that all have the whole model.
    pub fn of(ranks: usize) -> MeshSizes {
        MeshSizes {
            ranks,
            tensor: 1,
            key_head_copies: 1,
            context: 1,
            expert: 1,
            expert_tensor: 1,
            pipeline: 1,
            copies: 1,
        }
    }
}

/// A named set of digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Axis {
    /// Ranks that share each layer.
    Tensor,
    /// The ranks of [`Axis::Tensor`] that store the same key heads: there are more ranks than key heads.
    KeyHeadCopies,
    /// Ranks with other tokens of the same samples.
    Context,
    /// Ranks with the same weights and other samples.
    Data,
    /// Ranks that share each expert.
    ExpertTensor,
    /// Ranks with other experts of the same layers.
    Expert,
    /// Ranks with the same experts and other tokens.
    ExpertData,
    /// Ranks with other layers: the stages of a pipeline.
    Pipeline,
    /// Ranks with the same weights and other tokens: those of context and data together.
    Tokens,
    /// The ranks of [`Axis::Tokens`] that divide what ranks with other tokens divide.
    Shards,
    /// The ranks of [`Axis::ExpertData`] that divide what ranks with other tokens divide.
    ExpertShards,
    /// Ranks with copies of the same part of what ranks with other tokens divide.
    Copies,
}

impl Axis {
    /// All axes. Of axes with the same ranks the first one names them.
    pub const ALL: [Axis; 12] = [
        Axis::Tensor,
        Axis::Context,
        Axis::Data,
        Axis::Pipeline,
        Axis::KeyHeadCopies,
        Axis::ExpertTensor,
        Axis::Expert,
        Axis::ExpertData,
        Axis::Tokens,
        Axis::Shards,
        Axis::ExpertShards,
        Axis::Copies,
    ];

    /// The axes that layouts have, nearest neighbours first. Their sizes multiply to the number of ranks.
    pub const DENSE: [Axis; 4] = [Axis::Tensor, Axis::Context, Axis::Data, Axis::Pipeline];

    /// The axis's name in messages and logs.
    pub fn name(self) -> &'static str {
        match self {
            Axis::Tensor => "tensor",
            Axis::KeyHeadCopies => "key head copies",
            Axis::Context => "context",
            Axis::Data => "data",
            Axis::ExpertTensor => "expert tensor",
            Axis::Expert => "expert",
            Axis::ExpertData => "expert data",
            Axis::Pipeline => "pipeline",
            Axis::Tokens => "data x context",
            Axis::Shards => "shards",
            Axis::ExpertShards => "expert shards",
            Axis::Copies => "copies",
        }
    }
}

/// A set of a mesh's digits. A rank's group over it has the ranks that differ in these digits alone.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Axes(u16);

impl Axes {
    /// No digit: each rank is a group by itself.
    pub const NONE: Axes = Axes(0);

    /// Whether the set has no digit.
    pub fn is_empty(self) -> bool {
        self == Axes::NONE
    }
}

impl fmt::Debug for Axes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits: Vec<usize> = (0..DIGITS).filter(|digit| self.0 & 1 << digit > 0).collect();
        write!(f, "digits {digits:?}")
    }
}

/// The digits of both.
impl BitOr for Axes {
    type Output = Axes;

    fn bitor(self, other: Axes) -> Axes {
        Axes(self.0 | other.0)
    }
}

/// The digits that both have.
impl BitAnd for Axes {
    type Output = Axes;

    fn bitand(self, other: Axes) -> Axes {
        Axes(self.0 & other.0)
    }
}

/// The digits of the first that the second lacks.
impl Sub for Axes {
    type Output = Axes;

    fn sub(self, other: Axes) -> Axes {
        Axes(self.0 & !other.0)
    }
}

/// A rank's place among the ranks of a group, in the group's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The rank's index, from 0.
    pub index: usize,
    /// The number of ranks.
    pub count: usize,
}

impl Place {
    /// The only rank.
    pub const ALONE: Place = Place { index: 0, count: 1 };

    /// Whether the rank is the group's first.
    pub fn is_first(self) -> bool {
        self.index == 0
    }

    /// Whether there are other ranks.
    pub fn has_others(self) -> bool {
        self.count > 1
    }
}

/// The most digits: a cut for each size, but for the first rank itself.
const DIGITS: usize = 8;

/// All ranks of a run, numbered by digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mesh {
    sizes: MeshSizes,
    /// The number of values of each digit, nearest neighbours first. Where cuts are equal it is 1.
    digits: [usize; DIGITS],
}

/// Sizes that give no mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoMesh {
    /// The number of ranks is no multiple of what the sizes need.
    Ranks {
        /// The product of the sizes.
        needed: usize,
    },
    /// Two cuts of a rank's number cross: neither divides the other.
    Cuts {
        /// The smaller cut, in words, and the cut's size.
        smaller: (&'static str, usize),
        /// The larger one.
        larger: (&'static str, usize),
        /// Sizes of [`MeshSizes::expert`] with which all cuts divide each other.
        experts: Vec<usize>,
    },
}

impl Display for NoMesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoMesh::Ranks { needed } => write!(f, "the number of ranks is no multiple of {needed}"),
            NoMesh::Cuts { smaller, larger, experts } => {
                write!(f, "{} = {} does not divide {} = {}", smaller.0, smaller.1, larger.0, larger.1)?;
                match experts.as_slice() {
                    [] => write!(f, "; with the other sizes there is no number of expert ranks"),
                    sizes => write!(f, "; expert ranks that work: {sizes:?}"),
                }
            }
        }
    }
}

impl std::error::Error for NoMesh {}

impl Mesh {
    /// Numbers the ranks. The data axes take the ranks that the sizes leave.
    ///
    /// # Errors
    /// The sizes do not divide the ranks, or cut their numbers where others do not.
    pub fn new(sizes: MeshSizes) -> Result<Mesh, NoMesh> {
        let cuts = cuts(sizes)?;
        let digits = digits(cuts).map_err(|crossing| NoMesh::Cuts {
            smaller: crossing.0,
            larger: crossing.1,
            experts: experts_that_work(sizes),
        })?;
        Ok(Mesh { sizes, digits })
    }

    /// The mesh of one rank.
    pub fn single() -> Mesh {
        Mesh { sizes: MeshSizes::of(1), digits: [1; DIGITS] }
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.sizes.ranks
    }

    /// The sizes that the mesh was made of.
    pub fn sizes(&self) -> MeshSizes {
        self.sizes
    }

    /// The digits of a named axis.
    pub fn axes(&self, axis: Axis) -> Axes {
        let MeshSizes { ranks, tensor, key_head_copies, context, expert, expert_tensor, pipeline, copies } = self.sizes;
        let stage = ranks / pipeline;
        let (first, end) = match axis {
            Axis::Tensor => (1, tensor),
            Axis::KeyHeadCopies => (1, key_head_copies),
            Axis::Context => (tensor, tensor * context),
            Axis::Data => (tensor * context, stage),
            Axis::ExpertTensor => (1, expert_tensor),
            Axis::Expert => (expert_tensor, expert_tensor * expert),
            Axis::ExpertData => (expert_tensor * expert, stage),
            Axis::Pipeline => (stage, ranks),
            Axis::Tokens => (tensor, stage),
            Axis::Shards => (tensor, stage / copies),
            Axis::ExpertShards => (expert_tensor * expert, stage / copies),
            Axis::Copies => (stage / copies, stage),
        };
        let within = |digit: usize| (first..end).contains(&self.stride(digit)) && self.digits[digit] > 1;
        Axes((0..DIGITS).filter(|&digit| within(digit)).fold(0, |set, digit| set | 1 << digit))
    }

    /// All digits: the group of all ranks.
    pub fn everyone(&self) -> Axes {
        Axes((0..DIGITS).filter(|&digit| self.digits[digit] > 1).fold(0, |set, digit| set | 1 << digit))
    }

    /// The axis with the digits of a set; `None` if no named axis has just that set.
    pub fn axis_of(&self, axes: Axes) -> Option<Axis> {
        Axis::ALL.into_iter().find(|&axis| self.axes(axis) == axes)
    }

    /// The ranks of a stage that have other weights of some layer: those that share layers, and those that divide experts.
    pub fn with_other_weights(&self) -> Axes {
        self.axes(Axis::Tensor) | self.axes(Axis::Expert)
    }

    /// The ranks that have other tokens in some layer: dense layers are read by those of [`Axis::Tokens`], and experts by
    /// those of [`Axis::ExpertData`].
    pub fn with_other_tokens(&self) -> Axes {
        self.axes(Axis::Tokens) | self.axes(Axis::ExpertData)
    }

    /// The ranks with other tokens that may divide what each rank would have whole.
    pub fn that_divide(&self) -> Axes {
        self.with_other_tokens() - self.axes(Axis::Copies)
    }

    /// The number of ranks along an axis.
    pub fn size(&self, axis: Axis) -> usize {
        self.count(self.axes(axis))
    }

    /// The number of ranks of a group.
    pub fn count(&self, axes: Axes) -> usize {
        self.within(axes).map(|digit| self.digits[digit]).product()
    }

    /// The place of a rank in the group of a set: its digits of the set, those of near neighbours counting least.
    pub fn place(&self, rank: usize, axes: Axes) -> Place {
        self.within(axes).fold(Place::ALONE, |Place { index, count }, digit| {
            let value = rank / self.stride(digit) % self.digits[digit];
            Place { index: index + value * count, count: count * self.digits[digit] }
        })
    }

    /// The position of a rank on an axis.
    pub fn position(&self, rank: usize, axis: Axis) -> usize {
        self.place(rank, self.axes(axis)).index
    }

    /// The ranks that differ from `rank` in the digits of a set alone, `rank` included, in ascending order. A rank's
    /// index there is that of its [`Mesh::place`].
    pub fn members(&self, rank: usize, axes: Axes) -> Vec<usize> {
        let digits = || self.within(axes).map(|digit| (self.stride(digit), self.digits[digit]));
        let first = digits().fold(rank, |first, (stride, size)| first - rank / stride % size * stride);
        digits().fold(vec![first], |before, (stride, size)| {
            (0..size).flat_map(|value| before.iter().map(move |rank| rank + value * stride)).collect()
        })
    }

    /// The ranks along a named axis; see [`Mesh::members`].
    pub fn members_along(&self, rank: usize, axis: Axis) -> Vec<usize> {
        self.members(rank, self.axes(axis))
    }

    fn within(&self, axes: Axes) -> impl Iterator<Item = usize> {
        (0..DIGITS).filter(move |digit| axes.0 & 1 << digit > 0)
    }

    /// The difference between ranks that are neighbours in a digit.
    fn stride(&self, digit: usize) -> usize {
        self.digits[..digit].iter().product()
    }
}

/// A size at which a rank's number is cut, with its words.
type Cut = (&'static str, usize);

/// The cuts of a rank's number.
fn cuts(sizes: MeshSizes) -> Result<[Cut; DIGITS], NoMesh> {
    let MeshSizes { ranks, tensor, key_head_copies, context, expert, expert_tensor, pipeline, copies } = sizes;
    for factors in [[tensor, context, pipeline, copies], [expert_tensor, expert, pipeline, 1]] {
        let needed = factors.iter().try_fold(1_usize, |all, &size| all.checked_mul(size));
        if ranks == 0 || !needed.is_some_and(|needed| needed > 0 && ranks.is_multiple_of(needed)) {
            return Err(NoMesh::Ranks { needed: needed.unwrap_or(usize::MAX) });
        }
    }
    Ok([
        ("copies of a key head", key_head_copies),
        ("tensor ranks", tensor),
        ("tensor x context ranks", tensor * context),
        ("expert tensor ranks", expert_tensor),
        ("expert tensor x expert ranks", expert_tensor * expert),
        ("ranks of a copy", ranks / pipeline / copies),
        ("ranks of a stage", ranks / pipeline),
        ("ranks", ranks),
    ])
}

/// The digits between cuts, or two neighbouring cuts of which the smaller does not divide the larger.
fn digits(mut cuts: [Cut; DIGITS]) -> Result<[usize; DIGITS], (Cut, Cut)> {
    cuts.sort_by_key(|(_, cut)| *cut);
    let mut digits = [1; DIGITS];
    let mut before = ("one rank", 1);
    for (digit, cut) in digits.iter_mut().zip(cuts) {
        if !cut.1.is_multiple_of(before.1) {
            return Err((before, cut));
        }
        *digit = cut.1 / before.1;
        // Of equal cuts the first one has the name.
        before = if *digit > 1 { cut } else { before };
    }
    Ok(digits)
}

/// The numbers of expert ranks with which all cuts divide each other.
fn experts_that_work(sizes: MeshSizes) -> Vec<usize> {
    let most = sizes.ranks / sizes.pipeline / sizes.expert_tensor;
    let works = |&expert: &usize| cuts(MeshSizes { expert, ..sizes }).is_ok_and(|cuts| digits(cuts).is_ok());
    (1..=most).filter(works).collect()
}
