//! From tokens to text, as they come: a character whose bytes are several tokens is held back until it is whole.

use super::Tokenizer;

/// The text of tokens that come one by one.
pub struct TextStream<'t> {
    tokenizer: &'t Tokenizer,
    /// Tokens whose text may still be changed by the next: those since the last character that was whole.
    held: Vec<u32>,
    /// How much of the held tokens' text was handed out.
    told: usize,
}

/// Tokens of a stretch that ended with a whole character; what comes after is decoded beside the last of them, because
/// some tokenizers drop the space at the beginning of a text.
const BESIDE: usize = 4;

impl<'t> TextStream<'t> {
    /// The text of no tokens yet.
    pub fn new(tokenizer: &'t Tokenizer) -> TextStream<'t> {
        TextStream { tokenizer, held: Vec::new(), told: 0 }
    }

    /// What one more token adds to the text, as far as it is certain.
    pub fn push(&mut self, token: u32) -> String {
        self.held.push(token);
        let text = self.tokenizer.decode(&self.held);
        if text.ends_with('\u{fffd}') || text.len() <= self.told {
            return String::new();
        }
        let added = text.get(self.told..).unwrap_or_default().to_string();
        let beside = self.held.len().saturating_sub(BESIDE);
        let rest = self.tokenizer.decode(&self.held[beside..]);
        // A shorter stretch is only gone on with if it has the same end.
        if text.ends_with(&rest) && !rest.starts_with('\u{fffd}') {
            self.held.drain(..beside);
            self.told = rest.len();
        } else {
            self.told = text.len();
        }
        added
    }

    /// What is left: bytes that never became a character, as replacement characters.
    pub fn finish(self) -> String {
        let text = self.tokenizer.decode(&self.held);
        text.get(self.told..).unwrap_or_default().to_string()
    }
}
