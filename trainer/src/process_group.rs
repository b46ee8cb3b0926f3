//! The process group: all ranks of a run, as one of them sees them.

use std::rc::Rc;

use common::Stop;
use launch::watch::Watch;
use launch::watch::activity::Activity;
use parallel::{Ranks, World};

/// All ranks of a run, in the view of one rank: its number, its communicators, and control messages.
pub struct ProcessGroup {
    /// The rank's place in the mesh, and the rank's communicators.
    pub ranks: Rc<Ranks>,
    /// The number of ranks on this machine, this rank included.
    pub local_size: usize,
    /// Threads of the host device.
    pub threads: usize,
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
        ProcessGroup { threads, ..ProcessGroup::of(Ranks::alone()) }
    }

    /// The group of a rank whose control messages reach no other rank.
    pub fn of(ranks: Rc<Ranks>) -> ProcessGroup {
        ProcessGroup {
            ranks,
            local_size: 1,
            threads: 1,
            control: Control { world: Rc::new(World::single()), watch: None },
            stop: Stop::default(),
            activity: Activity::default(),
        }
    }

    /// The number of this rank, from 0.
    pub fn rank(&self) -> usize {
        self.ranks.rank()
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

    /// The smallest value of all ranks.
    pub fn min(&self, value: u64) -> u64 {
        self.wait("all_reduce_min", |world| world.min(value))
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
