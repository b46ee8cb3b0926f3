//! Which ranks share a layer, which share the batch, and which follow each other in the pipeline.

/// The shape of a run: `tensor * data * pipeline` ranks.
///
/// Ranks are numbered as Megatron numbers them, the tensor-parallel neighbour first, then the data-parallel one, then the
/// next stage: those who talk most are nearest, within a node where the launcher fills nodes one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Ranks that share each layer.
    pub tensor: usize,
    /// Groups of ranks that each have a part of the batch.
    pub data: usize,
    /// Stages, each with a part of the layers.
    pub pipeline: usize,
}

/// Where a rank stands in a [`Grid`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Which part of each layer.
    pub tensor: usize,
    /// Which part of the batch.
    pub data: usize,
    /// Which stage.
    pub pipeline: usize,
}

impl Grid {
    /// The grid of `ranks` ranks of which each layer takes `tensor` and the layers together `pipeline`; none if they do
    /// not divide the ranks.
    pub fn new(ranks: usize, tensor: usize, pipeline: usize) -> Option<Grid> {
        let unit = tensor.checked_mul(pipeline).filter(|&unit| unit > 0)?;
        (ranks > 0 && ranks.is_multiple_of(unit)).then(|| Grid { tensor, data: ranks / unit, pipeline })
    }

    /// All ranks.
    pub fn ranks(&self) -> usize {
        self.tensor * self.data * self.pipeline
    }

    /// Where a rank stands.
    pub fn place(&self, rank: usize) -> Place {
        Place {
            tensor: rank % self.tensor,
            data: rank / self.tensor % self.data,
            pipeline: rank / (self.tensor * self.data),
        }
    }

    /// Who stands there.
    pub fn rank(&self, place: Place) -> usize {
        (place.pipeline * self.data + place.data) * self.tensor + place.tensor
    }

    /// The ranks that share layers with `rank`, itself included, in order.
    pub fn tensor_group(&self, rank: usize) -> Vec<usize> {
        let place = self.place(rank);
        (0..self.tensor).map(|tensor| self.rank(Place { tensor, ..place })).collect()
    }

    /// The ranks that have the same weights as `rank` and other parts of the batch, itself included, in order.
    pub fn data_group(&self, rank: usize) -> Vec<usize> {
        let place = self.place(rank);
        (0..self.data).map(|data| self.rank(Place { data, ..place })).collect()
    }

    /// The stages that a microbatch of `rank` goes through, itself included, in order.
    pub fn pipeline_group(&self, rank: usize) -> Vec<usize> {
        let place = self.place(rank);
        (0..self.pipeline).map(|pipeline| self.rank(Place { pipeline, ..place })).collect()
    }
}
