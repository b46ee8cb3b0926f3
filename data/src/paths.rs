//! The value of `data.path`: one path, several, or several with weights.

use common::UserError;
use serde::{Deserialize, Serialize};

/// The raw value of an option that names data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Paths {
    /// A path.
    One(String),
    /// Paths, or alternating weights and paths, as in Megatron's `--data-path 0.3 A 0.7 B`.
    Several(Vec<PathItem>),
}

/// An element of a list of paths.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PathItem {
    /// A weight.
    Weight(f64),
    /// A path, or a weight as text.
    Text(String),
}

impl PathItem {
    fn weight(&self) -> Option<f64> {
        match self {
            PathItem::Weight(weight) => Some(*weight),
            PathItem::Text(text) => text.parse().ok(),
        }
    }

    fn path(&self) -> Option<&str> {
        match self {
            PathItem::Text(text) if self.weight().is_none() => Some(text),
            _ => None,
        }
    }
}

/// A dataset as configured: its weight, and the paths that are read as one stream.
pub type Weighted<'p> = (f64, Vec<&'p str>);

impl Paths {
    /// All paths, without weights.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let (one, several) = match self {
            Paths::One(path) => (Some(&**path), &[][..]),
            Paths::Several(items) => (None, &items[..]),
        };
        one.into_iter().chain(several.iter().filter_map(PathItem::path))
    }

    /// The paths, or the shares of a blend, in words; empty without either.
    pub fn in_words(&self) -> String {
        match self {
            Paths::One(path) => path.clone(),
            Paths::Several(_) => match self.datasets("data.path").as_deref() {
                Ok([(_, joined)]) => joined.join(", "),
                Ok(blend) => {
                    let total: f64 = blend.iter().map(|(weight, _)| weight).sum();
                    let share = |(weight, paths): &(f64, Vec<&str>)| format!("{:.3} {}", weight / total, paths[0]);
                    blend.iter().map(share).collect::<Vec<_>>().join(" + ")
                }
                Err(_) => String::new(),
            },
        }
    }

    /// The datasets of the option `key`. Paths without weights are one dataset together.
    ///
    /// # Errors
    /// An empty list, or a list that is neither paths alone nor a weight before every path.
    pub fn datasets(&self, key: &str) -> Result<Vec<Weighted<'_>>, UserError> {
        let items = match self {
            Paths::One(path) => return Ok(vec![(1.0, vec![path])]),
            Paths::Several(items) => items,
        };
        let all: Option<Vec<&str>> = items.iter().map(PathItem::path).collect();
        let pairs = items.chunks(2).map(|pair| match pair {
            [weight, path] => Some((weight.weight()?, vec![path.path()?])),
            _ => None,
        });
        let datasets = all.map(|paths| vec![(1.0, paths)]).or_else(|| pairs.collect());
        datasets.filter(|_| !items.is_empty()).ok_or_else(|| {
            let list: Vec<String> = items
                .iter()
                .map(|item| match item {
                    PathItem::Weight(weight) => weight.to_string(),
                    PathItem::Text(text) => text.clone(),
                })
                .collect();
            UserError::new(
                format!("{key} = [{}]", list.join(", ")),
                "a list has paths alone, or a weight before every path",
                format!("for example {key} = [0.3, \"a.bin\", 0.7, \"b.bin\"]"),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_may_be_numbers_or_text_and_stand_before_every_path_or_none() {
        let text = |text: &str| PathItem::Text(text.into());
        let blend = Paths::Several(vec![text("0.3"), text("a"), PathItem::Weight(0.7), text("b")]);
        assert_eq!(blend.datasets("data.path").unwrap(), [(0.3, vec!["a"]), (0.7, vec!["b"])]);
        let joined = Paths::Several(vec![text("a"), text("b")]);
        assert_eq!(joined.datasets("data.path").unwrap(), [(1.0, vec!["a", "b"])]);
        for wrong in [vec![], vec![text("0.3")], vec![text("a"), text("0.3")], vec![text("1"), text("a"), text("b")]] {
            assert!(Paths::Several(wrong.clone()).datasets("data.path").is_err(), "{wrong:?}");
        }
    }
}
