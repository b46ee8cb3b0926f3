//! Values from defaults, a preset, a file and flags, and the configuration that they resolve to.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use common::files::read_text;
use common::{Choice, UserError, nearest};
use toml::Value;

use crate::config::RunConfig;
use crate::config::megatron::words;
use crate::config::options::{Kind, OPTIONS, OptionSpec, find};
use crate::families::{ModelOptions, Preset};

/// The largest configuration that is read, in bytes.
const LARGEST: u64 = 16 << 20;

/// Values by key, in layers: a flag overrides the file, which overrides the model that training starts from.
#[derive(Default)]
pub struct Layers {
    start: BTreeMap<&'static str, Value>,
    file: BTreeMap<&'static str, Value>,
    flags: BTreeMap<&'static str, Value>,
}

impl Layers {
    /// Takes all values of a TOML file.
    ///
    /// # Errors
    /// A file that cannot be read or parsed, an unknown key, a value of the wrong type.
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
    /// As [`Layers::read_file`].
    pub fn read_text(&mut self, text: &str, origin: &str) -> Result<(), UserError> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            let line = 1 + error
                .span()
                .and_then(|span| text.get(..span.start))
                .map_or(0, |before| before.matches('\n').count());
            let what = format!("{origin} is not TOML: line {line}: {}", error.message());
            UserError::new(what, "a config is a TOML file", "correct that line")
        })?;
        for (section, values) in table {
            let Value::Table(values) = values else {
                return Err(outside_section(&section, &values, origin));
            };
            for (name, value) in values {
                let key = format!("{section}.{name}");
                let option = find(&key).ok_or_else(|| unknown(&key, origin))?;
                self.file.insert(option.key, checked(option, value, origin)?);
            }
        }
        Ok(())
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
        let text = &*words::ours(option.key, text);
        let unquoted = || Value::String(text.into());
        let value = match option.kind {
            _ if text.trim().is_empty() => unquoted(),
            Kind::Text | Kind::Choice(_) if !text.starts_with('"') => unquoted(),
            Kind::Paths if !text.starts_with(['"', '[']) => unquoted(),
            Kind::Integers if !text.starts_with('[') => literal(&format!("[{text}]")).unwrap_or_else(unquoted),
            Kind::Choices(_) => Value::Array(listed(option.key, text)),
            Kind::Texts if !text.starts_with("[\"") => Value::Array(vec![unquoted()]),
            _ => literal(text).unwrap_or_else(unquoted),
        };
        self.flags.insert(option.key, checked(option, value, origin)?);
        Ok(())
    }

    /// Takes the options of the model that training starts from. They override a preset; the file and flags override them.
    pub fn start_from(&mut self, values: &[(&'static str, Value)]) {
        self.start.extend(values.iter().cloned());
    }

    /// The folder whose weights training starts from, if one is named.
    pub fn init_from(&self) -> Option<&str> {
        let key = "model.init_from";
        self.flags.get(key).or_else(|| self.file.get(key)).and_then(Value::as_str)
    }

    /// The keys that a file or flags have set.
    pub fn given(&self) -> BTreeSet<&'static str> {
        self.file.keys().chain(self.flags.keys()).copied().collect()
    }

    /// All options of the model that these values describe, for [`Layers::start_from`].
    pub fn model_values(&self) -> ModelOptions {
        let resolved = toml::Table::try_from(self.resolve().model).unwrap_or_default();
        let keys = OPTIONS.iter().filter_map(|option| Some((option.key, option.key.strip_prefix("model.")?)));
        keys.filter(|(_, name)| !["preset", "init_from"].contains(name))
            .filter_map(|(key, name)| Some((key, resolved.get(name)?.clone())))
            .collect()
    }

    /// The configuration. Later values override earlier ones: defaults, the preset, the model that training starts from, the
    /// file, flags and `--set`.
    pub fn resolve(&self) -> RunConfig {
        let preset = self.flags.get("model.preset").or_else(|| self.file.get("model.preset"));
        let preset = preset.and_then(Value::as_str).and_then(Preset::from_word).unwrap_or_default();
        let mut values: BTreeMap<&str, Value> = BTreeMap::new();
        let defaults = OPTIONS.iter().map(|option| (option.key, option.default));
        for (key, text) in defaults.chain(preset.values()) {
            if let (Some(value), Some(option)) = (literal(text), find(key)) {
                values.insert(key, widened(option, value));
            }
        }
        for (key, value) in self.start.iter().chain(&self.file).chain(&self.flags) {
            values.insert(key, value.clone());
        }
        let mut table = toml::Table::new();
        for (key, value) in values {
            if let Some((section, name)) = key.split_once('.')
                && let Value::Table(section) = table.entry(section).or_insert_with(|| Value::Table(toml::Table::new()))
            {
                section.insert(name.into(), value);
            }
        }
        for section in OPTIONS.iter().filter_map(|option| option.key.split_once('.')) {
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

/// The value with whole numbers as floats, where the option takes floats.
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

/// The value, if it is of the option's kind.
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
    if OPTIONS.iter().any(|option| option.key.split_once('.').is_some_and(|(section, _)| section == name)) {
        let fix = format!("write a line [{name}], and its keys below it");
        return UserError::new(format!("{name} = {value} ({origin})"), format!("`{name}` is a section"), fix);
    }
    unknown(name, origin)
}

fn unknown(key: &str, origin: &str) -> UserError {
    // The most common slips are a key without its section, and one in another section.
    let name = key.rsplit('.').next().unwrap_or(key);
    let named =
        OPTIONS.iter().map(|option| option.key).find(|known| known.split_once('.').is_some_and(|k| k.1 == name));
    let fix = match named.or_else(|| nearest(key, OPTIONS.iter().map(|option| option.key))) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "see `trainer options` for all keys".into(),
    };
    UserError::new(format!("unknown key `{key}` ({origin})"), "a key is one that `trainer options` lists", fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_of_every_choice_is_taken_by_its_field_and_written_back_as_it_was() {
        for option in OPTIONS {
            let Kind::Choice(words) = option.kind else { continue };
            for word in words {
                let mut layers = Layers::default();
                layers.set(option.key, word, "test").unwrap();
                let written = layers.resolve().by_key().remove(option.key);
                assert_eq!(written.as_ref().and_then(Value::as_str), Some(*word), "{}", option.key);
            }
        }
    }

    #[test]
    fn a_checkpoint_to_continue_is_written_back_as_it_was() {
        for text in ["auto", "never", "saved/step-00000001", " auto", "Auto"] {
            let mut layers = Layers::default();
            layers.set("checkpoint.resume", text, "test").unwrap();
            assert_eq!(layers.resolve().by_key()["checkpoint.resume"].as_str(), Some(text));
        }
    }
}
