//! Changed values in a `config.json`. Each is written in every form that the file has of it: readers differ in the one
//! that they take.

use serde_json::{Map, Value as Json};

use super::rope;

/// Other names of keys that exports have. Files may have one of the names or both.
const OTHER_NAMES: [(&str, &str); 2] = [("torch_dtype", "dtype"), ("n_positions", "n_ctx")];

/// Older forms of `layer_types`. They cannot tell all that it can, so it takes their place.
const OLDER_LAYER_TYPES: [&str; 2] = ["sliding_window_pattern", "_sliding_window_pattern"];

/// Writes `changed` keys into a `config.json`.
pub fn change(config: &mut Map<String, Json>, mut changed: Map<String, Json>) {
    rope::change_parameters(config, &mut changed);
    if changed.contains_key("layer_types") {
        config.retain(|key, _| !OLDER_LAYER_TYPES.contains(&key.as_str()));
    }
    for (key, value) in changed {
        let other = OTHER_NAMES.into_iter().find_map(|(name, other)| (name == key).then_some(other));
        match other.and_then(|other| config.get_mut(other)) {
            Some(under_other) => {
                *under_other = value.clone();
                config.entry(key).and_modify(|own| *own = value);
            }
            None => {
                config.insert(key, value);
            }
        }
    }
}
