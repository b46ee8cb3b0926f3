//! The settings of options that a program adds: see [`Extensions`](crate::extensions::Extensions).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use toml::Value;

/// The options that code of this process has asked for.
static READ: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// The values of the section `own`, by the names of options without `own.`. Each method takes such a name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OwnSettings(BTreeMap<String, Value>);

impl OwnSettings {
    /// Whether nothing is set: a program without own options, or one whose options have no defaults.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a switch is on. Unset, it is off.
    pub fn switch(&self, name: &str) -> bool {
        self.get(name).and_then(Value::as_bool).unwrap_or_default()
    }

    /// The whole number of a setting; `None` for an unset setting.
    pub fn integer(&self, name: &str) -> Option<usize> {
        self.get(name).and_then(Value::as_integer).and_then(|number| number.try_into().ok())
    }

    /// The number of a setting; `None` for an unset setting.
    pub fn float(&self, name: &str) -> Option<f64> {
        self.get(name).and_then(Value::as_float)
    }

    /// The text or the word of a setting; `None` for an unset setting.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(Value::as_str)
    }

    /// The texts of a list; none for an unset setting.
    pub fn texts(&self, name: &str) -> Vec<&str> {
        let items = self.get(name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        items.iter().filter_map(Value::as_str).collect()
    }

    fn get(&self, name: &str) -> Option<&Value> {
        READ.lock().unwrap_or_else(PoisonError::into_inner).insert(name.into());
        self.0.get(name)
    }

    /// Whether code of this process has asked for an option.
    pub(crate) fn is_read(name: &str) -> bool {
        READ.lock().unwrap_or_else(PoisonError::into_inner).contains(name)
    }
}
