//! The communicators of a rank, by the groups that they connect.

use std::rc::Rc;

use device::{Communicator, Result};

use crate::{Axes, Axis, Mesh, PipelineGroups, Place, Placement};

/// Makes a communicator of that name over a group of ranks. `None` if the group is one rank.
pub type Connect<'c> = dyn FnMut(&str, Vec<usize>) -> Result<Option<Rc<dyn Communicator>>> + 'c;

/// The purpose of a communicator. Ranks that do two things at once need two communicators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The transfers of the compute stream.
    Main,
    /// The transfers of a microbatch that runs beside another one.
    Aside,
    /// Sums of the loads of experts.
    Loads,
    /// Gathers of keys and values of sequences that ranks divide.
    Keys,
    /// The same of a microbatch that runs beside another one.
    KeysAside,
    /// The rows that go to the ranks of experts and back, beside sums over the same ranks.
    Rows,
    /// The same of a microbatch that runs beside another one.
    RowsAside,
}

/// The communicators of a run: groups of ranks, and the neighbours in a pipeline.
#[derive(Clone, Debug)]
pub struct Connections {
    /// All ranks.
    pub mesh: Mesh,
    /// The groups to connect, in the order in which all ranks connect them.
    pub groups: Vec<(Axes, Purpose)>,
    /// The parts of the model that each stage has.
    pub placement: Placement,
    /// The first and the last stage share a parameter.
    pub ties_ends: bool,
}

impl Connections {
    /// The groups that every run needs, without microbatches beside each other and losses over the loads of all ranks.
    pub fn new(mesh: Mesh, placement: Placement) -> Connections {
        let axes = [Axis::Tensor, Axis::KeyHeadCopies, Axis::Tokens, Axis::Pipeline];
        let none = Connections { mesh, groups: Vec::new(), placement, ties_ends: false };
        let dense =
            axes.into_iter().fold(none, |all, axis| all.with(axis, Purpose::Main)).with(Axis::Context, Purpose::Keys);
        let all = dense.with(Axis::ExpertData, Purpose::Main).with(Axis::Expert, Purpose::Rows);
        let divided = [Axis::Shards, Axis::ExpertShards, Axis::Copies];
        match mesh.size(Axis::Copies) {
            1 => all,
            _ => divided.into_iter().fold(all, |all, axis| all.with(axis, Purpose::Main)),
        }
    }

    /// The number of communicators of a rank; with several stages the number of a stage in the middle.
    pub fn communicators(&self) -> usize {
        self.groups.len() + if self.mesh.size(Axis::Pipeline) > 1 { 4 } else { 0 }
    }

    /// Also connects the ranks of `axis` for a purpose, if there are several and no communicator for that.
    pub fn with(mut self, axis: Axis, purpose: Purpose) -> Connections {
        let group = (self.mesh.axes(axis), purpose);
        if !group.0.is_empty() && !self.groups.contains(&group) {
            self.groups.push(group);
        }
        self
    }
}

/// A rank of a mesh, and its communicators with the others.
#[derive(Clone, Debug)]
pub struct Ranks {
    mesh: Mesh,
    rank: usize,
    made: Vec<(Axes, Purpose, Rc<dyn Communicator>)>,
    pipeline: Option<PipelineGroups>,
}

/// Whether the communicator of that name transfers through the memory of GPUs, where GPUs reach each other's memory:
/// those of ranks that share layers, and those of rows of experts.
pub fn suits_peer_memory(name: &str) -> bool {
    matches!(*name.split(", ").collect::<Vec<_>>(), ["tensor"] | [_, "aside" | "rows"] | [_, "rows", "aside"])
}

impl Ranks {
    /// The only rank.
    pub fn alone() -> Rc<Ranks> {
        Rc::new(Ranks { mesh: Mesh::single(), rank: 0, made: Vec::new(), pipeline: None })
    }

    /// Connects `rank` with the others. All ranks call it together, with the same connections, so each communicator is
    /// made in the same order everywhere.
    ///
    /// # Errors
    /// Errors of `connect`.
    pub fn connect(connections: &Connections, rank: usize, connect: &mut Connect<'_>) -> Result<Rc<Ranks>> {
        let &Connections { mesh, ref groups, placement, ties_ends } = connections;
        let mut ranks = Ranks { mesh, rank, made: Vec::new(), pipeline: None };
        for &(axes, purpose) in groups {
            if let Some(communicator) = connect(&name(&mesh, axes, purpose), mesh.members(rank, axes))? {
                ranks.made.push((axes, purpose, communicator));
            }
        }
        ranks.pipeline = PipelineGroups::connect(&mesh, rank, placement, ties_ends, connect)?;
        Ok(Rc::new(ranks))
    }

    /// All ranks of the run.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// The number of this rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The digits of a named axis.
    pub fn axes(&self, axis: Axis) -> Axes {
        self.mesh.axes(axis)
    }

    /// The place of this rank in its group.
    pub fn place(&self, axes: Axes) -> Place {
        self.mesh.place(self.rank, axes)
    }

    /// The place of this rank on a named axis.
    pub fn at(&self, axis: Axis) -> Place {
        self.place(self.axes(axis))
    }

    /// The ranks of this rank's pipeline stage.
    pub fn of_stage(&self) -> Axes {
        self.mesh.everyone() - self.axes(Axis::Pipeline)
    }

    /// The communicator of this rank's group; `None` if the rank is alone in it.
    ///
    /// # Panics
    /// If the group has other ranks and was not connected: a sum over it would be left out in silence.
    pub fn over(&self, axes: Axes) -> Option<&Rc<dyn Communicator>> {
        assert!(!self.lacks(axes, Purpose::Main), "no communicator `{}`", name(&self.mesh, axes, Purpose::Main));
        self.for_purpose(axes, Purpose::Main)
    }

    /// The communicator of the ranks along a named axis; see [`Ranks::over`].
    pub fn along(&self, axis: Axis) -> Option<&Rc<dyn Communicator>> {
        self.over(self.axes(axis))
    }

    /// The communicator of this rank's group for a purpose; `None` if the rank is alone in it, or if the group was not
    /// connected for that.
    pub fn for_purpose(&self, axes: Axes, purpose: Purpose) -> Option<&Rc<dyn Communicator>> {
        self.made.iter().find(|made| (made.0, made.1) == (axes, purpose)).map(|(_, _, communicator)| communicator)
    }

    /// Whether a group of several ranks has no communicator for a purpose.
    pub fn lacks(&self, axes: Axes, purpose: Purpose) -> bool {
        self.place(axes).has_others() && self.for_purpose(axes, purpose).is_none()
    }

    /// The communicators that together connect a rank's group: a sum over one after the other is a sum over the group. For
    /// small tensors, so that unions of groups need no communicators.
    ///
    /// # Panics
    /// If the group is no union of connected axes of tokens, data, context, tensor, pipeline and experts.
    pub fn chain(&self, axes: Axes) -> Vec<Rc<dyn Communicator>> {
        let named =
            [Axis::Tokens, Axis::Tensor, Axis::ExpertData, Axis::Expert, Axis::Data, Axis::Context, Axis::Pipeline]
                .into_iter()
                .chain([Axis::Shards, Axis::ExpertShards, Axis::Copies]);
        // Ranks with other experts may have a group of their own for nothing but their rows.
        let made = |these| self.for_purpose(these, Purpose::Main).or_else(|| self.for_purpose(these, Purpose::Rows));
        let groups: Vec<Axes> = named.map(|axis| self.axes(axis)).filter(|&axes| made(axes).is_some()).collect();
        let Some(cover) = cover(axes, &groups) else { panic!("no communicators of axes make up {axes:?}") };
        cover.into_iter().filter_map(|these| made(these).cloned()).collect()
    }

    /// The neighbours in the pipeline; `None` if there is one stage.
    pub fn pipeline(&self) -> Option<&PipelineGroups> {
        self.pipeline.as_ref()
    }
}

/// Groups without common digits that together are `axes`. Of several such choices the one with the first groups.
fn cover(axes: Axes, groups: &[Axes]) -> Option<Vec<Axes>> {
    if axes.is_empty() {
        return Some(Vec::new());
    }
    let within = groups.iter().filter(|group| (**group - axes).is_empty());
    within.copied().find_map(|group| Some([vec![group], cover(axes - group, groups)?].concat()))
}

/// The name of a communicator, in logs and messages.
fn name(mesh: &Mesh, axes: Axes, purpose: Purpose) -> String {
    let group = mesh.axis_of(axes).map_or_else(|| format!("{axes:?}"), |axis| axis.name().into());
    match purpose {
        Purpose::Main => group,
        Purpose::Aside => format!("{group}, aside"),
        Purpose::Loads => format!("{group}, loads"),
        Purpose::Keys => format!("{group}, keys"),
        Purpose::KeysAside => format!("{group}, keys, aside"),
        Purpose::Rows => format!("{group}, rows"),
        Purpose::RowsAside => format!("{group}, rows, aside"),
    }
}
