//! A folder of weights, theirs or ours.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use common::UserError;
use common::files::read_file;
use device::Device;
use engine::model::GptShape;
use engine::params::{ParamSpec, Params, Slab};
use rayon::prelude::*;
use toml::Value;

use super::names::{Entry, Naming, entries};
use super::read::{WeightFolder, tell_of_unread};
use super::source::SourceFiles;
use crate::checkpoint::{MANIFEST, named, newest_in, several_at_once};
use crate::config::{ConfigSources, RunConfig};
use crate::error::LoadError;
use crate::families::{self, ModelOptions};

/// The largest `config.json` that is read, in bytes.
const LARGEST_CONFIG: u64 = 4 << 20;

/// A folder with a model: `config.json` and weights of Hugging Face, or our `config.toml` and weights, as in a checkpoint.
/// In a folder of checkpoints it is the newest complete one.
pub struct Pretrained {
    pub(super) folder: PathBuf,
    pub(super) naming: Naming,
    pub(super) options: ModelOptions,
}

impl Pretrained {
    /// Reads the kind of model in a folder, and compares every byte of a checkpoint with its hashes.
    ///
    /// # Errors
    /// A folder without a configuration, or with one of an unknown family; a damaged checkpoint; checkpoints without a
    /// complete one.
    pub fn open(folder: &Path) -> Result<Pretrained, UserError> {
        let folder = &named(folder);
        let is_theirs = folder.join("config.json").exists();
        // A folder made by `convert` has no manifest. `newest_in` returns such a folder as it is.
        Pretrained::open_checked(&if is_theirs || !folder.is_dir() { folder.to_path_buf() } else { newest_in(folder)? })
    }

    /// As [`Pretrained::open`], for a folder with hashes that were compared before, or for one that [`newest_in`]
    /// returned.
    ///
    /// # Errors
    /// As [`Pretrained::open`].
    pub fn open_checked(folder: &Path) -> Result<Pretrained, UserError> {
        let folder = &named(folder);
        let is_model = ["config.json", "config.toml", MANIFEST].iter().any(|name| folder.join(name).exists());
        let folder = &if is_model || !folder.is_dir() { folder.to_path_buf() } else { newest_in(folder)? };
        let theirs = folder.join("config.json");
        let (naming, options) = if theirs.exists() {
            let origin = theirs.display().to_string();
            let wrong = |problem: String| {
                UserError::new(
                    format!("{origin} {problem}"),
                    "it is a model's JSON configuration",
                    "get the file again",
                )
            };
            let text = read_file(&theirs, LARGEST_CONFIG).map_err(|error| wrong(format!("cannot be read: {error}")))?;
            let json = serde_json::from_slice(&text).map_err(|error| wrong(format!("is not JSON: {error}")))?;
            let (family, options) = families::from_config_json(&json, &origin)?;
            (Naming::Family(family), options)
        } else {
            (Naming::Ours, own_options(folder)?)
        };
        Ok(Pretrained { folder: folder.clone(), naming, options })
    }

    /// The model's options, by key.
    pub fn options(&self) -> &[(&'static str, Value)] {
        &self.options
    }

    /// The files of the Hugging Face model that it is, or that its training began with.
    ///
    /// # Errors
    /// A file that cannot be read or is damaged.
    pub fn source_files(&self) -> Result<SourceFiles, UserError> {
        SourceFiles::read(&self.folder, self.naming)
    }

    /// Prints a notice of weights in the folder that are not read, as others are there.
    pub fn tell_of_unread(&self) {
        tell_of_unread(&self.folder);
    }

    /// Whether the folder has adapters besides the model.
    fn has_adapters(&self) -> bool {
        let rank = self.options.iter().find(|(key, _)| *key == "model.lora_rank");
        rank.and_then(|(_, rank)| rank.as_integer()).is_some_and(|rank| rank > 0)
    }

    /// Fails unless the folder has the weights of a model of that shape. Their values are not read.
    ///
    /// # Errors
    /// Weights that are missing, broken, or do not fit.
    pub fn check(&self, shape: &GptShape) -> Result<(), UserError> {
        self.checked(shape).map(drop)
    }

    /// The folder's weights and the parameters that they have.
    fn checked(&self, shape: &GptShape) -> Result<(WeightFolder, Vec<Entry>), UserError> {
        let lora = shape.lora.clone().filter(|_| self.has_adapters());
        let entries = entries(&GptShape { lora, ..shape.clone() }, self.naming);
        let weights = WeightFolder::open(&self.folder, self.naming)?;
        weights.check(&entries)?;
        Ok((weights, entries))
    }

    /// Fills parameters of a model of that shape: of each the elements that this rank needs. Several are read at once. Returns
    /// the parameters that the folder does not have: adapters may be missing there.
    ///
    /// # Errors
    /// Weights that are missing, broken, or do not fit.
    pub fn load(&self, shape: &GptShape, params: &Params, device: &Device) -> Result<Vec<usize>, LoadError> {
        let (weights, entries) = self.checked(shape)?;
        weights.check_tied_head(&entries)?;
        let by_name: HashMap<&str, &Entry> = entries.iter().map(|entry| (&*entry.name, entry)).collect();
        let entry_of = |index: &usize| by_name.get(&*params.specs[*index].name).copied();
        let (found, missing): (Vec<usize>, Vec<usize>) =
            (0..params.specs.len()).partition(|index| entry_of(index).is_some());
        let wanted: Vec<Wanted<'_>> =
            found.iter().filter_map(|&index| Wanted::new(params, index, entry_of(&index)?)).collect();
        for several in several_at_once(&wanted, |wanted| wanted.bytes()) {
            let read = several.par_iter().map(|wanted| wanted.read(&weights));
            let values: Vec<Vec<f32>> = read.collect::<Result<_, UserError>>()?;
            for (wanted, values) in several.iter().zip(&values) {
                params.set_needed(device, wanted.index, values)?;
            }
        }
        Ok(missing)
    }

    /// The resolved configuration of the model: its options over the defaults.
    pub(super) fn config(&self) -> RunConfig {
        let mut sources = ConfigSources::default();
        sources.start_from(&self.options);
        sources.resolve()
    }
}

/// The elements of a parameter that a rank needs.
struct Wanted<'p> {
    index: usize,
    spec: &'p ParamSpec,
    entry: &'p Entry,
    /// Among those that the rank stores.
    elements: Range<usize>,
    /// The rows of the whole parameter that they lie in.
    rows: Range<usize>,
}

impl<'p> Wanted<'p> {
    /// `None` if the rank needs none.
    fn new(params: &'p Params, index: usize, entry: &'p Entry) -> Option<Wanted<'p>> {
        let (spec, elements) = (&params.specs[index], params.needed(index));
        let slabs: Vec<Slab> = spec.slabs().iter().flat_map(|slab| slab.within(elements.clone())).collect();
        let first = slabs.iter().map(|slab| slab.offset[0]).min()?;
        let end = slabs.iter().map(|slab| slab.offset[0] + slab.sizes[0]).max()?;
        Some(Wanted { index, spec, entry, elements, rows: first..end })
    }

    /// Bytes that are read at once.
    fn bytes(&self) -> usize {
        self.rows.len() * self.entry.width() * size_of::<f32>()
    }

    fn read(&self, weights: &WeightFolder) -> Result<Vec<f32>, UserError> {
        let values = weights.rows(self.entry, self.rows.clone())?;
        let before = self.rows.start * self.entry.width();
        Ok(self.spec.stored_values_in(self.elements.clone(), |at| values[at - before]))
    }
}

/// The model options of our own `config.toml`.
fn own_options(folder: &Path) -> Result<ModelOptions, UserError> {
    let path = folder.join("config.toml");
    if !path.exists() {
        let problem = if folder.exists() { "has neither config.json nor config.toml" } else { "does not exist" };
        return Err(UserError::new(
            format!("{} {problem}", folder.display()),
            "it is the folder of a Hugging Face model, of a checkpoint or of several, or one that `trainer convert` wrote",
            "check the path",
        ));
    }
    let mut sources = ConfigSources::default();
    sources.read_file(&path)?;
    Ok(sources.model_values())
}
