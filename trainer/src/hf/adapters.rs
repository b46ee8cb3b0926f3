//! Low-rank adapters: merged into the weights that they adapt, or written as PEFT loads them.

use std::ops::Range;
use std::path::Path;

use common::UserError;
use engine::model::{GptShape, Lora};
use rayon::prelude::*;
use serde_json::{Value as Json, json};

use super::names::{Entry, Naming, Part, entries};
use super::peft_config::ADAPTER_CONFIG;
use super::weights::Weights;
use super::write::{not_written, write};
use crate::checkpoint::DataType;
use crate::config::lora_plan::modules;
use crate::error::RunError;
use crate::families::{FileLayout, HuggingFace};

/// The file that PEFT reads adapters from.
pub(super) const ADAPTER_FILE: &str = "adapter_model.safetensors";

/// A linear layer with adapters.
struct Adapted {
    /// The beginning of its parameters' names.
    layer: String,
    /// The rows of its weight that each adapter covers.
    rows: Vec<Range<usize>>,
}

impl Adapted {
    /// The rows of `B` that belong to an adapter.
    fn rows_of_b(&self, adapter: usize) -> Range<usize> {
        let first: usize = self.rows[..adapter].iter().map(Range::len).sum();
        first..first + self.rows[adapter].len()
    }
}

/// The linear layers with adapters, of all blocks.
fn adapted(shape: &GptShape, lora: &Lora) -> Vec<Adapted> {
    let in_block = lora.adapted_rows(shape);
    let of = |block: usize| {
        in_block.iter().map(move |(name, rows)| Adapted { layer: format!("h.{block}.{name}"), rows: rows.clone() })
    };
    (0..shape.layers).flat_map(of).collect()
}

/// Rows of one of our parameters with the product of its adapters added: `W + alpha / rank * B A`.
///
/// # Errors
/// Adapters that are missing or broken.
pub(super) fn merged(
    entry: &Entry,
    wanted: Range<usize>,
    weights: &Weights,
    shape: &GptShape,
) -> Result<Vec<f32>, UserError> {
    let Some(lora) = &shape.lora else { return weights.rows(entry, wanted) };
    let of_entry = |adapted: &Adapted| entry.name.strip_suffix(".weight") == Some(adapted.layer.as_str());
    let Some(adapted) = adapted(shape, lora).into_iter().find(of_entry) else { return weights.rows(entry, wanted) };
    let [a, b] = ["lora_A", "lora_B"].map(|which| ours(shape, &format!("{}.{which}", adapted.layer)));
    let (a, b) = (weights.parameter(&a)?, weights.parameter(&b)?);
    let mut values = weights.parameter(entry)?;
    let (width, rank, scale) = (entry.shape[1], lora.rank, lora.scale());
    for (adapter, rows) in adapted.rows.iter().enumerate() {
        let a = &a[adapter * rank * width..][..rank * width];
        let b = &b[adapted.rows_of_b(adapter).start * rank..][..rows.len() * rank];
        let weight = &mut values[rows.start * width..rows.end * width];
        weight.par_chunks_mut(width).zip(b.par_chunks(rank)).for_each(|(weight, b)| {
            for (column, weight) in weight.iter_mut().enumerate() {
                let product: f32 = b.iter().zip(a.chunks(width)).map(|(b, a)| b * a[column]).sum();
                *weight += scale * product;
            }
        });
    }
    Ok(values[wanted.start * width..wanted.end * width].to_vec())
}

/// One of our parameters, by its name.
fn ours(shape: &GptShape, name: &str) -> Entry {
    match entries(shape, Naming::Ours).into_iter().find(|entry| entry.name == name) {
        Some(entry) => entry,
        None => unreachable!("a model with adapters has {name}"),
    }
}

/// The adapters of a model as our parameters, with the tensors that hold them in a file of PEFT. Layers have the names
/// of `family`.
pub(super) fn peft_entries(shape: &GptShape, lora: &Lora, family: &'static HuggingFace) -> Vec<Entry> {
    let shape = &GptShape { lora: Some(lora.clone()), ..shape.clone() };
    let (own, theirs) = (entries(shape, Naming::Ours), entries(shape, Naming::Family(family)));
    let mut all = Vec::new();
    for adapted in adapted(shape, lora) {
        let weight = format!("{}.weight", adapted.layer);
        let modules: Vec<&Part> =
            theirs.iter().filter(|entry| entry.name == weight).flat_map(|entry| &entry.parts).collect();
        for (which, is_a) in [("lora_A", true), ("lora_B", false)] {
            let part = |(adapter, rows): (usize, &Range<usize>)| {
                let module = modules.iter().find(|part| part.rows == *rows).map(|part| part.name.as_str());
                let module = module.and_then(|name| name.strip_suffix(".weight")).unwrap_or_default();
                let a = adapter * lora.rank..(adapter + 1) * lora.rank;
                let rows = if is_a { a } else { adapted.rows_of_b(adapter) };
                Part { name: format!("base_model.model.{module}.{which}.weight"), rows }
            };
            let parts = adapted.rows.iter().enumerate().map(part).collect();
            let name = format!("{}.{which}", adapted.layer);
            all.extend(own.iter().find(|entry| entry.name == name).map(|entry| Entry { parts, ..entry.clone() }));
        }
    }
    all
}

/// Writes the adapters to `folder` as PEFT loads them. `base` is the model that they belong to, if it is known. Returns
/// the written tensors.
///
/// # Errors
/// Adapters that are missing or broken; a file that cannot be written.
pub(super) fn write_peft(
    folder: &Path,
    weights: &Weights,
    (shape, lora): (&GptShape, &Lora),
    family: &'static HuggingFace,
    dtype: DataType,
    base: Option<&str>,
) -> Result<Vec<Entry>, RunError> {
    let written = peft_entries(shape, lora, family);
    let from: Vec<Entry> = written.iter().map(|entry| ours(shape, &entry.name)).collect();
    write((folder, "adapter_model"), &written, dtype, usize::MAX, &|index, rows| weights.rows(&from[index], rows))?;
    let path = folder.join(ADAPTER_CONFIG);
    let config = adapter_config(shape, lora, family, base);
    std::fs::write(&path, format!("{config:#}\n")).map_err(not_written(&path))?;
    Ok(written)
}

/// `adapter_config.json` of PEFT.
fn adapter_config(shape: &GptShape, lora: &Lora, family: &HuggingFace, base: Option<&str>) -> Json {
    let all = modules(shape).unwrap_or_default();
    let is_target = |target| lora.targets.contains(&target);
    // The short name, unless another layer that has no adapter ends in it too.
    let name = |of: &crate::config::lora_plan::AdaptedModule| {
        let alike = all.iter().filter(|other| other.short_name() == of.short_name());
        let is_clear = alike.clone().all(|other| is_target(other.target));
        if is_clear { of.short_name().to_string() } else { of.name.clone() }
    };
    let mut targets: Vec<String> = all.iter().filter(|module| is_target(module.target)).map(name).collect();
    targets.sort_unstable();
    targets.dedup();
    let is_transposed = (family.tensors.layout)(shape, "h.0.attn.c_attn.weight", 2) == FileLayout::Transposed;
    json!({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "inference_mode": true,
        "r": lora.rank, "lora_alpha": lora.alpha, "lora_dropout": lora.dropout, "target_modules": targets,
        "fan_in_fan_out": is_transposed, "bias": "none", "modules_to_save": null,
        "use_rslora": false, "init_lora_weights": true,
    })
}
