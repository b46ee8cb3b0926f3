//! Our parameters, and the tensors that hold them in files.

use std::ops::Range;

use engine::model::{GptShape, gpt};

use crate::families::{FileTensor, HuggingFace};

/// Whose names and layout the tensors of a folder have.
#[derive(Clone, Copy)]
pub enum Naming {
    /// Ours: one tensor for each parameter, without padding.
    Ours,
    /// Those of a Hugging Face family.
    Family(&'static dyn HuggingFace),
}

/// A tensor of a file: these rows of one of our parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its name in the file.
    pub name: String,
    /// Rows of the parameter.
    pub rows: Range<usize>,
}

/// One of our parameters, and the tensors that hold it in files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Our name.
    pub name: String,
    /// Our shape, padding not counted.
    pub shape: Vec<usize>,
    /// The tensors, in the order of their rows; together they have all rows.
    pub parts: Vec<Part>,
    /// The file has the transpose. Such a parameter has one part.
    pub transposed: bool,
}

/// All parameters of a shape, in their order, with the tensors that hold them in files of that naming. A family's files have no
/// adapters.
pub fn entries(shape: &GptShape, naming: Naming) -> Vec<Entry> {
    let has_adapters = matches!(naming, Naming::Ours);
    let shape = &GptShape { lora: shape.lora.clone().filter(|_| has_adapters), ..shape.clone() };
    let entry = |name: String, sizes: Vec<usize>| {
        let tensors = match naming {
            Naming::Ours => FileTensor::whole(name.clone()),
            Naming::Family(family) => (family.tensors().of)(shape, &name),
        };
        let mut first = 0;
        let parts = tensors.into_iter().map(|FileTensor { name, rows }| {
            let rows = first..first + rows.unwrap_or(sizes[0]);
            first = rows.end;
            Part { name, rows }
        });
        let parts = parts.collect();
        let is_linear = name.starts_with("h.") && sizes.len() == 2;
        let transposed =
            is_linear && matches!(naming, Naming::Family(family) if family.tensors().transposes_linear_layers);
        Entry { name, shape: sizes, parts, transposed }
    };
    gpt(shape.clone()).specs.into_iter().map(|spec| entry(spec.name, spec.whole)).collect()
}

impl Entry {
    /// Values of a row.
    fn width(&self) -> usize {
        self.shape[1..].iter().product()
    }

    /// The shape of a part in its file.
    pub fn part_shape(&self, part: &Part) -> Vec<usize> {
        let mut sizes = self.shape.clone();
        sizes[0] = part.rows.len();
        if self.transposed {
            sizes.reverse();
        }
        sizes
    }

    /// The parameter's values from those of its parts, each as its file has them.
    pub fn join(&self, parts: &[Vec<f32>]) -> Vec<f32> {
        match parts {
            [whole] if self.transposed => transpose(whole, self.width(), self.shape[0]),
            parts => parts.concat(),
        }
    }

    /// A part's values, as its file has them, from the parameter's.
    pub fn split(&self, values: &[f32], part: &Part) -> Vec<f32> {
        let width = self.width();
        let rows = &values[part.rows.start * width..part.rows.end * width];
        if self.transposed { transpose(rows, part.rows.len(), width) } else { rows.to_vec() }
    }
}

/// The transpose of `(rows, columns)`.
fn transpose(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let mut transposed = Vec::with_capacity(values.len());
    for column in 0..columns {
        transposed.extend((0..rows).map(|row| values[row * columns + column]));
    }
    transposed
}
