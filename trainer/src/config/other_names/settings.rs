//! A setting of another trainer and the setting's effect here; the settings of a file, and the options that follow.

use toml::{Table, Value};

use Here::{Becomes, IfTrue, Same, With, Without};

use crate::config::options::find;

/// A setting of another trainer.
#[derive(Clone, Copy, Debug)]
pub struct OtherName {
    /// The name there, with underscores. A name that ends in `*` stands for all names that begin so.
    pub name: &'static str,
    /// The default there as a TOML value; empty if the setting has none that matters here.
    pub default: &'static str,
    /// The effect here.
    pub here: Here,
}

/// Makes options of a setting's value, and of other settings.
pub(super) type Make = fn(&Value, &Settings) -> Made;

/// The settings of a text, each a line: its name with its default, if it has one, and its effect here, as [`Here`] has it.
/// `made` has what makes options, by setting.
pub(super) fn names(text: &'static str, made: &[(&str, Make)]) -> Vec<OtherName> {
    let name = |line: &'static str| {
        let (setting, effect) = line.split_once(" | ").unwrap_or((line, ""));
        let (name, default) = setting.split_once(" = ").unwrap_or((setting, ""));
        let make = made.iter().find(|(of, _)| *of == name).map(|(_, make)| *make);
        let here = match (&effect.split(" | ").collect::<Vec<_>>()[..], make) {
            (["same", key], None) => Same(key),
            (["if true", fix, sets], None) => IfTrue(fix, sets.split_once(" = ").unwrap_or((sets, "true"))),
            (["becomes", fix], Some(make)) => Becomes(fix, make),
            (["with", other, fix], None) => With(other, fix),
            (["without", rule, fix], None) => Without(rule, fix),
            _ => unreachable!("not a setting: {line}"),
        };
        OtherName { name, default, here }
    };
    text.lines().filter(|line| !line.starts_with('#')).map(name).collect()
}

/// The effect of another trainer's setting here.
#[derive(Clone, Copy, Debug)]
pub enum Here {
    /// The option of this key takes the same values.
    Same(&'static str),
    /// A setting that is true gives the option of this key this value: also the flags in words.
    IfTrue(&'static str, (&'static str, &'static str)),
    /// Options follow from the setting's value and from other settings: the flags in words, and the options.
    Becomes(&'static str, Make),
    /// Read together with the setting of this name: also the flags in words.
    With(&'static str, &'static str),
    /// No equivalent: the rule and the fix.
    Without(&'static str, &'static str),
}

impl Here {
    /// The rule, if it is another than that the name is another trainer's, and the flags to use.
    pub fn answer(&self) -> (Option<&'static str>, String) {
        match *self {
            Same(key) => (None, find(key).map_or(key.into(), |option| format!("--{}", option.flag))),
            IfTrue(fix, _) | Becomes(fix, _) | With(_, fix) => (None, fix.into()),
            Without(rule, fix) => (Some(rule), fix.into()),
        }
    }
}

/// An option that follows from a setting.
#[derive(Clone, Debug, PartialEq)]
pub struct Set {
    /// The option's key.
    pub key: &'static str,
    /// The value as text.
    pub value: String,
    /// How the value was found, if not as the setting's own.
    pub how: String,
}

/// The options that follow from a setting, or the reason why there are none.
pub type Made = Result<Vec<Set>, String>;

/// The settings of a run of another trainer.
#[derive(Debug)]
pub struct Settings {
    given: Table,
    defaults: Table,
    /// The number of ranks of the run.
    pub ranks: usize,
}

impl Settings {
    /// The settings that a file gives, by name. Those that it leaves out have the defaults of `names`, the trainer's settings.
    pub fn new(names: &[OtherName], given: Table, ranks: usize) -> Settings {
        let parsed = |name: &OtherName| format!("x = {}", name.default).parse::<Table>().ok()?.remove("x");
        let defaults = names.iter().filter_map(|name| Some((name.name.to_string(), parsed(name)?)));
        Settings { given, defaults: defaults.collect(), ranks }
    }

    /// The same settings of a run of torchtitan on as many ranks as its degrees say.
    #[must_use]
    pub fn on_ranks_of_degrees(self) -> Settings {
        Settings { ranks: super::torchtitan::ranks(&self), ..self }
    }

    /// The default of a setting.
    pub fn default_of(&self, name: &str) -> Option<&Value> {
        self.defaults.get(name)
    }

    /// The settings that the file gives, in the file's order.
    pub fn given(&self) -> &Table {
        &self.given
    }

    /// The value of a setting, and whether the file gives the setting.
    pub fn value(&self, name: &str) -> Option<(&Value, bool)> {
        let given = self.given.get(name).map(|value| (value, true));
        given.or_else(|| self.defaults.get(name).map(|value| (value, false)))
    }

    /// The number of a setting; `None` for a setting that is unset, or not a number.
    pub fn number(&self, name: &str) -> Option<f64> {
        number(self.value(name)?.0)
    }

    /// The text of a setting.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.value(name)?.0.as_str()
    }

    /// Whether a setting is true.
    pub fn is_true(&self, name: &str) -> bool {
        self.value(name).is_some_and(|(value, _)| is_true(value))
    }

    /// The options that follow from a setting with this value.
    ///
    /// # Errors
    /// The reason why there are none.
    pub fn made(&self, name: &OtherName, value: &Value) -> Made {
        match name.here {
            Same(key) => Ok(vec![set(key, text(value))]),
            IfTrue(_, (key, ours)) => {
                if is_true(value) {
                    one(key, ours)
                } else {
                    none()
                }
            }
            Becomes(_, make) => make(value, self),
            With(..) => Ok(Vec::new()),
            Without(rule, _) => Err(rule.into()),
        }
    }
}

/// The option of this key with that value.
pub(super) fn set(key: &'static str, value: impl Into<String>) -> Set {
    debug_assert!(find(key).is_some(), "{key}");
    Set { key, value: value.into(), how: String::new() }
}

/// The same, with the way to the value.
pub(super) fn set_as(key: &'static str, value: impl Into<String>, how: impl Into<String>) -> Set {
    Set { how: how.into(), ..set(key, value) }
}

/// One option.
pub(super) fn one(key: &'static str, value: impl Into<String>) -> Made {
    Ok(vec![set(key, value)])
}

/// No option.
pub(super) fn none() -> Made {
    Ok(Vec::new())
}

/// The betas, from the two settings of the given names; `how` names both.
pub(super) fn betas_of(settings: &Settings, names: [&str; 2], how: &str) -> Made {
    let [first, second] = names.map(|name| settings.number(name).unwrap_or(0.0));
    Ok(vec![set_as("optimizer.betas", format!("[{first:?}, {second:?}]"), how)])
}

/// Graphs, in place of compiled code.
pub(super) fn graphs(value: &Value, _: &Settings) -> Made {
    let how = if is_true(value) { "in place of torch.compile: nothing is compiled here" } else { "" };
    Ok(vec![set_as("cuda_graph.enable", is_true(value).to_string(), how)])
}

/// A setting's value as text, without quotes.
pub(super) fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_string)
}

/// The number of a value. Text that is one counts too: `5e-5` is a string in some files.
pub(super) fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(whole) => Some(*whole as f64),
        Value::Float(number) => Some(*number),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// Whether a value is true.
pub(super) fn is_true(value: &Value) -> bool {
    value.as_bool().unwrap_or_else(|| value.as_str().is_some_and(|text| text.eq_ignore_ascii_case("true")))
}

/// A number as people write numbers: 512, 0.5, and not the last digits of a product.
pub(super) fn shown(number: f64) -> String {
    format!("{number:.12e}").parse().unwrap_or(number).to_string()
}
