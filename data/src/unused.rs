//! Data options that have no effect on the run.

use common::UserError;

use crate::config::{DataConfig, RawTokens};

/// Fails if an option is set that would be ignored: an MLP (`mlp`) reads no data, and without `data.path` no files are read.
///
/// # Errors
/// Names the first such option.
pub fn refuse_unused(data: &DataConfig, mlp: bool) -> Result<(), UserError> {
    let (with, rule, fix) = match (mlp, &data.path) {
        (true, _) => (
            "with model.kind = \"mlp\"",
            "an MLP trains on generated data",
            "leave it out, or set model.kind = \"gpt\"",
        ),
        (_, None) => (
            "without data.path",
            "it says how the files of data.path are read",
            "set data.path (--data-path), or leave it out",
        ),
        _ => return Ok(()),
    };
    let about_files = [
        ("data.path", data.path.is_some()),
        ("data.validation_path", data.validation_path.is_some()),
        ("data.validation_sets", !data.validation_sets.is_empty()),
        ("data.tokenizer", data.tokenizer != "byte"),
        ("data.end_of_text", data.end_of_text.is_some()),
        ("data.text_key", data.text_key != "text"),
        ("data.raw_tokens", data.raw_tokens != RawTokens::None),
    ];
    match about_files.iter().find(|(_, given)| *given) {
        Some((key, _)) => Err(UserError::new(format!("{key} {with}"), rule, fix)),
        None => Ok(()),
    }
}
