//! Adapters in a folder of PEFT, over a model in another folder: the inverse of `adapters.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use common::UserError;
use common::format::counted;
use engine::model::{GptShape, Lora, LoraTarget};
use toml::Value;

use super::adapters::{ADAPTER_FILE, peft_entries};
use super::names::{Entry, TensorRows};
use super::peft_config::PeftConfig;
use super::read::WeightFolder;
use crate::config::plan::{modules, of_any_expert};
use crate::families::{HuggingFace, ModelOptions};

/// Adapters that PEFT saved.
pub(super) struct PeftAdapters {
    pub(super) folder: PathBuf,
    pub(super) config: PeftConfig,
    file: WeightFolder,
}

/// Adapters that fit a model.
pub(super) struct FittedAdapters {
    adapters: PeftAdapters,
    /// Our parameters, and the tensors of each in the file.
    entries: Vec<Entry>,
    /// The options of the model that describe the adapters.
    pub(super) options: ModelOptions,
    /// What is changed on reading.
    pub(super) notices: Vec<String>,
}

/// The layer that a tensor adapts, and whether the tensor is `A`.
fn layer_of(tensor: &str) -> Option<(&str, bool)> {
    let layer = tensor.strip_prefix("base_model.model.")?;
    let a = layer.strip_suffix(".lora_A.weight").map(|layer| (layer, true));
    a.or_else(|| layer.strip_suffix(".lora_B.weight").map(|layer| (layer, false)))
}

impl PeftAdapters {
    /// Reads the description of the adapters in a folder, and the tensors' names.
    ///
    /// # Errors
    /// Files that are missing or damaged; adapters of another kind than the trainer has.
    pub(super) fn open(folder: &Path) -> Result<PeftAdapters, UserError> {
        let config = PeftConfig::read(folder)?;
        Ok(PeftAdapters { folder: folder.into(), config, file: WeightFolder::of_file(folder, ADAPTER_FILE)? })
    }

    /// The adapters for a model of that shape, whose layers have the names of `family`.
    ///
    /// # Errors
    /// Adapters that the trainer does not have in such a model.
    pub(super) fn fitted(self, shape: &GptShape, family: &'static HuggingFace) -> Result<FittedAdapters, UserError> {
        let known = modules(shape).map_err(|options| {
            self.unfit(format!("are over a model with {options}"), "train from a model of a family that has adapters")
        })?;
        let meant = |name: &str| {
            let layers = self.file.shapes().filter_map(|(tensor, _)| layer_of(tensor));
            let mut layers = layers.map(|(layer, _)| of_any_expert(&self.key_of(layer)));
            layers.any(|layer| layer.strip_suffix(name).is_some_and(|before| before.ends_with('.')))
        };
        let found: Vec<_> = known.into_iter().filter(|module| meant(&module.name)).collect();
        let mut targets: Vec<LoraTarget> = found.iter().map(|module| module.target).collect();
        targets.sort_unstable();
        targets.dedup();
        let ranks = self.ranks(shape.experts.as_ref().map_or(1, |experts| experts.count))?;
        let rank = ranks.values().copied().max().unwrap_or(self.config.rank);
        let config = &self.config;
        // All layers have one scale here: that of layers without a pattern. `A` and `B` have so many rows and columns.
        let scale = config.scale(config.rank, config.alpha);
        let alpha = if config.rslora || rank != config.rank { scale * rank as f64 } else { config.alpha };
        let lora = Lora { rank, alpha, dropout: config.dropout, targets };
        let entries = peft_entries(shape, &lora, family);
        self.check_names(&entries)?;
        let notices = self.notices(&ranks, &lora);
        let options = [
            ("model.lora_rank", Value::Integer(rank as i64)),
            ("model.lora_alpha", Value::Float(alpha)),
            ("model.lora_dropout", Value::Float(config.dropout)),
            (
                "model.lora_target_modules",
                Value::Array(found.into_iter().map(|module| Value::String(module.name)).collect()),
            ),
        ];
        let options = options.map(|(key, value)| (key.to_string(), value)).into();
        Ok(FittedAdapters { adapters: self, entries, options, notices })
    }

    /// PEFT's name of a layer that a tensor adapts: that of a parameter of all experts, or its own. Modules with such parameters
    /// are wrapped once for each, the first one innermost.
    fn key_of(&self, layer: &str) -> String {
        let has = |name: &str| self.config.parameters.iter().any(|parameter| parameter.ends_with(name));
        match layer.strip_suffix(".base_layer") {
            Some(module) => format!("{module}.gate_up_proj"),
            None if layer.ends_with(".experts") && has("down_proj") => format!("{layer}.down_proj"),
            None if layer.ends_with(".experts") => format!("{layer}.gate_up_proj"),
            None => layer.into(),
        }
    }

    /// The rank of each layer's adapters, by PEFT's name of the layer. Parameters of so many experts have factors of all.
    fn ranks(&self, experts: usize) -> Result<BTreeMap<String, usize>, UserError> {
        let mut ranks = BTreeMap::new();
        for (tensor, shape) in self.file.shapes() {
            let Some((layer, is_a)) = layer_of(tensor) else { return Err(self.not_lora(tensor)) };
            let &[rows, columns] = shape else {
                return Err(self.unfit(format!("have `{tensor}` with shape {shape:?}"), "save the adapters anew"));
            };
            let named = self.key_of(layer);
            let experts = if named == layer { 1 } else { experts };
            if let Some(key) = self.config.ambiguous(&named) {
                let problem = format!("have several numbers for `{layer}` in {key} of adapter_config.json");
                return Err(self.unfit(problem, "leave one pattern there that matches it"));
            }
            let (rank, wanted) = (if is_a { rows } else { columns }, self.config.rank_of(&named) * experts);
            if rank != wanted {
                return Err(self.unfit(
                    format!("have `{tensor}` of rank {rank}, and adapter_config.json gives {wanted}"),
                    "give that layer its rank in r or rank_pattern",
                ));
            }
            ranks.insert(named, rank / experts);
        }
        match ranks.is_empty() {
            true => Err(self.unfit("have no tensors".into(), "save the adapters anew")),
            false => Ok(ranks),
        }
    }

    /// Fails unless the file has exactly the tensors of the given entries.
    fn check_names(&self, entries: &[Entry]) -> Result<(), UserError> {
        let wanted: BTreeSet<&str> = entries.iter().flat_map(|entry| &entry.parts).map(|part| &*part.name).collect();
        let found: BTreeSet<&str> = self.file.shapes().map(|(name, _)| name).collect();
        if let Some(other) = found.iter().find(|name| !wanted.contains(*name)) {
            return Err(self.not_lora(other));
        }
        match wanted.iter().find(|name| !found.contains(*name)) {
            Some(missing) => Err(self.unfit(
                format!("have no `{missing}`, and have adapters of that layer in another block"),
                "merge them into their base (merge_and_unload of PEFT), and start from that model",
            )),
            None => Ok(()),
        }
    }

    fn notices(&self, ranks: &BTreeMap<String, usize>, lora: &Lora) -> Vec<String> {
        let (config, folder) = (&self.config, self.folder.display());
        let smaller = ranks.values().filter(|rank| **rank < lora.rank).count();
        let scaled = ranks.keys().filter(|layer| self.factor(layer) != 1.0).count();
        let mut notices = Vec::new();
        if config.rslora {
            notices.push(format!(
                "the adapters of {folder} have alpha / sqrt(rank) as scale (use_rslora): model.lora_alpha = {} gives \
                 the same",
                lora.alpha
            ));
        }
        if smaller > 0 {
            notices.push(format!(
                "the adapters of {} of {folder} are filled with zeros to rank {} (rank_pattern)",
                counted(smaller, "layer"),
                lora.rank
            ));
        }
        if scaled > 0 {
            notices.push(format!(
                "the adapters of {} of {folder} have a scale of their own: it is multiplied into B, so that \
                 alpha / rank is {} for all",
                counted(scaled, "layer"),
                lora.scale()
            ));
        }
        notices
    }

    /// The factor that gives a layer's `B` the scale of all layers.
    fn factor(&self, layer: &str) -> f64 {
        let config = &self.config;
        config.scale(config.rank_of(layer), config.alpha_of(layer)) / config.scale(config.rank, config.alpha)
    }

    fn not_lora(&self, tensor: &str) -> UserError {
        self.unfit(
            format!("have `{tensor}`, which is no A or B of a linear layer in the model's blocks"),
            "merge them into their base (merge_and_unload of PEFT), and start from that model",
        )
    }

    fn unfit(&self, problem: String, fix: &str) -> UserError {
        UserError::new(
            format!("the adapters of {} {problem}", self.folder.display()),
            "adapters are the A and B of the same linear layers in every block of their model",
            fix,
        )
    }
}

impl FittedAdapters {
    /// Some rows of one of our parameters of adapters.
    ///
    /// # Errors
    /// A tensor that has another shape, or cannot be read; adapters of another rank, or of other layers.
    pub(super) fn rows(&self, wanted: &Entry, rows: Range<usize>) -> Result<Vec<f32>, UserError> {
        let other = "leave out the options model.lora_rank and model.lora_target_modules: the adapters have their own";
        let entry = self.entries.iter().find(|entry| entry.name == wanted.name);
        let Some(entry) = entry.filter(|entry| entry.shape == wanted.shape) else {
            let problem = format!("are not those of the model, which has {} of shape {:?}", wanted.name, wanted.shape);
            return Err(self.adapters.unfit(problem, other));
        };
        let width = entry.width();
        let mut values = vec![0.0; entry.shape[0] * width];
        let is_wanted = |part: &&TensorRows| part.rows.start < rows.end && rows.start < part.rows.end;
        for part in entry.parts.iter().filter(is_wanted) {
            let Some((layer, is_a)) = layer_of(&part.name) else { unreachable!("an entry's part is of a layer") };
            let (shape, mut read) = self.adapters.file.tensor(&part.name)?;
            let mut shape = shape.to_vec();
            let experts = entry.layout.experts();
            let whole = if is_a { shape[1] == width } else { shape[0] * experts == part.rows.len() };
            if !whole {
                let problem = format!("have `{}` with shape {shape:?}", part.name);
                return Err(self.adapters.unfit(problem, "name the base model that they were trained on"));
            }
            let factor = if is_a { 1.0 } else { self.adapters.factor(&self.adapters.key_of(layer)) as f32 };
            if !is_a && experts > 1 {
                shape = vec![shape[0] * experts, shape[1] / experts];
                read = entry.layout.as_ours(read, shape[0] / experts, shape[1]);
            }
            // Of each expert its rows: of `A` the first ones, if its rank is smaller.
            let of_each =
                values[part.rows.start * width..part.rows.end * width].chunks_mut(part.rows.len() / experts * width);
            for (into, read) in of_each.zip(read.chunks(shape[0] / experts * shape[1])) {
                for (into, row) in into.chunks_mut(width).zip(read.chunks(shape[1])) {
                    into.iter_mut().zip(row).for_each(|(into, value)| *into = factor * value);
                }
            }
        }
        Ok(values[rows.start * width..rows.end * width].to_vec())
    }

    /// Fails unless a model has exactly the file's adapters.
    ///
    /// # Errors
    /// As [`FittedAdapters::rows`].
    pub(super) fn check(&self, entries: &[Entry]) -> Result<(), UserError> {
        let has = |own: &Entry| entries.iter().any(|entry| entry.name == own.name);
        match self.entries.iter().find(|own| !has(own)) {
            Some(own) => Err(self.adapters.unfit(
                format!("have {}, and the model as its options give it has none", own.name),
                "leave out the options model.lora_*: the adapters have their own",
            )),
            None => Ok(()),
        }
    }

    /// The folder.
    pub(super) fn folder(&self) -> &Path {
        &self.adapters.folder
    }
}
