//! Values of a `config.json`, read and checked.

use std::cell::RefCell;
use std::collections::BTreeSet;

use common::UserError;
use serde_json::Value as Json;

use super::family::settings;

/// The most layers of a model. The deepest that were trained have about 1,000. A step of this many is recorded and planned
/// in seconds.
pub const MOST_LAYERS: i64 = 1 << 12;

/// No size of a model is larger.
const LARGEST_SIZE: i64 = 1 << 30;

/// Layers that predict tokens after the next one, behind the layers of a model.
pub const FURTHER_TOKENS: &str = "num_nextn_predict_layers";

/// The tables that a layer for further tokens shares with the model, by our name, and the name of the copy in the layer's
/// files.
pub const COPIED_TABLES: [(&str, &str); 2] =
    [("wte.weight", "embed_tokens.weight"), ("lm_head.weight", "shared_head.head.weight")];

/// A `config.json`, and the path for errors.
pub struct ConfigJson<'c> {
    config: &'c Json,
    origin: &'c str,
    /// Families that can be read, for errors.
    families: &'c str,
    /// The numbers that stand for absent keys in a family's files.
    absent: &'static str,
    /// The keys that were asked for.
    asked: RefCell<BTreeSet<String>>,
}

impl<'c> ConfigJson<'c> {
    /// The configuration read from the file `origin`. `families` names those that can be read, for errors.
    pub fn new(config: &'c Json, origin: &'c str, families: &'c str) -> ConfigJson<'c> {
        ConfigJson { config, origin, families, absent: "", asked: RefCell::default() }
    }

    /// The same configuration, in which the given numbers stand for absent keys.
    pub fn with_absent(self, absent: &'static str) -> ConfigJson<'c> {
        ConfigJson { absent, ..self }
    }

    /// The number that stands for an absent key.
    pub fn absent(&self, key: &str) -> Option<f64> {
        settings(self.absent).find(|(name, _)| *name == key).and_then(|(_, number)| number.parse().ok())
    }

    /// The value of a key; null if the key is absent.
    pub fn get(&self, key: &str) -> &'c Json {
        self.asked.borrow_mut().insert(key.into());
        &self.config[key]
    }

    /// Whether the key is there, even with null.
    pub fn has(&self, key: &str) -> bool {
        self.config.get(key).is_some()
    }

    /// Fails on a key that differs in one letter from one that was asked for and is absent: it was misspelled or damaged. A
    /// `config.json` has many keys that are not asked for, so an unknown key alone is no error.
    ///
    /// # Errors
    /// Names both keys.
    pub fn no_key_is_misspelled(&self) -> Result<(), UserError> {
        let asked = self.asked.borrow();
        let absent = || asked.iter().filter(|key| self.config.get(key.as_str()).is_none());
        for key in self.config.as_object().into_iter().flat_map(|object| object.keys()) {
            let near = |wanted: &&String| strsim::damerau_levenshtein(key, wanted) == 1;
            if let Some(wanted) = absent().find(near).filter(|_| key.len() < 100 && !asked.contains(key)) {
                return Err(UserError::new(
                    format!("{} has a key `{key}` and no `{wanted}`", self.origin),
                    "keys are those that `transformers` writes",
                    format!("correct it to `{wanted}`, or get the file again"),
                ));
            }
        }
        Ok(())
    }

    /// The error of a value that breaks a rule.
    pub fn refuse(&self, key: &str, rule: &str) -> UserError {
        UserError::new(
            format!("{key} = {} in {}", self.config[key], self.origin),
            rule,
            format!("get the file again, or take another model of one of these families: {}", self.families),
        )
    }

    /// A size: a whole number above 0. Products of two sizes do not overflow.
    ///
    /// # Errors
    /// Another value, or none.
    pub fn whole(&self, key: &str) -> Result<i64, UserError> {
        let number = self.get(key).as_i64().filter(|number| (1..=LARGEST_SIZE).contains(number));
        number.ok_or_else(|| self.refuse(key, &format!("it is a whole number from 1 to {LARGEST_SIZE}")))
    }

    /// A whole number above 0. It may be absent or null.
    ///
    /// # Errors
    /// Another value.
    pub fn whole_or(&self, key: &str, default: i64) -> Result<i64, UserError> {
        if self.get(key).is_null() { Ok(default) } else { self.whole(key) }
    }

    /// A whole number above 0. If it is absent or null, the family's number stands for it.
    ///
    /// # Errors
    /// Another value, or none.
    pub fn usual_whole(&self, key: &str) -> Result<i64, UserError> {
        self.absent(key).map_or_else(|| self.whole(key), |usual| self.whole_or(key, usual as i64))
    }

    /// A number that f32 can hold. If it is absent or null, the family's number stands for it.
    ///
    /// # Errors
    /// Another value.
    pub fn usual_number(&self, key: &str) -> Result<f64, UserError> {
        self.number_or(key, self.absent(key).unwrap_or_default())
    }

    /// A number that f32 can hold. It may be absent or null.
    ///
    /// # Errors
    /// Another value.
    pub fn number_or(&self, key: &str, default: f64) -> Result<f64, UserError> {
        if self.get(key).is_null() {
            return Ok(default);
        }
        let number = self.get(key).as_f64().filter(|&number| (number as f32).is_finite());
        number.ok_or_else(|| self.refuse(key, "it is a number, no larger than f32 can hold"))
    }

    /// True or false. It may be absent or null.
    ///
    /// # Errors
    /// Another value.
    pub fn flag_or(&self, key: &str, default: bool) -> Result<bool, UserError> {
        if self.get(key).is_null() {
            return Ok(default);
        }
        self.get(key).as_bool().ok_or_else(|| self.refuse(key, "it is true or false"))
    }

    /// Checks that a value is one of `known`, absent or null.
    ///
    /// # Errors
    /// Another value.
    pub fn is_known(&self, key: &str, known: &[Json]) -> Result<(), UserError> {
        let value = self.get(key);
        if value.is_null() || known.contains(value) {
            return Ok(());
        }
        let known: Vec<String> = known.iter().map(Json::to_string).collect();
        Err(self.refuse(key, &format!("it is {}", known.join(" or "))))
    }
}
