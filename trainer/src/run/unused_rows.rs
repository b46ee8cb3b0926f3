//! Rows of the table of tokens that no token of the data reaches.

use common::format::bytes;
use engine::model::GptShape;

/// Fewer rows than this are padding to a multiple, as is usual.
const PADDING: usize = 128;

/// A line if the model has far more tokens than the `tokens` of the tokenizer of `name`: by more than a sixteenth of
/// them.
pub(super) fn notice(name: &str, tokens: usize, shape: &GptShape) -> Option<String> {
    let rows = shape.vocab.saturating_sub(tokens);
    if rows < PADDING || rows <= tokens / 16 {
        return None;
    }
    let tables = if shape.tied { 1 } else { 2 };
    let weights = rows * shape.hidden * tables * shape.precision.activations().size();
    let tables = if shape.tied { "the table of tokens" } else { "the table of tokens, and of the head," };
    Some(format!(
        "the tokenizer of {name} has {tokens} tokens, and model.vocab = {}: {rows} rows of {tables} are never used, {} of \
         weights. Name the model's tokenizer with --tokenizer, or set --vocab {tokens}",
        shape.vocab,
        bytes(weights)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigSources;
    use crate::config::plan::{ModelPlan, RunPlan};

    #[test]
    fn rows_far_above_the_tokenizers_vocabulary_are_said_with_their_bytes_and_padding_is_not() {
        let told = |vocab: usize, tokens: usize, tied: &str| {
            let mut sources = ConfigSources::default();
            for (key, value) in [("model.vocab", vocab.to_string()), ("model.tie_embeddings", tied.into())] {
                sources.set(key, &value, "test").unwrap();
            }
            let ModelPlan::Gpt(shape) = RunPlan::new(sources.resolve(), 1).unwrap().model else { panic!("a gpt") };
            (notice("data.path", tokens, &shape), shape.hidden)
        };
        let (line, hidden) = told(128_256, 256, "true");
        let line = line.unwrap();
        assert!(
            line.contains("has 256 tokens, and model.vocab = 128256: 128000 rows of the table of tokens are"),
            "{line}"
        );
        assert!(line.contains(&format!("never used, {} of weights", bytes(128_000 * hidden * 4))), "{line}");
        assert!(told(128_256, 256, "false").0.unwrap().contains(&bytes(2 * 128_000 * hidden * 4)));
        // GPT-2, Phi-1.5, Qwen2.5-7B and a table padded to a multiple of 128.
        for (vocab, tokens) in [(50_304, 50_257), (51_200, 50_295), (152_064, 151_665), (384, 257), (256, 256)] {
            assert_eq!(told(vocab, tokens, "true").0, None, "{vocab} {tokens}");
        }
    }
}
