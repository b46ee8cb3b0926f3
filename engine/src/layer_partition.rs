//! The layers of each stage of a pipeline.

use std::ops::Range;

use parallel::PipelineStage;

/// Full recompute: a layer saves the residual stream before it, and its backward recomputes the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recompute {
    /// Blocks that are recomputed together, as one layer.
    pub blocks: usize,
    /// The outputs of attention are saved too, so that backward does not compute attention again.
    pub keeps_attention: bool,
    /// The blocks of each virtual stage that are recomputed: so many from the first one on. Backward comes to the others
    /// first. They save all that it needs.
    pub most: usize,
}

impl Recompute {
    /// All blocks, recomputed one by one from saved inputs alone.
    pub const ALL: Recompute = Recompute { blocks: 1, keeps_attention: false, most: usize::MAX };
}

/// The layers of one stage. Layer 0 is the embedding, the last layer is the head. Each layer between them is one block, or a
/// few blocks that are recomputed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageLayers {
    /// The layer numbers of each chunk, in the order of forward.
    pub chunks: Vec<Range<usize>>,
    /// Number of layers of the whole model.
    pub total: usize,
    /// The blocks, counted from 0, of each layer between embedding and head of the whole model.
    pub blocks: Vec<Range<usize>>,
    /// The recompute of each layer; `None` for layers that backward does not recompute.
    pub recomputed: Vec<Option<Recompute>>,
}

impl StageLayers {
    /// All `total` layers of a model, in one chunk.
    pub fn whole(total: usize) -> StageLayers {
        let blocks = (0..total.saturating_sub(2)).map(|block| block..block + 1).collect();
        let recomputed = vec![None; total.saturating_sub(2)];
        StageLayers { chunks: vec![Range { start: 0, end: total }], total, blocks, recomputed }
    }

    /// The layers of a stage. `counts` is the number of blocks of each virtual stage. The first one also has the
    /// embedding, the last one the head. A recomputed layer may be several blocks; the last one of a virtual stage may have
    /// fewer.
    pub fn of_stage(stage: PipelineStage, counts: &[usize], recompute: Option<Recompute>) -> StageLayers {
        let (size, most) = recompute.map_or((1, 0), |how| (how.blocks, how.most));
        let (mut blocks, mut recomputed): (Vec<Range<usize>>, Vec<Option<Recompute>>) = (Vec::new(), Vec::new());
        // The layer numbers of each virtual stage.
        let mut layers = Vec::new();
        let mut first = 0;
        for (number, count) in counts.iter().enumerate() {
            let start = if number == 0 { 0 } else { blocks.len() + 1 };
            let (again, end) = (first + most.min(*count), first + count);
            blocks.extend((first..again).step_by(size).map(|block| block..(block + size).min(again)));
            recomputed.resize(blocks.len(), recompute);
            blocks.extend((again..end).map(|block| block..block + 1));
            recomputed.resize(blocks.len(), None);
            first = end;
            layers.push(start..blocks.len() + if number + 1 == counts.len() { 2 } else { 1 });
        }
        let chunks = (0..stage.chunks()).map(|chunk| layers[stage.virtual_stage(chunk)].clone()).collect();
        StageLayers { chunks, total: blocks.len() + 2, blocks, recomputed }
    }

    /// The layer that has a block.
    pub fn of_block(&self, block: usize) -> usize {
        1 + self.blocks.iter().position(|blocks| blocks.contains(&block)).unwrap_or(self.blocks.len())
    }

    /// Whether this stage has the layer.
    pub fn has(&self, layer: usize) -> bool {
        self.chunks.iter().any(|chunk| chunk.contains(&layer))
    }

    /// The layers between embedding and head of the whole model.
    pub fn between_ends(&self) -> Range<usize> {
        1..self.total - 1
    }

    /// Whether this stage has the first layer. It takes the model's inputs.
    pub fn has_first(&self) -> bool {
        self.has(0)
    }

    /// Whether this stage has the head. It computes the losses.
    pub fn has_last(&self) -> bool {
        self.has(self.total - 1)
    }

    /// Whether other stages have other layers.
    pub fn is_part(&self) -> bool {
        self.chunks.iter().map(Range::len).sum::<usize>() < self.total
    }

    /// The layers in words, such as `embedding, h.0 to h.2`.
    pub fn in_words(&self) -> String {
        let chunk = |chunk: &Range<usize>| {
            let (first, last) = (chunk.start.max(1), (chunk.end - 1).min(self.total - 2));
            let (first, last) = (self.blocks[first - 1].start, self.blocks[last - 1].end - 1);
            let blocks = if first == last { format!("h.{first}") } else { format!("h.{first} to h.{last}") };
            let embedding = (chunk.start == 0).then(|| "embedding".to_string());
            let head = (chunk.end == self.total).then(|| "head".to_string());
            embedding.into_iter().chain([blocks]).chain(head).collect::<Vec<_>>().join(", ")
        };
        self.chunks.iter().map(chunk).collect::<Vec<_>>().join("; ")
    }
}

/// The number of blocks of each of `stages` virtual stages, chosen so that the slowest one is as fast as possible. The
/// last one also has the head; it takes as long as `head` blocks. Blocks that do not divide evenly go to the ones in the
/// middle first, because the first one also has the embedding. `head` is an estimate: of equally good splits, the result is
/// the one that would be best if the head took a quarter longer.
pub fn balanced_blocks(blocks: usize, stages: usize, head: f64) -> Vec<usize> {
    if stages == 1 {
        return vec![blocks];
    }
    let before = stages - 1;
    let slowest = |last: usize, head: f64| (last as f64 + head).max((blocks - last).div_ceil(before) as f64);
    let compare = |a: usize, b: usize, head: f64| slowest(a, head).total_cmp(&slowest(b, head));
    let by_time = |&a: &usize, &b: &usize| compare(a, b, head).then(compare(a, b, 1.25 * head));
    let last = (1..=blocks / stages).rev().min_by(by_time).unwrap_or(1);
    let mut all = vec![(blocks - last) / before; before];
    (1..before).chain([0]).take((blocks - last) % before).for_each(|stage| all[stage] += 1);
    all.push(last);
    all
}

#[cfg(test)]
mod tests {
    use parallel::{Placement, Schedule};

    use super::*;

    fn stage_of(stages: usize, stage: usize, chunks: usize) -> PipelineStage {
        PipelineStage::new(Schedule::interleaved(stages, chunks, stages), stage)
    }

    #[test]
    fn every_layer_is_on_one_stage_in_the_order_data_pass_them() {
        for (stages, chunks) in [(1, 1), (2, 1), (2, 2), (3, 2), (4, 1), (4, 3)] {
            for blocks in stages * chunks..20 {
                let split = balanced_blocks(blocks, stages * chunks, 0.0);
                assert_eq!(split.iter().sum::<usize>(), blocks);
                let most = split.iter().max().unwrap() - split.iter().min().unwrap();
                let middle = split[split.len() / 2];
                assert!(most <= 1 && (split.len() < 3 || split[0] <= middle), "{split:?}");
                let stage = |stage| StageLayers::of_stage(stage_of(stages, stage, chunks), &split, None);
                let by_stage: Vec<StageLayers> = (0..stages).map(stage).collect();
                let mut next = 0;
                let placement = Placement::new(stages, chunks);
                for number in 0..placement.virtual_stages() {
                    let stage = placement.stage_of(number);
                    let chunk = (0..chunks).find(|&chunk| placement.virtual_stage(stage, chunk) == number).unwrap();
                    let chunk = &by_stage[stage].chunks[chunk];
                    assert_eq!(chunk.start, next, "virtual stage {number} of {split:?}");
                    next = chunk.end;
                }
                assert_eq!(next, blocks + 2);
                assert_eq!(by_stage[0].is_part(), stages > 1);
                assert!(by_stage[0].has_first() && by_stage[stages - 1].has_last());
            }
        }
    }

    #[test]
    fn blocks_that_are_recomputed_together_never_cross_stages() {
        let recompute = Some(Recompute { blocks: 2, ..Recompute::ALL });
        let layers = |stage| StageLayers::of_stage(stage_of(2, stage, 2), &[1, 5, 3, 2], recompute);
        assert_eq!(layers(0).blocks, [0..1, 1..3, 3..5, 5..6, 6..8, 8..9, 9..11]);
        assert_eq!((layers(0).total, layers(0).chunks, layers(1).chunks), (9, vec![0..2, 5..7], vec![2..5, 7..9]));
        assert_eq!([0, 2, 5, 10].map(|block| layers(0).of_block(block)), [1, 2, 4, 7]);
        assert_eq!(layers(0).in_words(), "embedding, h.0; h.6 to h.8");
        assert_eq!(layers(1).in_words(), "h.1 to h.5; h.9 to h.10, head");
    }

    #[test]
    fn the_first_blocks_of_each_virtual_stage_are_recomputed_and_the_others_are_layers_of_their_own() {
        let recompute = Some(Recompute { blocks: 2, most: 3, ..Recompute::ALL });
        let layers = StageLayers::of_stage(stage_of(2, 0, 1), &[5, 2], recompute);
        assert_eq!(layers.blocks, [0..2, 2..3, 3..4, 4..5, 5..7]);
        assert_eq!(layers.recomputed, [recompute, recompute, None, None, recompute]);
        assert_eq!((layers.total, &layers.chunks[..]), (7, std::slice::from_ref(&(0..5))));
    }

    #[test]
    fn an_uneven_split_in_words() {
        let words = |stage| StageLayers::of_stage(stage_of(2, stage, 2), &[1, 2, 3, 1], None).in_words();
        assert_eq!(words(0), "embedding, h.0; h.3 to h.5");
        assert_eq!(words(1), "h.1 to h.2; h.6, head");
    }

    #[test]
    fn the_last_part_has_fewer_blocks_if_the_head_takes_as_long_as_some() {
        assert_eq!(balanced_blocks(7, 4, 0.0), [2, 2, 2, 1]);
        assert_eq!(balanced_blocks(5, 4, 0.3), [1, 2, 1, 1]);
        assert_eq!(balanced_blocks(24, 1, 4.1), [24]);
        assert_eq!(balanced_blocks(24, 2, 4.1), [14, 10]);
        assert_eq!(balanced_blocks(24, 4, 4.1), [7, 7, 7, 3]);
        assert_eq!(balanced_blocks(24, 4, 2.7), [7, 7, 7, 3], "6, 7, 7 and 4 would not suit a head of 3.1");
        assert_eq!(balanced_blocks(12, 4, 5.5), [3, 4, 4, 1]);
        assert_eq!(balanced_blocks(32, 8, 2.3), [4, 5, 5, 4, 4, 4, 4, 2]);
    }
}
