//! Our parameters, and the tensors that hold each parameter in files.

use std::ops::Range;

use engine::model::{GptShape, gpt};

use crate::families::{COPIED_TABLES, FileLayout, FileTensor, HuggingFace};

/// The origin of the tensors' names and layout in a folder.
#[derive(Clone, Copy)]
pub enum Naming {
    /// Our names: one tensor for each parameter, without padding.
    Ours,
    /// The names of a Hugging Face family.
    Family(&'static HuggingFace),
}

/// A tensor of a file: these rows of one of our parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorRows {
    /// The name in the file.
    pub name: String,
    /// Rows of the parameter.
    pub rows: Range<usize>,
}

/// One of our parameters, and the tensors with the parameter in files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Our name.
    pub name: String,
    /// Our shape, padding not counted.
    pub shape: Vec<usize>,
    /// The parameter's tensors, in the order of rows; together all rows.
    pub parts: Vec<TensorRows>,
    /// A tensor that may have all rows instead, in place of `parts`.
    pub fused: Option<String>,
    /// The order of the parameter's values in the file.
    pub layout: FileLayout,
}

/// All parameters of a shape, in order, with each parameter's tensors in files of that naming. A family's files have no
/// adapters.
pub fn entries(shape: &GptShape, naming: Naming) -> Vec<Entry> {
    let has_adapters = matches!(naming, Naming::Ours);
    let shape = &GptShape { lora: shape.lora.clone().filter(|_| has_adapters), ..shape.clone() };
    let entry = |name: String, sizes: Vec<usize>| {
        let tensors = match naming {
            Naming::Ours => FileTensor::whole(name.clone()),
            Naming::Family(family) => (family.tensors.of)(shape, &name),
        };
        let fused = match naming {
            Naming::Ours => None,
            Naming::Family(family) => (family.tensors.fused)(&name),
        };
        let mut first = 0;
        let parts = tensors.into_iter().map(|FileTensor { name, rows }| {
            let rows = first..first + rows.unwrap_or(sizes[0]);
            first = rows.end;
            TensorRows { name, rows }
        });
        let parts = parts.collect();
        let layout = match naming {
            Naming::Ours => FileLayout::Ours,
            Naming::Family(family) => (family.tensors.layout)(shape, &name, sizes.len()),
        };
        Entry { name, shape: sizes, parts, fused, layout }
    };
    gpt(shape.clone()).specs.into_iter().map(|spec| entry(spec.name, spec.whole)).collect()
}

/// The copies of tables that files of a family have for layers that predict further tokens, as further entries.
pub(super) fn copies(shape: &GptShape, entries: &[Entry]) -> Vec<Entry> {
    let of_table = |block: usize, (table, copy): (&str, &str)| {
        // A tied head is the embedding.
        let entry = entries.iter().find(|entry| entry.name == table).or(entries.first())?;
        let name = format!("model.layers.{block}.{copy}");
        Some(Entry { parts: vec![TensorRows { name, rows: 0..entry.shape[0] }], ..entry.clone() })
    };
    shape
        .further_blocks()
        .flat_map(|block| COPIED_TABLES.into_iter().filter_map(move |of| of_table(block, of)))
        .collect()
}

impl Entry {
    /// Values of a row.
    pub fn width(&self) -> usize {
        self.shape[1..].iter().product()
    }

    /// The shape of a part's tensor in the file.
    pub fn part_shape(&self, part: &TensorRows) -> Vec<usize> {
        let mut sizes = self.shape.clone();
        sizes[0] = part.rows.len();
        self.layout.sizes(sizes)
    }

    /// A part's values in the order of the file, from the part's rows.
    pub fn rows_to_file(&self, rows: Vec<f32>) -> Vec<f32> {
        let each = rows.len() / self.width() / self.layout.experts();
        self.layout.to_file(rows, each, self.width())
    }
}
