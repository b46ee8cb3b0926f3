//! Words of messages.

/// A number of things, in the singular for one: `1 graph`, `2 graphs`.
pub(crate) fn counted(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}
