//! Values of a `config.json`, read and checked.

use common::UserError;
use serde_json::Value as Json;

/// A `config.json`, and where it was read, for errors.
pub struct ConfigJson<'c> {
    config: &'c Json,
    origin: &'c str,
    /// Families that can be read, for errors.
    families: &'c str,
}

impl<'c> ConfigJson<'c> {
    /// The configuration read from the file `origin`. `families` names those that can be read, for errors.
    pub fn new(config: &'c Json, origin: &'c str, families: &'c str) -> ConfigJson<'c> {
        ConfigJson { config, origin, families }
    }

    /// A value as it stands; null where the key is absent.
    pub fn get(&self, key: &str) -> &'c Json {
        &self.config[key]
    }

    /// The error of a value that breaks a rule.
    pub fn refuse(&self, key: &str, rule: &str) -> UserError {
        UserError::new(
            format!("{key} = {} in {}", self.config[key], self.origin),
            rule,
            format!("convert another model of one of these families: {}", self.families),
        )
    }

    /// A whole number above 0.
    ///
    /// # Errors
    /// Another value, or none.
    pub fn whole(&self, key: &str) -> Result<i64, UserError> {
        let number = self.config[key].as_i64().filter(|&number| number > 0);
        number.ok_or_else(|| self.refuse(key, "it is a whole number above 0"))
    }

    /// A whole number above 0, which may be absent or null.
    ///
    /// # Errors
    /// Another value.
    pub fn whole_or(&self, key: &str, default: i64) -> Result<i64, UserError> {
        if self.config[key].is_null() { Ok(default) } else { self.whole(key) }
    }

    /// A number, which may be absent or null.
    ///
    /// # Errors
    /// Another value.
    pub fn number_or(&self, key: &str, default: f64) -> Result<f64, UserError> {
        if self.config[key].is_null() {
            return Ok(default);
        }
        self.config[key].as_f64().ok_or_else(|| self.refuse(key, "it is a number"))
    }

    /// True or false, which may be absent or null.
    ///
    /// # Errors
    /// Another value.
    pub fn flag_or(&self, key: &str, default: bool) -> Result<bool, UserError> {
        if self.config[key].is_null() {
            return Ok(default);
        }
        self.config[key].as_bool().ok_or_else(|| self.refuse(key, "it is true or false"))
    }

    /// Checks that a value is one of `known`, absent or null.
    ///
    /// # Errors
    /// Another value.
    pub fn is_known(&self, key: &str, known: &[Json]) -> Result<(), UserError> {
        let value = &self.config[key];
        if value.is_null() || known.contains(value) {
            return Ok(());
        }
        let known: Vec<String> = known.iter().map(Json::to_string).collect();
        Err(self.refuse(key, &format!("it is {}", known.join(" or "))))
    }
}
