//! The sizes of all families, as users name them.

use common::{Choice, choice_as_word};

use super::family::settings;
use super::{FAMILIES, all};

/// The name of a [`Size`](super::Size) of some family: a value of `model.preset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset(&'static str);

impl Preset {
    /// The options that the preset sets, with values as in TOML. Later ones override earlier ones. Other settings of the user
    /// override all of them.
    pub fn values(self) -> impl Iterator<Item = (String, &'static str)> {
        let sizes = all().flat_map(|family| family.sizes.iter().map(move |size| (family, size)));
        let named = sizes.filter(move |(_, size)| size.name == self.0);
        named.flat_map(|(family, size)| {
            let model = settings(family.choices).chain(settings(size.model));
            let training = size.training.iter().map(|(key, value)| (key.to_string(), *value));
            model.map(|(name, value)| (format!("model.{name}"), value)).chain(training)
        })
    }
}

/// The first size of the first family.
impl Default for Preset {
    fn default() -> Preset {
        Preset::ALL[0]
    }
}

impl Choice for Preset {
    const ALL: &'static [Preset] = &{
        let mut all = [Preset(""); COUNT];
        let mut at = 0;
        while at < COUNT {
            all[at] = Preset(NAMES[at]);
            at += 1;
        }
        all
    };
    const WORDS: &'static [&'static str] = &NAMES;

    fn word(self) -> &'static str {
        self.0
    }

    fn from_word(word: &str) -> Option<Preset> {
        all().flat_map(|family| family.sizes).find(|size| size.name == word).map(|size| Preset(size.name))
    }
}

const COUNT: usize = {
    let (mut count, mut family) = (0, 0);
    while family < FAMILIES.len() {
        count += FAMILIES[family].sizes.len();
        family += 1;
    }
    count
};

/// The names of all sizes. The table of options is a constant, so they are too.
const NAMES: [&str; COUNT] = {
    let mut names = [""; COUNT];
    let (mut at, mut family) = (0, 0);
    while family < FAMILIES.len() {
        let mut size = 0;
        while size < FAMILIES[family].sizes.len() {
            names[at] = FAMILIES[family].sizes[size].name;
            at += 1;
            size += 1;
        }
        family += 1;
    }
    names
};

choice_as_word!(Preset);
