//! What a model declares of a parameter.

use device::Shape;

use super::tensor_shard::{Cut, Piece, fill, pieces};

/// What a parameter starts as. Values are a function of (seed, name, element), whatever the parallel layout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// The same value everywhere.
    Constant(f32),
    /// Normal with this standard deviation.
    Normal(f32),
}

/// Which of the two copies of a parameter that the first and the last stage of a pipeline both have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Twin {
    /// The first stage's, which is counted in the norm and saved.
    Original,
    /// The last stage's.
    Replica,
}

/// A parameter as a model declares it.
#[derive(Clone, Debug)]
pub struct ParamSpec {
    /// Its name, as in Hugging Face checkpoints where one exists.
    pub name: String,
    /// Its shape as this rank stores it; linear weights are `(out features, in features)`.
    pub shape: Shape,
    /// Rows stored here that are real; a vocabulary is padded beyond them with zeros that never change.
    pub rows: usize,
    /// Sizes of the whole parameter, padding not counted.
    pub whole: Vec<usize>,
    /// Which part of it is here; none where all of it is.
    pub cut: Option<Cut>,
    /// What it starts as.
    pub init: Init,
    /// The layer whose backward completes its gradient.
    pub layer: usize,
    /// Its gradient is only ever added to, so it is zeroed at every step.
    pub sparse: bool,
    /// Backward leaves the gradient of this rank's tokens alone, to be summed over the tensor-parallel group.
    pub partial: bool,
    /// Another stage has it too. Gradients of both are summed, and both make the same update.
    pub twin: Option<Twin>,
}

impl ParamSpec {
    /// A dense parameter of a layer.
    pub fn new(name: impl Into<String>, shape: impl Into<Shape>, init: Init, layer: usize) -> ParamSpec {
        let shape = shape.into();
        let (rows, whole) = (shape.sizes()[0], shape.sizes().to_vec());
        let (name, cut, twin) = (name.into(), None, None);
        ParamSpec { name, shape, rows, whole, cut, init, layer, sparse: false, partial: false, twin }
    }

    /// The same with only so many real rows.
    pub fn with_rows(self, rows: usize) -> ParamSpec {
        let mut whole = self.whole;
        whole[0] = rows;
        ParamSpec { rows, whole, ..self }
    }

    /// The part of it that one of several ranks stores.
    pub fn cut(self, cut: Cut) -> ParamSpec {
        let shape = Shape::new(&cut.stored(self.shape.sizes()));
        let mut spec = ParamSpec { shape, cut: Some(cut), ..self };
        let row: usize = shape.sizes()[1..].iter().product();
        spec.rows = spec.pieces().iter().map(Piece::elements).sum::<usize>() / row.max(1);
        spec
    }

    /// What of the whole is stored here.
    pub fn pieces(&self) -> Vec<Piece> {
        pieces(&self.whole, self.cut.as_ref())
    }

    /// What is stored here, padding included, from the values of the whole by their numbers.
    pub fn stored(&self, value: impl Fn(usize) -> f32 + Send + Sync) -> Vec<f32> {
        fill(&self.whole, self.cut.as_ref(), self.shape.elements(), value)
    }

    /// Weight decay applies to matrices, not to biases and norms.
    pub fn decays(&self) -> bool {
        self.shape.sizes().len() >= 2
    }
}
