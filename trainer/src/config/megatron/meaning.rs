//! The effects that Megatron's flags have here.

use crate::config::RunConfig;

/// The effect of one of Megatron's flags here.
#[derive(Clone, Copy, Debug)]
pub enum Meaning {
    /// The flag sets this key to this value.
    Sets(&'static str, &'static str),
    /// Each listed value of the flag sets the listed keys. For other values: the rule and the fix.
    SetsByValue(&'static [(&'static str, &'static [(&'static str, &'static str)])], &'static str, &'static str),
    /// The flag sets the first key to the value beside it. If the second key has the value beside it, the user is told.
    SetsTelling((&'static str, &'static str), (&'static str, &'static str), &'static str),
    /// The flag sets this key to this value. Its own value has no effect; the user is told so with the reason.
    SetsWhateverValue(&'static str, &'static str, &'static str),
    /// The flag's value, a number, makes this key's value: the formula in words and as a function, `None` if the number
    /// is not known.
    Computes(&'static str, &'static str, fn(f64, &RunConfig) -> Option<f64>),
    /// The flag's value, a text, makes this key's value: in words, an example, and as a function, `None` if the text is
    /// not known.
    Translates(&'static str, &'static str, &'static str, fn(&str, &RunConfig) -> Option<String>),
    /// The flag sets the first key to the value beside it. If the second key has the value beside it, it has no effect,
    /// which the user is told with the reason.
    SetsUnless((&'static str, &'static str), (&'static str, &'static str), &'static str),
    /// The flag's value is this item, counted from 0, of the list that is this key's value.
    SetsItem(&'static str, usize),
    /// The flag has no effect, and must not contradict this key: its value is the key's, or, alone, it says that the
    /// key is unset. Why, in words.
    Agrees(Takes, &'static str, &'static str),
    /// The flag has no effect, which the user is told with the reason.
    Ignored(Takes, &'static str),
    /// With a listed value the flag has no effect, which the user is told with the reason. Others are refused: the rule
    /// and the fix.
    IgnoredIf(&'static [&'static str], &'static str, &'static str, &'static str),
    /// The flag is refused, but for the listed values, which have no effect: the rule and the fix.
    Refused(&'static [&'static str], &'static str, &'static str),
}

impl Meaning {
    /// The options that the flag sets, or agrees with.
    pub fn keys(&self) -> Vec<&'static str> {
        match *self {
            Meaning::Sets(key, _)
            | Meaning::SetsTelling((key, _), ..)
            | Meaning::SetsWhateverValue(key, ..)
            | Meaning::Computes(key, ..)
            | Meaning::Translates(key, ..)
            | Meaning::SetsUnless((key, _), ..)
            | Meaning::SetsItem(key, _)
            | Meaning::Agrees(_, key, _) => vec![key],
            Meaning::SetsByValue(values, ..) => {
                values.iter().flat_map(|(_, sets)| *sets).map(|(key, _)| *key).collect()
            }
            Meaning::Ignored(..) | Meaning::IgnoredIf(..) | Meaning::Refused(..) => Vec::new(),
        }
    }
}

/// The number of a flag's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// The flag stands alone.
    Nothing,
    /// The flag has one value.
    Value,
    /// The flag has one value or more.
    Values,
}
