//! The graphs of `when`s that a stream runs outside of graphs.

use crate::ops::When;

/// How many graphs a stream keeps. A step with more eager `when`s than this makes their graphs anew.
const KEPT: usize = 256;

/// Graphs for later runs of the same operations, the last used last.
pub(crate) struct KeptWhens<G> {
    graphs: Vec<(When, G)>,
    /// Whether a warning has said that a graph went.
    told: bool,
}

impl<G> Default for KeptWhens<G> {
    fn default() -> Self {
        KeptWhens { graphs: Vec::new(), told: false }
    }
}

impl<G> KeptWhens<G> {
    /// Takes the graph of an operation out, if it is there.
    pub(crate) fn take(&mut self, when: &When) -> Option<(When, G)> {
        let at = self.graphs.iter().position(|(kept, _)| kept == when)?;
        Some(self.graphs.remove(at))
    }

    /// Keeps a graph. If there are too many, the one that was longest not used goes, the first time with a warning.
    pub(crate) fn keep(&mut self, when: When, graph: G) {
        if self.graphs.len() == KEPT {
            // The driver destroys a graph that still runs once it is done.
            self.graphs.remove(0);
            if !std::mem::replace(&mut self.told, true) {
                tracing::warn!(
                    "a stream ran more than {KEPT} different `when`s outside of graphs. It keeps the graphs of the last \
                     {KEPT}, and makes those of others anew when they come again, which takes time. Fix: capture the \
                     `when`s in larger graphs, or run fewer"
                );
            }
        }
        self.graphs.push((when, graph));
    }

    /// Drops all graphs.
    pub(crate) fn clear(&mut self) {
        self.graphs.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Fill;
    use crate::{BufferId, DType, Tensor};

    fn when(number: usize) -> When {
        let tensor = |dtype| Tensor { address: 1024, shape: [1].into(), dtype, buffer: BufferId::NOTHING };
        let fill = Fill { output: tensor(DType::F32), value: number as f32 };
        When { flag: tensor(DType::I32), body: vec![fill.into()], own: Vec::new() }
    }

    #[test]
    fn the_graph_that_was_longest_not_used_goes_and_the_first_time_that_is_said() {
        let mut kept = KeptWhens::default();
        (0..KEPT).for_each(|number| kept.keep(when(number), number));
        assert!(!kept.told, "all are there");
        let (used, graph) = kept.take(&when(0)).unwrap();
        kept.keep(used, graph);
        assert!(!kept.told, "one was used again");
        kept.keep(when(KEPT), KEPT);
        assert!(kept.told);
        assert!(kept.take(&when(1)).is_none(), "the others were used later");
        assert_eq!([0, 2, KEPT].map(|number| kept.take(&when(number)).unwrap().1), [0, 2, KEPT]);
        kept.clear();
        assert!(kept.take(&when(3)).is_none());
    }
}
