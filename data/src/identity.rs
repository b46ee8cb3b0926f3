//! Identities of a run's data: with them a resumed run notices that its data changed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The identity of a dataset. Together with the configuration it decides the samples, their order, and the choice of
/// those to train on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Tokens of all files of the dataset.
    pub tokens: u64,
    /// SHA-256 in hexadecimal over the files in order: for a token file the number of tokens and the first and the last few,
    /// for text all tokens.
    pub sha256: String,
}

/// The datasets of a run. The key is the option that names the dataset, with the dataset's number if the option names
/// several.
pub type Identities = BTreeMap<String, Identity>;

/// Describes each dataset that differs from the one of the same key before.
pub fn changed(before: &Identities, now: &Identities) -> Vec<String> {
    let differ = now.iter().filter_map(|(name, now)| Some((name, before.get(name)?, now)));
    differ
        .filter(|(_, before, now)| before != now)
        .map(|(name, before, now)| match (before.tokens, now.tokens) {
            (was, is) if was != is => format!("data of {name} = {is} tokens (was {was})"),
            _ => format!("data of {name} = other tokens, or their files in another order"),
        })
        .collect()
}
