//! Values from defaults, a preset, a file and flags, and the configuration that they resolve to.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use common::files::read_text;
use common::{Choice, Mistakes, UserError, nearest};
use toml::Value;

use crate::config::megatron::words;
use crate::config::options::{Kind, OptionSpec, find, options};
use crate::config::{DecayStyle, PositionEmbedding, RunConfig};
use crate::families::{ModelOptions, Preset};

/// The learning rate of fine-tuning, if nobody says another.
const FINE_TUNING_LR: Rates = Rates { weights: 2e-5, adapters: 2e-4 };
/// The same with pairs of answers. That of all weights is TRL's.
const DPO_LR: Rates = Rates { weights: 1e-6, adapters: 1e-5 };

/// Learning rates.
struct Rates {
    /// Of a run that trains all weights.
    weights: f64,
    adapters: f64,
}

/// The largest configuration that is read, in bytes.
const LARGEST: u64 = 16 << 20;

/// Values by key, in layers: a flag overrides the file, which overrides the model that training starts from.
#[derive(Clone, Default)]
pub struct ConfigSources {
    start: BTreeMap<String, Value>,
    file: BTreeMap<&'static str, Value>,
    flags: BTreeMap<&'static str, Value>,
    /// Notices about words that were taken.
    notices: BTreeSet<String>,
}

impl ConfigSources {
    /// Takes all values of a TOML file.
    ///
    /// # Errors
    /// A file that cannot be read or parsed, unknown keys, values of the wrong type. The other values are taken.
    pub fn read_file(&mut self, path: &Path) -> Result<(), UserError> {
        let name = path.display();
        let text = read_text(path, LARGEST).map_err(|error| {
            let what = format!("config file {name} cannot be read: {error}");
            match std::fs::metadata(path) {
                Ok(found) if !found.is_file() && !found.is_dir() => UserError::new(
                    what,
                    "every rank and every restart reads the TOML file, and a pipe gives its text once",
                    "write the text to a file, and name that file",
                ),
                _ => UserError::new(what, "--config names a TOML file", "check the path"),
            }
        })?;
        self.read_text(&text, &name.to_string())
    }

    /// Takes all values of a TOML text. `origin` is named in errors.
    ///
    /// # Errors
    /// As [`ConfigSources::read_file`].
    pub fn read_text(&mut self, text: &str, origin: &str) -> Result<(), UserError> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            let line = 1 + error
                .span()
                .and_then(|span| text.get(..span.start))
                .map_or(0, |before| before.matches('\n').count());
            let what = format!("{origin} is not TOML: line {line}: {}", error.message());
            UserError::new(what, "a config is a TOML file", "correct that line")
        })?;
        let mut mistakes = Mistakes::default();
        for (section, values) in table {
            let Value::Table(values) = values else {
                mistakes.add(outside_section(&section, &values, origin));
                continue;
            };
            for (name, value) in values {
                let key = format!("{section}.{name}");
                let found = find(&key).ok_or_else(|| unknown(&key, origin));
                self.notices.extend(value.as_str().and_then(|word| words::notice(&key, word)));
                let value = found.and_then(|option| Ok((option.key, checked(option, value, origin)?)));
                self.file.extend(mistakes.keep(value));
            }
        }
        mistakes.end()
    }

    /// Takes a value that was given as text, by a flag or by `--set`. Text needs no quotes.
    ///
    /// # Errors
    /// An unknown key, a value of the wrong type.
    pub fn set(&mut self, key: &str, text: &str, origin: &str) -> Result<(), UserError> {
        let option = find(key).ok_or_else(|| unknown(key, origin))?;
        if let Some((other, value)) = words::also_sets(option.key, text) {
            self.set(other, value, origin)?;
        }
        self.notices.extend(words::notice(option.key, text));
        let text = &*words::ours(option.key, text);
        let unquoted = || Value::String(text.into());
        let value = match option.kind {
            _ if text.trim().is_empty() => unquoted(),
            Kind::Text | Kind::Choice(_) if !text.starts_with('"') => unquoted(),
            Kind::Paths if !text.starts_with(['"', '[']) => unquoted(),
            Kind::Integers | Kind::Floats if !text.starts_with('[') => {
                literal(&format!("[{text}]")).unwrap_or_else(unquoted)
            }
            Kind::Choices(_) => Value::Array(listed(option.key, text)),
            Kind::Texts if !text.starts_with("[\"") => Value::Array(vec![unquoted()]),
            _ => literal(text).unwrap_or_else(unquoted),
        };
        self.flags.insert(option.key, checked(option, value, origin)?);
        Ok(())
    }

    /// As [`ConfigSources::set`], of `key=value`.
    ///
    /// # Errors
    /// No equals sign, an unknown key, a value of the wrong type.
    pub fn set_pair(&mut self, pair: &str) -> Result<(), UserError> {
        let (key, value) = pair.split_once('=').ok_or_else(|| {
            UserError::new(
                format!("--set {pair}"),
                "--set takes a key, an equals sign and a value",
                "for example --set train.steps=100",
            )
        })?;
        self.set(key.trim(), value.trim(), "--set")
    }

    /// The sources that have the values of a text alone, each a word `key=value`.
    ///
    /// # Errors
    /// As [`ConfigSources::set_pair`].
    pub fn of_pairs(text: &str) -> Result<ConfigSources, UserError> {
        let mut sources = ConfigSources::default();
        text.split_whitespace().try_for_each(|pair| sources.set_pair(pair))?;
        Ok(sources)
    }

    /// Notices about values that were taken as other words.
    pub fn notices(&self) -> impl Iterator<Item = String> {
        self.notices.iter().cloned()
    }

    /// Takes the options of the model that training starts from, in place of the preset's options. The file and flags
    /// override them.
    pub fn start_from(&mut self, values: impl IntoIterator<Item = (impl Into<String>, Value)>) {
        self.start.extend(values.into_iter().map(|(key, value)| (key.into(), value)));
    }

    /// The folder with the weights that training starts from, if one is named.
    pub fn init_from(&self) -> Option<&str> {
        let key = "model.init_from";
        self.flags.get(key).or_else(|| self.file.get(key)).and_then(Value::as_str)
    }

    /// The keys that a file or flags have set.
    pub fn given(&self) -> BTreeSet<&'static str> {
        self.file.keys().chain(self.flags.keys()).copied().collect()
    }

    /// Fails if one layer has both lengths of a run.
    ///
    /// # Errors
    /// Flags, or a file, set `train.steps` and `train.epochs`.
    pub fn ensure_one_length(&self) -> Result<(), UserError> {
        let both = |layer: &BTreeMap<&str, Value>| {
            Some((layer.get("train.steps")?.clone(), layer.get("train.epochs")?.clone()))
        };
        match both(&self.flags).or_else(|| both(&self.file).filter(|_| self.length().is_none())) {
            None => Ok(()),
            Some((steps, epochs)) => Err(UserError::new(
                format!("train.steps = {steps} with train.epochs = {epochs}"),
                "a run has so many steps, or so many epochs, from which its steps follow",
                "give --steps or --epochs",
            )),
        }
    }

    /// Whether a file or a flag sets this key.
    fn is_given(&self, key: &str) -> bool {
        self.file.contains_key(key) || self.flags.contains_key(key)
    }

    /// Whether anything but a default sets this key.
    pub fn is_set(&self, key: &str) -> bool {
        self.is_given(key) || self.start.contains_key(key) || self.preset_values().any(|(set, _)| set == key)
    }

    /// The options that the preset sets. If training starts from a model, they are none of a model: that has them all.
    fn preset_values(&self) -> impl Iterator<Item = (String, &'static str)> {
        let has_model = self.start.contains_key("model.kind");
        self.preset().values().filter(move |(key, _)| !has_model || !key.starts_with("model."))
    }

    fn preset(&self) -> Preset {
        let preset = self.flags.get("model.preset").or_else(|| self.file.get("model.preset"));
        preset.and_then(Value::as_str).and_then(Preset::from_word).unwrap_or_default()
    }

    /// Sets the rates of a run that goes on with a trained model or learns from answers, in place of rates of defaults
    /// and of the preset, which train a model from the beginning.
    fn fine_tune(&self, values: &mut BTreeMap<&str, Value>) {
        let is_on = |key: &str| values.get(key).and_then(Value::as_bool).unwrap_or_default();
        let (sft, judged) = (is_on("data.sft"), is_on("data.dpo") || is_on("data.kto"));
        if self.init_from().is_none() && !sft && !judged {
            return;
        }
        let has_adapters = values.get("model.lora_rank").and_then(Value::as_integer).is_some_and(|rank| rank > 0);
        if !self.is_given("optimizer.lr") {
            let Rates { weights, adapters } = if judged { DPO_LR } else { FINE_TUNING_LR };
            values.insert("optimizer.lr", Value::Float(if has_adapters { adapters } else { weights }));
        }
        if !self.is_given("optimizer.schedule") {
            values.insert("optimizer.schedule", Value::String(DecayStyle::Cosine.to_string()));
        }
        if !self.is_given("optimizer.warmup_steps") {
            values.remove("optimizer.warmup_steps");
        }
    }

    /// The length of the run that flags have set.
    fn length(&self) -> Option<&'static str> {
        ["train.steps", "train.epochs"].into_iter().find(|key| self.flags.contains_key(key))
    }

    /// The values that a file or flags have set, by key.
    pub fn given_values(&self) -> BTreeMap<&'static str, Value> {
        self.file.iter().chain(&self.flags).map(|(key, value)| (*key, value.clone())).collect()
    }

    /// All options of the model that the given values describe, for [`ConfigSources::start_from`]. A part that the
    /// program adds may read any of the program's options.
    pub fn model_values(&self) -> ModelOptions {
        let mut resolved = self.resolve();
        // A shorter sequence of another run leaves the model its positions.
        if resolved.model.position == PositionEmbedding::Learned {
            resolved.model.max_position_embeddings.get_or_insert(resolved.model.seq_length);
        }
        let of_run = ["model.preset", "model.init_from", "own.loss", "own.data", "own.metrics"];
        let is_of_model = |key: &str| ["model.", "own."].iter().any(|section| key.starts_with(section));
        let values = resolved.by_key().into_iter();
        values.filter(|(key, _)| is_of_model(key) && !of_run.contains(&key.as_str())).collect()
    }

    /// The configuration. Later values override earlier ones: defaults, the preset, the model that training starts from, the
    /// file, flags and `--set`.
    pub fn resolve(&self) -> RunConfig {
        let mut values: BTreeMap<&str, Value> = BTreeMap::new();
        let defaults = options().iter().map(|option| (option.key.into(), option.default));
        for (key, text) in defaults.chain(self.preset_values()) {
            if let (Some(value), Some(option)) = (literal(text), find(&key)) {
                values.insert(option.key, widened(option, value));
            }
        }
        values.extend(self.start.iter().map(|(key, value)| (key.as_str(), value.clone())));
        values.extend(self.file.iter().chain(&self.flags).map(|(key, value)| (*key, value.clone())));
        self.fine_tune(&mut values);
        // Flags override a file's length of the run, whichever of both it has.
        if self.length() == Some("train.steps") {
            values.remove("train.epochs");
        }
        let mut table = toml::Table::new();
        for (key, value) in values {
            if let Some((section, name)) = key.split_once('.')
                && let Value::Table(section) = table.entry(section).or_insert_with(|| Value::Table(toml::Table::new()))
            {
                section.insert(name.into(), value);
            }
        }
        for section in options().iter().filter_map(|option| option.key.split_once('.')) {
            table.entry(section.0).or_insert_with(|| Value::Table(toml::Table::new()));
        }
        match table.try_into() {
            Ok(config) => config,
            Err(error) => unreachable!("the option table and RunConfig disagree: {error}"),
        }
    }
}

/// The value of a TOML literal.
fn literal(text: &str) -> Option<Value> {
    format!("x = {text}").parse::<toml::Table>().ok()?.remove("x")
}

/// The words of a list, with or without brackets and quotes, in our terms.
fn listed(key: &str, text: &str) -> Vec<Value> {
    let words = text.split(|c: char| c.is_whitespace() || "[],\"".contains(c)).filter(|word| !word.is_empty());
    words.map(|word| Value::String(words::ours(key, word).into())).collect()
}

/// The value; if the option takes floats, with whole numbers made floats.
fn widened(option: &OptionSpec, value: Value) -> Value {
    let float = |value| match value {
        Value::Integer(whole) => Value::Float(whole as f64),
        other => other,
    };
    match (option.kind, value) {
        (Kind::Float, value) => float(value),
        (Kind::Floats, Value::Array(items)) => Value::Array(items.into_iter().map(float).collect()),
        (_, value) => value,
    }
}

/// The option's value, if of the option's kind.
fn checked(option: &OptionSpec, value: Value, origin: &str) -> Result<Value, UserError> {
    let value = widened(option, value);
    let natural = |value: &Value| value.as_integer().is_some_and(|n| n >= 0);
    // The value, and the items of a list.
    let texts = || {
        let items = std::slice::from_ref(&value).iter().chain(value.as_array().into_iter().flatten());
        items.filter_map(Value::as_str)
    };
    if let Some(url) = texts().find(|text| is_url(text)) {
        return Err(UserError::new(
            format!("{} = \"{url}\" ({origin})", option.key),
            "files are read and written in mounted file systems, not by URL",
            "copy the data, or mount the bucket and name the folder",
        ));
    }
    let fits = match option.kind {
        Kind::Bool => value.is_bool(),
        Kind::Integer => natural(&value),
        Kind::Float => value.as_float().is_some_and(f64::is_finite),
        Kind::Text => value.as_str().is_some_and(|text| !text.trim().is_empty()),
        Kind::Choice(words) => value.as_str().is_some_and(|word| words.contains(&word)),
        Kind::Choices(words) => {
            let word = |item: &Value| item.as_str().is_some_and(|word| words.contains(&word));
            value.as_array().is_some_and(|items| items.iter().all(word))
        }
        Kind::Integers => value.as_array().is_some_and(|items| items.iter().all(natural)),
        Kind::Floats => value.as_array().is_some_and(|items| items.iter().all(Value::is_float)),
        Kind::Texts => {
            let text = |item: &Value| item.as_str().is_some_and(|text| !text.trim().is_empty());
            value.as_array().is_some_and(|items| items.iter().all(text))
        }
        Kind::Paths => {
            let path = |item: &Value| item.as_str().is_some_and(|path| !path.trim().is_empty());
            let item = |item: &Value| path(item) || item.is_float() || item.is_integer();
            path(&value) || value.as_array().is_some_and(|items| items.iter().all(item))
        }
    };
    if fits {
        return Ok(value);
    }
    let mut fix = match option.default {
        "" | "[]" => format!("set {} to {}", option.key, option.kind.expected()),
        default => format!("for example, set {} = {default}", option.key),
    };
    if value.as_str().is_some_and(|text| text.trim().is_empty()) {
        fix = format!("give {} a value, or leave it out", option.key);
    }
    for text in texts() {
        if let Kind::Choice(words) | Kind::Choices(words) = option.kind
            && !words.contains(&text)
            && let Some(near) = begun(text, words).or_else(|| nearest(text, words.iter().copied()))
        {
            fix = format!("did you mean `{near}`?");
        }
        if let Some(known) = words::fix(option.key, text) {
            fix = known;
        }
    }
    Err(UserError::new(
        format!("{} = {value} ({origin})", option.key),
        format!("the value is {}", option.kind.expected()),
        fix,
    ))
}

/// The first word that begins with this text and a hyphen.
fn begun<'w>(text: &str, words: &[&'w str]) -> Option<&'w str> {
    words.iter().copied().find(|word| word.strip_prefix(text).is_some_and(|rest| rest.starts_with('-')))
}

/// Whether a text begins as `s3://` does.
fn is_url(text: &str) -> bool {
    let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
    !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric() || c == '+')
}

/// A key that stands outside of all sections.
fn outside_section(name: &str, value: &Value, origin: &str) -> UserError {
    if options().iter().any(|option| option.key.split_once('.').is_some_and(|(section, _)| section == name)) {
        let fix = format!("write a line [{name}], and its keys below it");
        return UserError::new(format!("{name} = {value} ({origin})"), format!("`{name}` is a section"), fix);
    }
    unknown(name, origin)
}

fn unknown(key: &str, origin: &str) -> UserError {
    // The most common slips are a key without its section, and one in another section.
    let name = key.rsplit('.').next().unwrap_or(key);
    let named =
        options().iter().map(|option| option.key).find(|known| known.split_once('.').is_some_and(|k| k.1 == name));
    let fix = match named.or_else(|| nearest(key, options().iter().map(|option| option.key))) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "see `trainer options` for all keys".into(),
    };
    UserError::new(format!("unknown key `{key}` ({origin})"), "a key is one that `trainer options` lists", fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_override_the_length_of_a_file_and_one_layer_has_only_one() {
        let length = |file: &str, flags: &[(&str, &str)]| {
            let mut sources = ConfigSources::default();
            sources.read_text(&format!("[train]\n{file}"), "test").unwrap();
            flags.iter().for_each(|(key, text)| sources.set(key, text, "test").unwrap());
            let train = sources.resolve().train;
            sources.ensure_one_length().map(|()| train.epochs.ok_or(train.steps))
        };
        let (steps, epochs) = (("train.steps", "7"), ("train.epochs", "2"));
        assert_eq!(length("epochs = 3", &[]), Ok(Ok(3.0)));
        assert_eq!(length("epochs = 3", &[steps]), Ok(Err(7)));
        assert_eq!(length("steps = 3", &[epochs]), Ok(Ok(2.0)));
        assert_eq!(length("steps = 3\nepochs = 3", &[epochs]), Ok(Ok(2.0)));
        for both in [length("steps = 3\nepochs = 3", &[]), length("", &[steps, epochs])] {
            assert!(both.unwrap_err().to_string().contains("give --steps or --epochs"));
        }
    }

    #[test]
    fn every_word_of_every_choice_is_taken_by_its_field_and_written_back_as_it_was() {
        for option in options() {
            let Kind::Choice(words) = option.kind else { continue };
            for word in words {
                let mut sources = ConfigSources::default();
                sources.set(option.key, word, "test").unwrap();
                let written = sources.resolve().by_key().remove(option.key);
                assert_eq!(written.as_ref().and_then(Value::as_str), Some(*word), "{}", option.key);
            }
        }
    }

    #[test]
    fn one_number_is_a_list_of_it() {
        for (key, text, list) in [("model.rope_scaling", "3", "[3.0]"), ("model.window_pattern", "1", "[1]")] {
            let mut sources = ConfigSources::default();
            sources.set(key, text, "test").unwrap();
            assert_eq!(sources.resolve().by_key()[key].to_string(), list);
        }
        let refused = ConfigSources::default().set("model.rope_scaling", "much", "test").unwrap_err().to_string();
        assert!(refused.contains("the value is a list of numbers"), "{refused}");
    }

    #[test]
    fn a_checkpoint_to_continue_is_written_back_as_it_was() {
        for text in ["auto", "never", "saved/step-00000001", " auto", "Auto"] {
            let mut sources = ConfigSources::default();
            sources.set("checkpoint.resume", text, "test").unwrap();
            assert_eq!(sources.resolve().by_key()["checkpoint.resume"].as_str(), Some(text));
        }
    }
}
