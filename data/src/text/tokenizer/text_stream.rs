//! From tokens to text, one token at a time. A character that needs several tokens is held back until it is complete.

use crate::text::tokenizer::Tokenizer;

/// Decodes tokens that arrive one by one.
pub struct TextStream<'t> {
    tokenizer: &'t Tokenizer,
    /// Tokens that are decoded again with the next one: their text may still change.
    held: Vec<u32>,
    /// Bytes of the held tokens' text that were returned before.
    returned: usize,
}

/// Tokens that stay as context when the text before is complete: some tokenizers drop the space at the beginning of a
/// text.
const CONTEXT: usize = 4;

impl<'t> TextStream<'t> {
    /// A stream without tokens.
    pub fn new(tokenizer: &'t Tokenizer) -> TextStream<'t> {
        TextStream { tokenizer, held: Vec::new(), returned: 0 }
    }

    /// A stream after `tokens`. Their text was shown. They count, because a tokenizer may put a space between them and
    /// the next token.
    pub fn after(tokenizer: &'t Tokenizer, tokens: &[u32]) -> TextStream<'t> {
        // With fewer, the first of them may be half of a character.
        let held = tokens[tokens.len().saturating_sub(2 * CONTEXT)..].to_vec();
        let returned = tokenizer.decode(&held).len();
        TextStream { tokenizer, held, returned }
    }

    /// The text that one more token completes; empty while a character is incomplete.
    pub fn push(&mut self, token: u32) -> String {
        self.held.push(token);
        let text = self.tokenizer.decode(&self.held);
        if text.ends_with('\u{fffd}') || text.len() <= self.returned {
            return String::new();
        }
        let added = text.get(self.returned..).unwrap_or_default().to_string();
        let first = self.held.len().saturating_sub(CONTEXT);
        let rest = self.tokenizer.decode(&self.held[first..]);
        // Fewer tokens are kept only if they decode to the same end.
        if text.ends_with(&rest) && !rest.starts_with('\u{fffd}') {
            self.held.drain(..first);
            self.returned = rest.len();
        } else {
            self.returned = text.len();
        }
        added
    }

    /// The text that was held back: incomplete characters become replacement characters.
    pub fn finish(self) -> String {
        let text = self.tokenizer.decode(&self.held);
        text.get(self.returned..).unwrap_or_default().to_string()
    }
}
