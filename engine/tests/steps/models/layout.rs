//! How ranks of one process, a thread each, divide a model and its batch.

use std::time::Duration;

use engine::layer_partition::balanced_blocks;
use engine::model::{Experts, GptShape};
use parallel::{Axis, Connections, Mesh, MeshSizes, PipelineStage, Purpose, Schedule, ThreadRank, ThreadWorld};

use super::Run;

/// Ranks that share layers, stages, chunks of layers of each stage, and ranks that share the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub tensor: usize,
    /// Ranks that divide each sequence.
    pub context: usize,
    pub stages: usize,
    pub chunks: usize,
    pub data: usize,
    /// Microbatches that pass a chunk before the next one's turn.
    pub group: usize,
    /// Ranks that share layers also share the rows between them.
    pub sequence: bool,
    /// Backwards are split, and the gradients of weights come later.
    pub zero_bubble: bool,
    /// Ranks that divide experts.
    pub expert: usize,
    /// Ranks that share each expert: 1, or those that share layers.
    pub expert_tensor: usize,
    /// Groups of ranks that each divide what ranks with other tokens divide.
    pub copies: usize,
    /// Rows of experts go straight to their places, as between GPUs that reach each other's memory.
    pub moves_rows: bool,
}

impl Layout {
    /// Groups of as many microbatches as there are stages, and rows shared if layers are.
    pub fn new(tensor: usize, stages: usize, chunks: usize, data: usize) -> Layout {
        let (context, sequence, zero_bubble, moves_rows) = (1, tensor > 1, false, false);
        let (group, expert, expert_tensor) = (stages, 1, tensor);
        Layout {
            tensor,
            context,
            stages,
            chunks,
            data,
            group,
            sequence,
            zero_bubble,
            expert,
            expert_tensor,
            copies: 1,
            moves_rows,
        }
    }

    /// The ranks. So many of those that share layers store copies of a key head.
    pub fn mesh(&self, key_head_copies: usize) -> Mesh {
        let Layout { tensor, context, stages: pipeline, expert, expert_tensor, .. } = *self;
        let ranks = self.ranks();
        Mesh::new(MeshSizes {
            ranks,
            tensor,
            key_head_copies,
            context,
            expert,
            expert_tensor,
            pipeline,
            copies: self.copies,
        })
        .unwrap()
    }

    pub fn ranks(&self) -> usize {
        self.tensor * self.context * self.stages * self.data
    }

    /// The position of a rank on an axis.
    pub fn position(&self, rank: usize, axis: Axis) -> usize {
        self.mesh(1).position(rank, axis)
    }

    /// Parts that the model is cut into.
    pub fn parts(&self) -> usize {
        self.stages * self.chunks
    }

    /// `run` as this rank's part of it, connected to the others. Blocks of its shape are divided as evenly as can be,
    /// unless the run has them divided.
    pub fn part_of(&self, rank: &ThreadRank, run: Run) -> Run {
        let Layout { stages, chunks, group, zero_bubble, .. } = *self;
        let schedule =
            if zero_bubble { Schedule::zero_bubble(stages) } else { Schedule::interleaved(stages, chunks, group) };
        let experts = run.shape.as_ref().and_then(|shape| shape.experts.as_ref());
        let copies = run.gpt_shape().map_or(1, |shape| shape.key_head_copies(self.tensor));
        let mut connections = Connections::new(self.mesh(copies), schedule.placement());
        connections.ties_ends = run.shape.as_ref().is_some_and(GptShape::table_is_shared);
        if run.overlaps {
            connections = connections.with(Axis::Tensor, Purpose::Aside).with(Axis::Expert, Purpose::RowsAside);
            connections = connections.with(Axis::Context, Purpose::KeysAside);
        }
        if let Some(axis) = experts.and_then(Experts::loads_over) {
            connections = connections.with(axis, Purpose::Loads);
        }
        let ranks = rank.connect(&connections).unwrap();
        let stage = PipelineStage::new(schedule, ranks.at(Axis::Pipeline).index);
        let blocks = match &run.shape {
            Some(shape) if run.blocks.is_empty() => balanced_blocks(shape.layers, self.parts(), 0.0),
            _ => run.blocks.clone(),
        };
        Run { ranks, sequence: self.sequence, stage, blocks, ..run }
    }

    /// Does `work` on a thread for each rank, with its part of `run()`. Returns the results by rank.
    pub fn on_ranks<T: Send>(&self, run: impl Fn() -> Run + Sync, work: impl Fn(Run) -> T + Sync) -> Vec<T> {
        let (run, work) = (&run, &work);
        std::thread::scope(|scope| {
            let threads: Vec<_> = ThreadWorld::ranks(self.ranks(), Duration::from_secs(240))
                .into_iter()
                .map(|rank| if self.moves_rows { rank.moving_rows() } else { rank })
                .map(|rank| scope.spawn(move || work(self.part_of(&rank, run()))))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }
}
