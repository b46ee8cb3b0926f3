//! The regular expressions of a tokenizer.json.

use fancy_regex::Regex;
use tokenizers::pattern::Pattern;
use tokenizers::{Offsets, Result};

/// A regular expression. It fails if its engine gives up. The library's own expressions then end the search in silence,
/// as if the rest of the text had no match. The engine gives up after a million steps back, for instance within a run
/// of a million spaces.
pub(crate) struct Expression(Regex);

impl Expression {
    /// Compiles an expression.
    ///
    /// # Errors
    /// The mistake in the expression.
    pub(crate) fn new(source: &str) -> std::result::Result<Expression, String> {
        Regex::new(source).map(Expression).map_err(|error| error.to_string())
    }
}

impl Pattern for &Expression {
    fn find_matches(&self, inside: &str) -> Result<Vec<(Offsets, bool)>> {
        (&self.0).find_matches(inside).map_err(|error| {
            format!("its regular expression gives up in a text of {} bytes: {error}", inside.len()).into()
        })
    }
}
