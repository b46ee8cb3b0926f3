//! Low-rank adapters: merged into the weights that they adapt, or written as PEFT loads them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use common::UserError;
use engine::model::{AdapterRows, GptShape, Lora, LoraTarget};
use rayon::prelude::*;
use serde_json::{Value as Json, json};

use super::names::{Entry, Naming, TensorRows, entries};
use super::peft_config::ADAPTER_CONFIG;
use super::weights::Weights;
use super::write::{not_written, write};
use crate::checkpoint::DataType;
use crate::config::plan::{AdaptedModule, modules};
use crate::error::RunError;
use crate::families::{FileLayout, HuggingFace};

/// The file that PEFT reads adapters from.
pub(super) const ADAPTER_FILE: &str = "adapter_model.safetensors";

/// A layer with adapters, of a block.
struct Adapted {
    /// The beginning of the names of the layer's parameters.
    layer: String,
    adapters: Vec<AdapterRows>,
}

/// The layers of a block with adapters.
fn adapted(shape: &GptShape, lora: &Lora, block: usize) -> impl Iterator<Item = Adapted> + use<> {
    let rank = lora.rank;
    let layers = lora.adapted(shape, block).into_iter();
    layers.map(move |of| Adapted { layer: format!("h.{block}.{}", of.name), adapters: of.adapters(rank) })
}

impl Adapted {
    /// Our parameters `A` and `B`, of a weight with so many columns.
    fn params(&self, rank: usize, columns: usize) -> [Entry; 2] {
        let outputs = self.adapters.iter().map(|adapter| adapter.b.len()).sum();
        [
            ours(format!("{}.lora_A", self.layer), [self.adapters.len() * rank, columns]),
            ours(format!("{}.lora_B", self.layer), [outputs, rank]),
        ]
    }
}

/// A parameter of ours with that name and shape.
fn ours(name: String, shape: [usize; 2]) -> Entry {
    let parts = vec![TensorRows { name: name.clone(), rows: 0..shape[0] }];
    Entry { name, shape: shape.into(), parts, fused: None, layout: FileLayout::Ours }
}

/// Rows of one of our parameters with the adapters' product added: `W + alpha / rank * B A`.
///
/// # Errors
/// Adapters that are missing or broken.
pub(super) fn merged(
    entry: &Entry,
    wanted: Range<usize>,
    weights: &Weights,
    shape: &GptShape,
) -> Result<Vec<f32>, UserError> {
    let mut values = weights.rows(entry, wanted.clone())?;
    let block = entry.name.strip_prefix("h.").and_then(|rest| rest.split_once('.')?.0.parse().ok());
    let (Some(lora), Some(block)) = (&shape.lora, block) else { return Ok(values) };
    let of_entry = |adapted: &Adapted| entry.name.strip_suffix(".weight") == Some(adapted.layer.as_str());
    let Some(adapted) = adapted(shape, lora, block).find(of_entry) else { return Ok(values) };
    let (width, rank, scale) = (entry.shape[1], lora.rank, lora.scale());
    let [a, b] = adapted.params(rank, width);
    for AdapterRows { covered, a: of_a, b: of_b } in adapted.adapters {
        let rows = covered.start.max(wanted.start)..covered.end.min(wanted.end);
        if rows.is_empty() {
            continue;
        }
        let first = of_b.start + rows.start - covered.start;
        let (a, b) = (weights.rows(&a, of_a)?, weights.rows(&b, first..first + rows.len())?);
        let weight = &mut values[(rows.start - wanted.start) * width..][..rows.len() * width];
        weight.par_chunks_mut(width).zip(b.par_chunks(rank)).for_each(|(weight, b)| {
            for (column, weight) in weight.iter_mut().enumerate() {
                let product: f32 = b.iter().zip(a.chunks(width)).map(|(b, a)| b * a[column]).sum();
                *weight += scale * product;
            }
        });
    }
    Ok(values)
}

/// The adapters of a model as our parameters, with each parameter's tensors in a file of PEFT. Layers have the names of
/// `family`.
pub(super) fn peft_entries(shape: &GptShape, lora: &Lora, family: &'static HuggingFace) -> Vec<Entry> {
    let theirs = entries(&GptShape { lora: None, ..shape.clone() }, Naming::Family(family));
    let mut all = Vec::new();
    for adapted in (0..shape.layers).flat_map(|block| adapted(shape, lora, block)) {
        let weight = format!("{}.weight", adapted.layer);
        let Some(weight) = theirs.iter().find(|entry| entry.name == weight) else { continue };
        let factors = adapted.params(lora.rank, weight.shape[1]);
        if let FileLayout::OfExperts { experts, in_turns } = weight.layout {
            // PEFT wraps a module once for each parameter, the first one innermost.
            let is_inner = adapted.layer.ends_with("c_fc") && lora.targets.contains(&LoraTarget::Down);
            all.extend(of_all_experts(&weight.parts[0], factors, is_inner, (experts, in_turns)));
            continue;
        }
        let modules: BTreeMap<usize, &TensorRows> = weight.parts.iter().map(|part| (part.rows.start, part)).collect();
        let name = |covered: &Range<usize>, which: &str| {
            let module = modules.get(&covered.start).filter(|part| part.rows == *covered);
            let module = module.and_then(|part| part.name.strip_suffix(".weight")).unwrap_or_default();
            format!("base_model.model.{module}.{which}.weight")
        };
        let [a, b] = factors;
        let parts = |which, rows: fn(&AdapterRows) -> &Range<usize>| {
            let part =
                |adapter: &AdapterRows| TensorRows { name: name(&adapter.covered, which), rows: rows(adapter).clone() };
            let mut parts: Vec<TensorRows> = adapted.adapters.iter().map(part).collect();
            parts.sort_by_key(|part| part.rows.start);
            parts
        };
        all.push(Entry { parts: parts("lora_A", |adapter| &adapter.a), ..a });
        all.push(Entry { parts: parts("lora_B", |adapter| &adapter.b), ..b });
    }
    all
}

/// `A` and `B` of a parameter that `transformers` has for all experts, as PEFT stores them. `is_inner`: PEFT wraps another
/// parameter of the same module around it.
fn of_all_experts(
    parameter: &TensorRows,
    [a, b]: [Entry; 2],
    is_inner: bool,
    (experts, in_turns): (usize, bool),
) -> [Entry; 2] {
    let module = parameter.name.rsplit_once('.').map_or("", |(module, _)| module);
    let wrapped = if is_inner { ".base_layer" } else { "" };
    let factor = |factor: Entry, which: &str, layout| {
        let name = format!("base_model.model.{module}{wrapped}.{which}.weight");
        Entry { parts: vec![TensorRows { name, rows: 0..factor.shape[0] }], layout, ..factor }
    };
    [
        factor(a, "lora_A", FileLayout::FactorA { experts }),
        factor(b, "lora_B", FileLayout::FactorB { experts, in_turns }),
    ]
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
    let from: Vec<Entry> =
        written.iter().map(|entry| ours(entry.name.clone(), [entry.shape[0], entry.shape[1]])).collect();
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
    let name = |of: &AdaptedModule| {
        let alike = all.iter().filter(|other| other.short_name() == of.short_name());
        let is_clear = alike.clone().all(|other| is_target(other.target));
        if is_clear { of.short_name().to_string() } else { of.name.clone() }
    };
    let adapted = || all.iter().filter(|module| is_target(module.target));
    let modules: BTreeSet<String> = adapted().filter(|module| !module.is_parameter).map(name).collect();
    let parameters: Vec<&String> = adapted().filter(|module| module.is_parameter).map(|module| &module.name).collect();
    let is_transposed = (family.tensors.layout)(shape, "h.0.attn.c_attn.weight", 2) == FileLayout::Transposed;
    let mut config = json!({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "inference_mode": true,
        "r": lora.rank, "lora_alpha": lora.alpha, "lora_dropout": lora.dropout, "target_modules": modules,
        "fan_in_fan_out": is_transposed, "bias": "none", "modules_to_save": null,
        "use_rslora": false, "init_lora_weights": true,
    });
    // Versions of PEFT before 0.17 do not know the key.
    if !parameters.is_empty() {
        config["target_parameters"] = json!(parameters);
    }
    config
}
