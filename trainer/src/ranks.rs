//! This process among the ranks of a run.

use std::rc::Rc;

use common::Stop;
use device::Communicator;
use launch::watch::activity::Activity;
use parallel::PipelineGroups;

/// This process's place among the ranks, and how it talks to them.
pub struct Ranks {
    /// Number in the world.
    pub rank: usize,
    /// The ranks with other parts of the batch; none where there are no others.
    pub group: Option<Rc<dyn Communicator>>,
    /// The ranks that share layers; none where there are no others.
    pub tensor: Option<Rc<dyn Communicator>>,
    /// The stages with other layers; none where there are no others.
    pub pipeline: Option<PipelineGroups>,
    /// Ranks on this machine, this one among them.
    pub local: usize,
    /// Threads of the host device.
    pub threads: usize,
    /// Waits for all ranks.
    pub barrier: Rc<dyn Fn()>,
    /// The largest value of all ranks.
    pub max: Rc<dyn Fn(u64) -> u64>,
    /// The sum over all ranks.
    pub sum: Rc<dyn Fn(u64) -> u64>,
    /// The text of one rank, on all.
    pub text_of: Rc<dyn Fn(usize, String) -> String>,
    /// Whether this process was asked to end. The run then ends on all ranks after the step under way.
    pub stop: Stop,
    /// What this rank does, for who watches.
    pub activity: Activity,
}

impl Ranks {
    /// One process that is the whole run.
    pub fn alone(threads: usize) -> Ranks {
        Ranks {
            rank: 0,
            group: None,
            tensor: None,
            pipeline: None,
            local: 1,
            threads,
            barrier: Rc::new(|| {}),
            max: Rc::new(|value| value),
            sum: Rc::new(|value| value),
            text_of: Rc::new(|_, text| text),
            stop: Stop::default(),
            activity: Activity::default(),
        }
    }
}
