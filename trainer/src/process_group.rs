//! The process group: all ranks of a run, as one of them sees them.

use std::rc::Rc;

use common::Stop;
use device::Communicator;
use launch::watch::Watch;
use launch::watch::activity::Activity;
use parallel::{Axis, Connect, Grid, PipelineGroups, Placement, World};

/// The communicators of ranks that share layers: of the compute stream, and of a microbatch beside it.
pub const TENSOR_COMMUNICATORS: [&str; 2] = ["tensor", "tensor, aside"];

/// The communicator of data-parallel ranks for the loads of experts.
pub const LOADS_COMMUNICATOR: &str = "data, loads";

/// All ranks of a run, as one of them sees them: its number, its communicators, and control messages.
pub struct ProcessGroup {
    /// The number of this rank, from 0.
    pub rank: usize,
    /// The number of ranks on this machine, this one included.
    pub local_size: usize,
    /// Threads of the host device.
    pub threads: usize,
    /// The ranks with the same weights and other samples. `None` if there are no others.
    pub data: Option<Rc<dyn Communicator>>,
    /// The same ranks over a second communicator, for a balance loss over the global batch.
    pub expert_loads: Option<Rc<dyn Communicator>>,
    /// The ranks that share layers. `None` if there are no others.
    pub tensor: Option<Rc<dyn Communicator>>,
    /// The same ranks over a second communicator, for microbatches that overlap.
    pub tensor_aside: Option<Rc<dyn Communicator>>,
    /// The pipeline stages with other layers. `None` if there are no others.
    pub pipeline: Option<PipelineGroups>,
    /// Messages between the hosts of all ranks.
    pub control: Control,
    /// Whether this process was asked to end. The run then ends on all ranks after the current step.
    pub stop: Stop,
    /// The current work of this rank, for the watch.
    pub activity: Activity,
}

impl ProcessGroup {
    /// The group of a single process.
    pub fn single(threads: usize) -> ProcessGroup {
        ProcessGroup {
            rank: 0,
            local_size: 1,
            threads,
            data: None,
            expert_loads: None,
            tensor: None,
            tensor_aside: None,
            pipeline: None,
            control: Control { world: Rc::new(World::single()), watch: None },
            stop: Stop::default(),
            activity: Activity::default(),
        }
    }

    /// A rank's view of `topology`. Each communicator is made by `connect`, in the same order on all ranks. Control
    /// messages reach no other rank.
    ///
    /// # Errors
    /// Errors of `connect`.
    pub fn connected(topology: Topology, rank: usize, connect: &mut Connect<'_>) -> device::Result<ProcessGroup> {
        let Topology { grid, placement, ties_ends, overlaps, balances_globally, .. } = topology;
        let [tensor, aside] = TENSOR_COMMUNICATORS;
        Ok(ProcessGroup {
            rank,
            tensor: connect(tensor, grid.group(rank, Axis::Tensor))?,
            tensor_aside: match overlaps {
                true => connect(aside, grid.group(rank, Axis::Tensor))?,
                false => None,
            },
            data: connect("data", grid.group(rank, Axis::Data))?,
            expert_loads: match balances_globally {
                true => connect(LOADS_COMMUNICATOR, grid.group(rank, Axis::Data))?,
                false => None,
            },
            pipeline: PipelineGroups::connect(&grid, rank, placement, ties_ends, connect)?,
            ..ProcessGroup::single(1)
        })
    }
}

/// The groups of ranks that exchange data.
#[derive(Clone, Copy)]
pub struct Topology {
    /// The ranks along each axis.
    pub grid: Grid,
    /// The parts of the model that each pipeline stage has, and so the stages that it exchanges data with.
    pub placement: Placement,
    /// The first and the last stage share a parameter.
    pub ties_ends: bool,
    /// Microbatches overlap.
    pub overlaps: bool,
    /// A loss is about the loads of experts on all data-parallel ranks.
    pub balances_globally: bool,
    /// Ranks that share layers read each other's GPU memory, if they can.
    pub peers: bool,
}

impl Topology {
    /// All ranks share each layer.
    ///
    /// # Panics
    /// If `ranks` is 0.
    pub fn tensor_parallel(ranks: usize) -> Topology {
        let Some(grid) = Grid::new(ranks, &[(Axis::Tensor, ranks)]) else { panic!("a grid without ranks") };
        let placement = Placement::new(1, 1);
        Topology { grid, placement, ties_ends: false, overlaps: false, balances_globally: false, peers: true }
    }
}

/// Messages between the hosts of all ranks. All ranks call a method together, in the same order. During a wait the
/// watch has the wait's name.
#[derive(Clone)]
pub struct Control {
    world: Rc<World>,
    watch: Option<Rc<Watch>>,
}

impl Control {
    /// Messages between the ranks of `world`, under a watch if there is one.
    pub(crate) fn new(world: Rc<World>, watch: Option<Rc<Watch>>) -> Control {
        Control { world, watch }
    }

    /// Waits for all ranks.
    pub fn barrier(&self) {
        self.wait("barrier", World::barrier);
    }

    /// The largest value of all ranks.
    pub fn max(&self, value: u64) -> u64 {
        self.wait("all_reduce_max", |world| world.max(value))
    }

    /// Whether any rank says so.
    pub fn any(&self, here: bool) -> bool {
        self.max(here.into()) > 0
    }

    /// The sum over all ranks.
    pub fn sum(&self, value: u64) -> u64 {
        self.wait("all_reduce_sum", |world| world.sum(value))
    }

    /// The text that rank `rank` passed, on all ranks.
    pub fn broadcast_text(&self, rank: usize, text: String) -> String {
        self.wait("broadcast", |world| world.broadcast_text(rank, text))
    }

    fn wait<T>(&self, name: &str, message: impl FnOnce(&World) -> T) -> T {
        match &self.watch {
            Some(watch) if self.world.size() > 1 => watch.waiting(&format!("{name} on world"), || message(&self.world)),
            _ => message(&self.world),
        }
    }
}
