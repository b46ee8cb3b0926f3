//! The placement of a model's virtual stages on the stages of a pipeline.

/// Places the virtual stages of a model on stages. The model is cut into `stages * chunks` virtual stages, and each
/// stage has `chunks` of them.
///
/// They go to the stages in turn, as Megatron's interleaved schedule has them: chunk `c` of stage `r` is virtual stage
/// `c * stages + r`. With several chunks the last stage therefore feeds the first stage's next chunk.
/// [`Placement::virtual_stage`] and [`Placement::stage_of`] are the only code that knows this rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    stages: usize,
    chunks: usize,
}

impl Placement {
    /// The placement of `chunks` chunks on each of `stages` stages.
    ///
    /// # Panics
    /// If either is 0.
    pub fn new(stages: usize, chunks: usize) -> Placement {
        assert!(stages > 0 && chunks > 0, "{stages} stages with {chunks} chunks each");
        Placement { stages, chunks }
    }

    /// The number of stages.
    pub fn stages(self) -> usize {
        self.stages
    }

    /// The number of chunks on each stage.
    pub fn chunks(self) -> usize {
        self.chunks
    }

    /// The number of virtual stages.
    pub fn virtual_stages(self) -> usize {
        self.stages * self.chunks
    }

    /// The virtual stage that is chunk `chunk` of stage `stage`.
    pub fn virtual_stage(self, stage: usize, chunk: usize) -> usize {
        chunk * self.stages + stage
    }

    /// The stage of a virtual stage.
    pub fn stage_of(self, virtual_stage: usize) -> usize {
        virtual_stage % self.stages
    }

    /// Each pair of stages with the first feeding the second, once.
    pub fn edges(self) -> Vec<(usize, usize)> {
        let mut edges = Vec::new();
        for next in 1..self.virtual_stages() {
            let edge = (self.stage_of(next - 1), self.stage_of(next));
            if edge.0 != edge.1 && !edges.contains(&edge) {
                edges.push(edge);
            }
        }
        edges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_and_its_stage_are_found_from_each_other() {
        for (stages, chunks) in (1..6).flat_map(|stages| (1..4).map(move |chunks| (stages, chunks))) {
            let placement = Placement::new(stages, chunks);
            let mut all: Vec<usize> = Vec::new();
            for (stage, chunk) in (0..stages).flat_map(|stage| (0..chunks).map(move |chunk| (stage, chunk))) {
                let virtual_stage = placement.virtual_stage(stage, chunk);
                assert_eq!(placement.stage_of(virtual_stage), stage);
                all.push(virtual_stage);
            }
            all.sort();
            assert_eq!(all, (0..placement.virtual_stages()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_last_stage_feeds_the_first_only_with_several_chunks() {
        assert_eq!(Placement::new(1, 1).edges(), []);
        assert_eq!(Placement::new(3, 1).edges(), [(0, 1), (1, 2)]);
        assert_eq!(Placement::new(3, 2).edges(), [(0, 1), (1, 2), (2, 0)]);
        assert_eq!(Placement::new(2, 3).edges(), [(0, 1), (1, 0)]);
    }
}
