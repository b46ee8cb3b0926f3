//! A folder of weights, Hugging Face's or ours.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use common::UserError;
use common::files::read_file;
use data::Tokenizer;
use device::Device;
use engine::model::{FurtherTokens, GptShape, is_adapter};
use engine::params::{ParamSpec, Params, Slab};
use serde_json::Value as Json;
use toml::Value;

use super::names::{Entry, Naming, entries};
use super::peft::{FittedAdapters, PeftAdapters};
use super::peft_config::ADAPTER_CONFIG;
use super::read::tell_of_unread;
use super::source::SourceFiles;
use super::weights::Weights;
use crate::checkpoint::{MANIFEST, named, newest_in, read_ahead};
use crate::config::plan::{ModelPlan, model_plan};
use crate::config::{ConfigSources, RunConfig};
use crate::error::RunError;
use crate::families::{self, FURTHER_TOKENS, ModelOptions};
use crate::told::tell;

/// The model of Hugging Face, and ours.
const CONFIG_JSON: &str = "config.json";
const CONFIG_TOML: &str = "config.toml";

/// The largest `config.json` that is read, in bytes.
const LARGEST_CONFIG: u64 = 4 << 20;

/// A folder with a model: `config.json` and weights of Hugging Face, our `config.toml` and weights, as in a checkpoint,
/// or adapters of PEFT, which name the folder of their model. A path is resolved once, when it is opened: in a folder
/// of checkpoints it is the newest complete one. All that belongs to the model comes from [`Pretrained::folders`].
pub struct Pretrained {
    pub(super) folder: PathBuf,
    pub(super) naming: Naming,
    pub(super) options: ModelOptions,
    /// Layers behind the last one, which predict further tokens.
    further_tokens: usize,
    adapters: Option<FittedAdapters>,
}

impl Pretrained {
    /// Finds the model that a path names: in that folder, the newest complete checkpoint there, or the [best](named).
    /// Compares every byte of a checkpoint with its hashes.
    ///
    /// # Errors
    /// A folder without a configuration, or with one of an unknown family; a damaged checkpoint; checkpoints without a
    /// complete one; adapters that the trainer does not have.
    pub fn open(path: &Path) -> Result<Pretrained, UserError> {
        let path = &named(path);
        let is_theirs = [CONFIG_JSON, ADAPTER_CONFIG].iter().any(|name| path.join(name).exists());
        // A folder made by `convert` has no manifest. `newest_in` returns such a folder as it is.
        let folder = if is_theirs || !path.is_dir() { path.to_path_buf() } else { newest_in(path)? };
        let opened = Pretrained::open_checked(&folder)?;
        if opened.adapters.is_some() && opened.folder.join(MANIFEST).exists() {
            newest_in(&opened.folder)?;
        }
        Ok(opened)
    }

    /// Opens the folder of a model itself, as [`Pretrained::open`] does. Hashes were compared before, or are later.
    ///
    /// # Errors
    /// As [`Pretrained::open`].
    pub fn open_checked(folder: &Path) -> Result<Pretrained, UserError> {
        if !folder.join(ADAPTER_CONFIG).exists() {
            return Pretrained::whole(folder);
        }
        let adapters = PeftAdapters::open(folder)?;
        let base = &adapters.config.base;
        if folder.join(CONFIG_JSON).exists() && base.canonicalize().ok() != folder.canonicalize().ok() {
            return Err(UserError::new(
                format!(
                    "{} has adapters ({ADAPTER_CONFIG}) beside a model, and they belong to {}",
                    folder.display(),
                    base.display()
                ),
                "a folder is one model: the adapters may be merged into its weights already, or not",
                format!(
                    "for the model alone name a folder without {ADAPTER_CONFIG}, for the adapters one without {CONFIG_JSON}"
                ),
            ));
        }
        let mut model = Pretrained::whole(base)?;
        let ModelPlan::Gpt(shape) = model_plan(&model.config())? else {
            return Err(no_base(base, "is no transformer"));
        };
        if model.has_adapters() {
            return Err(no_base(base, "has adapters of its own"));
        }
        let family = match model.naming {
            Naming::Family(family) => Ok(family),
            Naming::Ours => families::of_shape(&shape),
        };
        let family = family.map_err(|options| no_base(base, &format!("has {options}")))?;
        let adapters = adapters.fitted(&shape, family)?;
        model.options.extend(adapters.options.clone());
        Ok(Pretrained { adapters: Some(adapters), ..model })
    }

    /// The whole model in a folder.
    fn whole(folder: &Path) -> Result<Pretrained, UserError> {
        let theirs = folder.join(CONFIG_JSON);
        let (naming, options, further_tokens) = if theirs.exists() {
            let origin = theirs.display().to_string();
            let wrong = |problem: String| {
                UserError::new(
                    format!("{origin} {problem}"),
                    "it is a model's JSON configuration",
                    "get the file again",
                )
            };
            let text = read_file(&theirs, LARGEST_CONFIG).map_err(|error| wrong(format!("cannot be read: {error}")))?;
            let json: Json = serde_json::from_slice(&text).map_err(|error| wrong(format!("is not JSON: {error}")))?;
            let (family, options) = families::from_config_json(&json, &origin)?;
            (Naming::Family(family), options, json[FURTHER_TOKENS].as_u64().unwrap_or(0) as usize)
        } else {
            let options = own_options(folder)?;
            let further = options.get("model.mtp_layers").and_then(Value::as_integer).unwrap_or(0);
            (Naming::Ours, options, further as usize)
        };
        Ok(Pretrained { folder: folder.into(), naming, options, further_tokens, adapters: None })
    }

    /// The folder that the path stands for, for [`Pretrained::open_checked`].
    pub fn folder(&self) -> &Path {
        self.adapters.as_ref().map_or(&self.folder, FittedAdapters::folder)
    }

    /// The folders that have what lies beside the weights: the first of them with a tokenizer has the model's, with its
    /// chat template.
    pub fn folders(&self) -> impl Iterator<Item = &Path> {
        self.adapters.iter().map(FittedAdapters::folder).chain([self.folder.as_path()])
    }

    /// The first of [`Pretrained::folders`] with a tokenizer, or else the folder of the weights.
    pub fn tokenizer_folder(&self) -> &Path {
        self.folders().find(|folder| Tokenizer::is_in(folder)).unwrap_or(&self.folder)
    }

    /// Whether the files are Hugging Face's, and not ours.
    pub fn is_hugging_face(&self) -> bool {
        matches!(self.naming, Naming::Family(_))
    }

    /// The adapters of PEFT that the model has, if any.
    pub(super) fn adapters(&self) -> Option<&FittedAdapters> {
        self.adapters.as_ref()
    }

    /// Lines about what is changed on reading.
    pub fn notices(&self) -> &[String] {
        self.adapters.as_ref().map_or(&[], |adapters| &adapters.notices)
    }

    /// The model's options, by key.
    pub fn options(&self) -> &ModelOptions {
        &self.options
    }

    /// The files of the Hugging Face model in the folder, or of the model that training began with.
    ///
    /// # Errors
    /// A file that cannot be read or is damaged.
    pub fn source_files(&self) -> Result<SourceFiles, UserError> {
        let files = SourceFiles::read(&self.folder, self.naming)?;
        match &self.adapters {
            Some(adapters) => files.with_adapters(adapters.folder()),
            None => Ok(files),
        }
    }

    /// Prints a notice of weights in the folder that a model of that shape does not read, as others are there, or they predict
    /// further tokens; and of such layers that the folder does not have.
    pub fn tell_of_unread(&self, shape: &GptShape) {
        tell_of_unread(&self.folder);
        let (folder, asked, has) = (self.folder.display(), shape.further_blocks().len(), self.further_tokens);
        if has > asked {
            let key = if self.is_hugging_face() { FURTHER_TOKENS } else { "model.mtp_layers" };
            tell(&format!(
                "notice: {key} = {has} in {folder}: layers that predict further tokens are not read beyond the \
                 {asked} of model.mtp_layers"
            ));
        } else if asked > has {
            tell(&format!(
                "notice: {folder} has {has} layers that predict further tokens: the others of model.mtp_layers = \
                 {asked} begin with first values"
            ));
        }
    }

    /// The layers that predict further tokens in the weights that are read for a model of that shape. Our files are checked
    /// whole.
    fn further_tokens(&self, shape: &GptShape) -> Option<FurtherTokens> {
        let depths = match self.naming {
            Naming::Ours => self.further_tokens,
            Naming::Family(_) => self.further_tokens.min(shape.further_blocks().len()),
        };
        let factor = shape.further_tokens.map_or(0.0, |further| further.factor);
        (depths > 0).then_some(FurtherTokens { depths, factor })
    }

    /// Whether the model has adapters.
    pub(crate) fn has_adapters(&self) -> bool {
        let rank = self.options.get("model.lora_rank");
        rank.and_then(Value::as_integer).is_some_and(|rank| rank > 0)
    }

    /// Fails unless the folder has the weights of a model of that shape. Their values are not read. `new_tokens`: those that
    /// the folder's tokenizer lacks.
    ///
    /// # Errors
    /// Weights that are missing, broken, or do not fit.
    pub fn check(&self, shape: &GptShape, new_tokens: Range<usize>) -> Result<(), UserError> {
        self.weights(shape, new_tokens).map(drop)
    }

    /// The weights for a model of that shape. `new_tokens`: those that the folder's tokenizer lacks.
    ///
    /// # Errors
    /// Weights that are missing, broken, or of another model.
    pub(super) fn weights(&self, shape: &GptShape, new_tokens: Range<usize>) -> Result<Weights<'_>, UserError> {
        let lora = shape.lora.clone().filter(|_| self.has_adapters());
        let vocab = self.options.get("model.vocab").filter(|_| !new_tokens.is_empty());
        let vocab = vocab.and_then(Value::as_integer).map_or(shape.vocab, |vocab| vocab as usize);
        let further_tokens = self.further_tokens(shape);
        let held = GptShape { lora, further_tokens, vocab: vocab.min(shape.vocab), ..shape.clone() };
        Weights::open((&self.folder, self.naming), self.adapters.as_ref(), &held, new_tokens)
    }

    /// Fills parameters of a model of that shape: of each the elements that this rank needs. Several are read at once.
    /// Rows of `new_tokens` begin as the mean of those of all tokens before. Returns the parameters that the folder
    /// does not have: adapters may be missing there.
    ///
    /// # Errors
    /// Weights that are missing, broken, or do not fit.
    pub fn load(
        &self,
        shape: &GptShape,
        params: &Params,
        device: &Device,
        new_tokens: Range<usize>,
    ) -> Result<Vec<usize>, RunError> {
        let weights = self.weights(shape, new_tokens)?;
        weights.check_tied_head()?;
        let entries = self.entries(shape);
        let by_name: HashMap<&str, &Entry> = entries.iter().map(|entry| (&*entry.name, entry)).collect();
        let entry_of = |index: &usize| by_name.get(&*params.specs[*index].name).copied();
        let (found, missing): (Vec<usize>, Vec<usize>) =
            (0..params.specs.len()).partition(|index| entry_of(index).is_some());
        let wanted: Vec<Wanted<'_>> =
            found.iter().filter_map(|&index| Wanted::new(params, index, entry_of(&index)?)).collect();
        let read = |wanted: &Wanted<'_>| wanted.read(&weights);
        let set = |wanted: &Wanted<'_>, values: Vec<f32>| Ok(params.set_needed(device, wanted.index, &values)?);
        read_ahead(&wanted, Wanted::elements_read, read, set)?;
        Ok(missing)
    }

    /// The parameters of a model of that shape that the folder has.
    fn entries(&self, shape: &GptShape) -> Vec<Entry> {
        let further_tokens = self.further_tokens(shape);
        let mut all = entries(&GptShape { lora: None, further_tokens, ..shape.clone() }, self.naming);
        if self.has_adapters() {
            all.extend(entries(shape, Naming::Ours).into_iter().filter(|entry| is_adapter(&entry.name)));
        }
        all
    }

    /// The configuration of the model: its options over the defaults.
    pub fn config(&self) -> RunConfig {
        let mut sources = ConfigSources::default();
        sources.start_from(self.options.clone());
        sources.resolve()
    }

    /// The configuration of the run that trained the model, with the model's options; `None` for a model of Hugging Face.
    ///
    /// # Errors
    /// A `config.toml` that is wrong.
    pub fn run(&self) -> Result<Option<RunConfig>, UserError> {
        if self.is_hugging_face() {
            return Ok(None);
        }
        let (mut file, mut sources) = (ConfigSources::default(), ConfigSources::default());
        file.read_file(&self.folder.join(CONFIG_TOML))?;
        sources.start_from(file.given_values());
        sources.start_from(self.options.clone());
        Ok(Some(sources.resolve()))
    }
}

/// The error of a model that adapters cannot be over.
fn no_base(base: &Path, problem: &str) -> UserError {
    UserError::new(
        format!("the base model {} {problem}", base.display()),
        "adapters are over a model of a Hugging Face family, without other adapters",
        "name its base in base_model_name_or_path, or merge the other adapters first (trainer convert --to hf)",
    )
}

/// The elements of a parameter that a rank needs.
struct Wanted<'p> {
    index: usize,
    spec: &'p ParamSpec,
    entry: &'p Entry,
    /// The range of the elements among the elements that the rank stores.
    elements: Range<usize>,
    /// The rows of the whole parameter that the elements lie in.
    rows: Range<usize>,
    /// Whether the elements are all of `rows`, in order.
    are_rows: bool,
}

impl<'p> Wanted<'p> {
    /// `None` if the rank needs none.
    fn new(params: &'p Params, index: usize, entry: &'p Entry) -> Option<Wanted<'p>> {
        let (spec, elements) = (&params.specs[index], params.needed(index));
        let slabs: Vec<Slab> = spec.slabs.iter().flat_map(|slab| slab.within(elements.clone())).collect();
        let first = slabs.iter().map(|slab| slab.offset[0]).min()?;
        let end = slabs.iter().map(|slab| slab.offset[0] + slab.sizes[0]).max()?;
        let all = (end - first) * entry.width();
        let are_rows = elements.len() == all && matches!(&slabs[..], [slab] if slab.elements() == all);
        Some(Wanted { index, spec, entry, elements, rows: first..end, are_rows })
    }

    /// Elements that are read at once.
    fn elements_read(&self) -> usize {
        self.rows.len() * self.entry.width()
    }

    fn read(&self, weights: &Weights<'_>) -> Result<Vec<f32>, UserError> {
        let values = weights.rows(self.entry, self.rows.clone())?;
        if self.are_rows {
            return Ok(values);
        }
        let before = self.rows.start * self.entry.width();
        Ok(self.spec.stored_values_in(self.elements.clone(), |at| values[at - before]))
    }
}

/// The model options of our own `config.toml`.
fn own_options(folder: &Path) -> Result<ModelOptions, UserError> {
    let path = folder.join(CONFIG_TOML);
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
