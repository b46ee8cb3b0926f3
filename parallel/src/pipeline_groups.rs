//! The communicators between the stages of a pipeline.

use std::rc::Rc;

use device::{Communicator, Result};

use crate::{Axis, Connect, Mesh, Placement};

/// The communicators of a rank with the stages before and after the rank's own.
///
/// Each edge of the placement has two communicators of two ranks, one per direction, with the sender as rank 0. So the
/// transfers of an edge and direction are in order, and a send that waits for its receiver holds up nothing else.
#[derive(Clone, Debug, Default)]
pub struct PipelineGroups {
    /// The communicator of the first and the last stage, if the two share a parameter.
    pub ends: Option<Rc<dyn Communicator>>,
    /// Activations from the previous virtual stage.
    pub forward_in: Option<Rc<dyn Communicator>>,
    /// Activations to the next virtual stage.
    pub forward_out: Option<Rc<dyn Communicator>>,
    /// Gradients from the next virtual stage.
    pub backward_in: Option<Rc<dyn Communicator>>,
    /// Gradients to the previous virtual stage.
    pub backward_out: Option<Rc<dyn Communicator>>,
}

impl PipelineGroups {
    /// Connects `rank` with the other stages. `None` if there is one stage.
    ///
    /// All ranks call it together, with the same mesh and placement. `ties_ends`: the first and the last stage share a
    /// parameter. Each call of `connect` divides the world into groups; a rank that is in none of the pairs passes itself
    /// alone.
    ///
    /// # Errors
    /// Errors of `connect`.
    pub(crate) fn connect(
        mesh: &Mesh,
        rank: usize,
        placement: Placement,
        ties_ends: bool,
        connect: &mut Connect<'_>,
    ) -> Result<Option<PipelineGroups>> {
        let ranks = mesh.members(rank, mesh.axes(Axis::Pipeline));
        let stage = mesh.position(rank, Axis::Pipeline);
        if ranks.len() == 1 {
            return Ok(None);
        }
        let mut groups = PipelineGroups::default();
        for round in rounds(&placement.edges()) {
            let edge = round.into_iter().find(|&(from, to)| stage == from || stage == to);
            let pair = |first: usize, second: usize| vec![ranks[first], ranks[second]];
            let (forward, backward) = match edge {
                Some((from, to)) => (pair(from, to), pair(to, from)),
                None => (vec![rank], vec![rank]),
            };
            let forward = connect("forward", forward)?;
            let backward = connect("backward", backward)?;
            // Both sides of each edge are here now. In the middle of a step they would be at different points.
            [&forward, &backward].into_iter().flatten().try_for_each(|pair| pair.open())?;
            match edge {
                Some((from, _)) if from == stage => (groups.forward_out, groups.backward_in) = (forward, backward),
                Some(_) => (groups.forward_in, groups.backward_out) = (forward, backward),
                None => {}
            }
        }
        if ties_ends {
            let (first, last) = (ranks[0], ranks[ranks.len() - 1]);
            groups.ends = connect("ends", if rank == first || rank == last { vec![first, last] } else { vec![rank] })?;
        }
        Ok(Some(groups))
    }
}

/// Divides edges into rounds, so that no two edges of a round have a stage in common.
fn rounds(edges: &[(usize, usize)]) -> Vec<Vec<(usize, usize)>> {
    let mut rounds: Vec<Vec<(usize, usize)>> = Vec::new();
    for &(from, to) in edges {
        let meets = |&(a, b): &(usize, usize)| [a, b].contains(&from) || [a, b].contains(&to);
        match rounds.iter_mut().find(|round| !round.iter().any(meets)) {
            Some(round) => round.push((from, to)),
            None => rounds.push(vec![(from, to)]),
        }
    }
    rounds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_of_a_round_have_no_stage_in_common() {
        let of = |stages, chunks| rounds(&Placement::new(stages, chunks).edges());
        assert_eq!(of(4, 1), [vec![(0, 1), (2, 3)], vec![(1, 2)]]);
        assert_eq!(of(4, 2), [vec![(0, 1), (2, 3)], vec![(1, 2), (3, 0)]]);
        assert_eq!(of(3, 2), [vec![(0, 1)], vec![(1, 2)], vec![(2, 0)]], "a ring of odd length takes three rounds");
        assert_eq!(of(2, 2), [vec![(0, 1)], vec![(1, 0)]]);
    }
}
