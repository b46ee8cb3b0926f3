//! Data options that have no effect on the run.

use common::UserError;

use crate::config::{DataConfig, RawTokens, RecordKind};

/// Fails if an option is set that the run would ignore: an MLP (`mlp`) reads no data, and without `data.path` no files
/// are read.
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
        _ => return refuse_mixed(data),
    };
    let about_files = [
        ("data.path", data.path.is_some()),
        ("data.validation_path", data.validation_path.is_some()),
        ("data.validation_sets", !data.validation_sets.is_empty()),
        ("data.tokenizer", data.tokenizer != "byte"),
        ("data.end_of_text", data.end_of_text.is_some()),
        ("data.text_key", data.text_key != "text"),
        ("data.reset_attention_mask", data.reset_attention_mask),
        ("data.reset_position_ids", data.reset_position_ids),
        ("data.eod_mask_loss", data.eod_mask_loss),
        ("data.documents_per_sample", data.documents_per_sample != 256),
        ("data.sft", data.sft),
        ("data.dpo", data.dpo),
        ("data.kto", data.kto),
        ("data.sft_packing", data.sft_packing != 1),
        ("data.seq_length_buckets", !data.seq_length_buckets.is_empty()),
        ("data.group_by_length", data.group_by_length),
        ("data.chat_template", data.chat_template.is_some()),
        ("data.add_special_tokens", data.add_special_tokens),
        ("data.raw_tokens", data.raw_tokens != RawTokens::None),
    ];
    match about_files.iter().find(|(_, given)| *given) {
        Some((key, _)) => Err(UserError::new(format!("{key} {with}"), rule, fix)),
        None => Ok(()),
    }
}

/// Fails if an option of conversations is set for text, or one of text for conversations.
fn refuse_mixed(data: &DataConfig) -> Result<(), UserError> {
    let needs_answers = [
        ("data.chat_template", data.chat_template.is_some(), "a chat template makes text of conversations"),
        ("data.add_special_tokens", data.add_special_tokens, "it adds the markers of a chat template to the tokenizer"),
        ("data.sft_packing", data.sft_packing != 1, "conversations are packed into samples"),
    ];
    let answers = data.kind().option();
    if data.kind() == RecordKind::Documents {
        let given = needs_answers.into_iter().find(|(_, given, _)| *given);
        return given.map_or(Ok(()), |(key, _, rule)| {
            let fix = "add --sft to train on conversations, or leave it out";
            Err(UserError::new(format!("{key} without data.sft"), rule, fix))
        });
    }
    let kinds = [("sft", data.sft), ("dpo", data.dpo), ("kto", data.kto)];
    if let [first, second, ..] = kinds.iter().filter(|(_, given)| *given).collect::<Vec<_>>()[..] {
        let (first, second) = (first.0, second.0);
        let rule = "data.path has conversations to learn from, pairs of answers of which one is preferred, or answers with a label";
        let fix = format!("leave one of them out: --{first} or --{second}");
        return Err(UserError::new(format!("data.{first} with data.{second}"), rule, fix));
    }
    let out = format!("leave it out, or leave --{answers} out");
    if let Some(key) = data.divides() {
        let rule = "a conversation is one document: packed ones have attention and positions of their own";
        return Err(UserError::new(format!("{key} with data.{answers}"), rule, out));
    }
    let of_text = [("data.text_key", data.text_key != "text"), ("data.raw_tokens", data.raw_tokens != RawTokens::None)];
    match of_text.iter().find(|(_, given)| *given) {
        Some((key, _)) => {
            let rule = "conversations are JSON lines with `messages`";
            Err(UserError::new(format!("{key} with data.{answers}"), rule, out))
        }
        None => Ok(()),
    }
}
