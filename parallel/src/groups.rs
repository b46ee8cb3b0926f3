//! The communicators between the stages of a pipeline.

use std::rc::Rc;

use device::{Communicator, Result};

use crate::Grid;

/// Makes a communicator of that name over a group of ranks.
pub type Connect<'c> = dyn FnMut(&str, Vec<usize>) -> Result<Option<Rc<dyn Communicator>>> + 'c;

/// How a rank talks to the stages before and after its own.
///
/// Every edge of the ring of stages has two communicators of two ranks, the sender its rank 0, one for each direction:
/// transfers are in order by edge and direction, and a send that waits for its receiver holds up nothing else.
#[derive(Clone, Debug)]
pub struct PipelineGroups {
    /// All stages that this rank's microbatches go through, in order.
    pub all: Rc<dyn Communicator>,
    /// On the first and the last stage, both of them, where they share a parameter.
    pub ends: Option<Rc<dyn Communicator>>,
    /// Activations from the part of the model before.
    pub forward_in: Option<Rc<dyn Communicator>>,
    /// Activations to the part after.
    pub forward_out: Option<Rc<dyn Communicator>>,
    /// Gradients from the part after.
    pub backward_in: Option<Rc<dyn Communicator>>,
    /// Gradients to the part before.
    pub backward_out: Option<Rc<dyn Communicator>>,
}

impl PipelineGroups {
    /// Connects `rank` with the other stages; nothing where there is one stage. All ranks call it together, with the same
    /// grid. `ring`: the last stage feeds the first, which has another chunk. `shared`: the first and the last stage share
    /// a parameter. `connect` makes a communicator over a group of ranks; in each of its calls every rank of the world is
    /// in one group, some alone, and then gets nothing.
    ///
    /// # Errors
    /// What `connect` returns.
    pub fn connect(
        grid: &Grid,
        rank: usize,
        ring: bool,
        shared: bool,
        connect: &mut Connect<'_>,
    ) -> Result<Option<PipelineGroups>> {
        let (stages, stage) = (grid.pipeline, grid.place(rank).pipeline);
        let ranks = grid.pipeline_group(rank);
        if stages == 1 {
            return Ok(None);
        }
        let Some(all) = connect("pipeline", ranks.clone())? else { return Ok(None) };
        let mut groups = PipelineGroups {
            all,
            ends: None,
            forward_in: None,
            forward_out: None,
            backward_in: None,
            backward_out: None,
        };
        // Edge e goes from stage e to the next. Edges of one round have no stage in common.
        let edges = if ring { stages } else { stages - 1 };
        for round in 0..3 {
            let own = (0..edges).filter(|&edge| round_of(edge, stages) == round);
            let edge = own.map(|edge| (edge, (edge + 1) % stages)).find(|&(from, to)| stage == from || stage == to);
            let pair = |first: usize, second: usize| vec![ranks[first], ranks[second]];
            let (forward, backward) = match edge {
                Some((from, to)) => (pair(from, to), pair(to, from)),
                None => (vec![rank], vec![rank]),
            };
            let forward = connect("forward", forward)?;
            let backward = connect("backward", backward)?;
            // Here, where both sides are at the same point: in the middle of a step they would be at different ones.
            [&forward, &backward].into_iter().flatten().try_for_each(|pair| pair.open())?;
            match edge {
                Some((from, _)) if from == stage => (groups.forward_out, groups.backward_in) = (forward, backward),
                Some(_) => (groups.forward_in, groups.backward_out) = (forward, backward),
                None => {}
            }
        }
        if shared {
            let (first, last) = (ranks[0], ranks[stages - 1]);
            groups.ends = connect("ends", if rank == first || rank == last { vec![first, last] } else { vec![rank] })?;
        }
        Ok(Some(groups))
    }
}

impl PipelineGroups {
    /// All of them.
    pub fn communicators(&self) -> impl Iterator<Item = &Rc<dyn Communicator>> {
        let PipelineGroups { all, ends, forward_in, forward_out, backward_in, backward_out } = self;
        let others = [ends, forward_in, forward_out, backward_in, backward_out];
        std::iter::once(all).chain(others.into_iter().flatten())
    }
}

/// Neighbouring edges of the ring are in different rounds.
fn round_of(edge: usize, stages: usize) -> usize {
    if edge + 1 == stages && stages % 2 == 1 { 2 } else { edge % 2 }
}
