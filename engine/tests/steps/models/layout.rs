//! How ranks of one process, a thread each, divide a model and its batch.

use std::time::Duration;

use engine::layer_partition::balanced_blocks;
use engine::model::{Experts, TensorParallel};
use parallel::{Axis, Grid, PipelineGroups, PipelineStage, Schedule, ThreadRank, ThreadWorld};

use super::Run;

/// Ranks that share layers, stages, chunks of layers of each stage, and ranks that share the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub tensor: usize,
    pub stages: usize,
    pub chunks: usize,
    pub data: usize,
    /// Microbatches that pass a chunk before the next one's turn.
    pub group: usize,
    /// Ranks that share layers also share the rows between them.
    pub sequence: bool,
    /// Backwards are split, and the gradients of weights come later.
    pub zero_bubble: bool,
}

impl Layout {
    /// Groups of as many microbatches as there are stages, and rows shared if layers are.
    pub fn new(tensor: usize, stages: usize, chunks: usize, data: usize) -> Layout {
        Layout { tensor, stages, chunks, data, group: stages, sequence: tensor > 1, zero_bubble: false }
    }

    pub fn grid(&self) -> Grid {
        let sizes = [(Axis::Tensor, self.tensor), (Axis::Pipeline, self.stages)];
        Grid::new(self.tensor * self.stages * self.data, &sizes).unwrap()
    }

    /// Parts that the model is cut into.
    pub fn parts(&self) -> usize {
        self.stages * self.chunks
    }

    /// `run` as this rank's part of it, connected to the others. Blocks of its shape are divided as evenly as can be,
    /// unless the run has them divided.
    pub fn part_of(&self, rank: &ThreadRank, run: Run) -> Run {
        let (grid, number) = (self.grid(), rank.rank());
        let Layout { stages, chunks, group, zero_bubble, .. } = *self;
        let schedule =
            if zero_bubble { Schedule::zero_bubble(stages) } else { Schedule::interleaved(stages, chunks, group) };
        let stage = PipelineStage::new(schedule, grid.coordinate(number, Axis::Pipeline));
        let shared = |name| Some(rank.split(name, &grid.group(number, Axis::Tensor))).filter(|_| self.tensor > 1);
        let batch = |name| Some(rank.split(name, &grid.group(number, Axis::Data))).filter(|_| self.data > 1);
        let experts = run.shape.as_ref().and_then(|shape| shape.experts.as_ref());
        let balances_globally = experts.is_some_and(Experts::balances_globally);
        let mut connect =
            |name: &str, group: Vec<usize>| Ok(Some(rank.split(name, &group)).filter(|_| group.len() > 1));
        let tied = run.shape.as_ref().is_some_and(|shape| shape.tied);
        let pipeline = PipelineGroups::connect(&grid, number, schedule.placement(), tied, &mut connect).unwrap();
        let blocks = match &run.shape {
            Some(shape) if run.blocks.is_empty() => balanced_blocks(shape.layers, self.parts(), 0.0),
            _ => run.blocks.clone(),
        };
        Run {
            group: batch("data"),
            load_group: if balances_globally { batch("data, loads") } else { None },
            tensor: TensorParallel {
                group: shared("tensor"),
                aside: shared("tensor, aside").filter(|_| run.overlaps),
                sequence: self.sequence,
            },
            stage,
            blocks,
            pipeline,
            ..run
        }
    }

    /// Does `work` on a thread for each rank, with its part of `run()`. Returns the results by rank.
    pub fn on_ranks<T: Send>(&self, run: impl Fn() -> Run + Sync, work: impl Fn(Run) -> T + Sync) -> Vec<T> {
        let (run, work) = (&run, &work);
        std::thread::scope(|scope| {
            let threads: Vec<_> = ThreadWorld::ranks(self.grid().ranks(), Duration::from_secs(600))
                .into_iter()
                .map(|rank| scope.spawn(move || work(self.part_of(&rank, run()))))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }
}
