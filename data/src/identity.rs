//! What the order of samples depends on beside the configuration, so that a run that goes on can tell that its data are
//! not those it began with.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// By what a dataset is known again. With the configuration it decides which samples there are, in which order, and which
/// are trained on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Tokens of all its files.
    pub tokens: u64,
    /// SHA-256, in hexadecimal, of each file's tokens in turn: of a token file how many it has, the first and the last few;
    /// of text all.
    pub sha256: String,
}

/// The datasets of a run, each by the option it is of, and its number there if it is not the only one.
pub type Identities = BTreeMap<String, Identity>;

/// In what datasets that are there now differ from those of the same name before.
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
