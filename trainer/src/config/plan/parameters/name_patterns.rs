//! Patterns of parameter names, in options.

use std::collections::BTreeSet;

use common::{UserError, nearest};
use glob::Pattern;

/// The names among `all` that match a pattern of the option `key`: `*`, `?` and `[ ]` as in a shell, and `*` matches
/// dots too. `rest` is the text after a name in the option's list. It is empty if the list has patterns alone.
///
/// # Errors
/// A wrong pattern; a pattern that matches nothing.
pub(crate) fn matching<'n>(
    key: &str,
    pattern: &str,
    rest: &str,
    all: &'n [String],
) -> Result<impl Iterator<Item = &'n String> + use<'n>, UserError> {
    let compiled = Pattern::new(pattern).map_err(|error| {
        UserError::new(
            format!("{key} = {:?}: {error}", format!("{pattern}{rest}")),
            "a pattern has *, ? and [ ] as in a shell",
            format!("for example {key} = [\"h.[0-3].*{rest}\"]"),
        )
    })?;
    if !all.iter().any(|name| compiled.matches(name)) {
        return Err(matches_nothing(key, pattern, rest, all));
    }
    Ok(all.iter().filter(move |name| compiled.matches(name)))
}

/// The error for a pattern without a match, with parameters of similar names.
fn matches_nothing(key: &str, pattern: &str, rest: &str, all: &[String]) -> UserError {
    let plain: String = pattern.chars().filter(|c| !"*?[]".contains(*c)).collect();
    // Without a similar name, one that begins alike.
    let alike = |name: &&String| name.bytes().zip(plain.bytes()).take_while(|(a, b)| a == b).count();
    let begins = all.iter().max_by_key(alike).map_or("", String::as_str);
    let near = nearest(&plain, all.iter().map(String::as_str)).unwrap_or(begins);
    let parts: BTreeSet<&str> = all.iter().map(|name| name.split('.').next().unwrap_or(name)).collect();
    let parts: Vec<&str> = parts.into_iter().collect();
    UserError::new(
        format!("{key} = {pattern:?} matches no parameter"),
        format!("names are such as {near}; they begin with {}", parts.join(", ")),
        format!("for example {key} = [\"{near}{rest}\"]"),
    )
}
