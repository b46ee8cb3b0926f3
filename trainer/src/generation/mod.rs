//! Text of a model: [`Generator`] runs it through two graphs, and [`Sampler`] chooses tokens.

mod generator;
mod sampler;

use common::UserError;
use common::format::counted;
use data::Tokenizer;
use engine::model::GptShape;

pub use generator::{Generator, longest_prompt};
pub use sampler::Sampler;

/// The tokens of a prompt, which the tokenizer `encoded`, checked to fit the model. An empty prompt has the token that
/// ends the document before.
///
/// # Errors
/// A text that the tokenizer refuses, tokens that the model does not have, or more tokens than fit its context.
pub fn prompt_tokens(
    tokenizer: &Tokenizer,
    shape: &GptShape,
    encoded: Result<Vec<u32>, String>,
) -> Result<Vec<i32>, UserError> {
    let mut tokens = encoded.map_err(|error| {
        UserError::new(format!("the prompt cannot be tokenised: {error}"), "a prompt is text", "give another prompt")
    })?;
    if tokens.is_empty() {
        tokens.push(tokenizer.end_of_text());
    }
    let (count, seq) = (tokens.len(), shape.max_seq_len);
    if count > seq {
        return Err(UserError::new(
            format!("the prompt has {count} tokens"),
            format!("a prompt fits the model's context of {}", counted(seq, "token")),
            "shorten it, or use a model with a larger model.seq_length",
        ));
    }
    if let Some(token) = tokens.iter().find(|&&token| token as usize >= shape.vocab) {
        return Err(UserError::new(
            format!("the prompt has token {token}"),
            format!("the model's tokens are 0 to {}", shape.vocab - 1),
            "name the tokenizer that the model was trained with: --tokenizer",
        ));
    }
    Ok(tokens.into_iter().map(|token| token as i32).collect())
}
