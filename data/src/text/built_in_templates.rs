//! The chat templates that are built in, for models that ship none. They mark the answers.

use crate::text::tokenizer::Tokenizer;

/// A template that is built in.
pub(crate) struct BuiltIn {
    /// Its name for `--chat-template`.
    pub(crate) name: &'static str,
    /// A token that tokenizers of its family have.
    pub(crate) token: &'static str,
    /// The template.
    pub(crate) source: &'static str,
}

/// All of them.
pub(crate) const BUILT_IN: [BuiltIn; 4] = [
    BuiltIn { name: "chatml", token: "<|im_start|>", source: include_str!("templates/chatml.jinja") },
    BuiltIn { name: "llama3", token: "<|start_header_id|>", source: include_str!("templates/llama3.jinja") },
    BuiltIn { name: "gemma", token: "<start_of_turn>", source: include_str!("templates/gemma.jinja") },
    BuiltIn { name: "mistral", token: "[INST]", source: include_str!("templates/mistral.jinja") },
];

impl BuiltIn {
    /// The template of that name.
    pub(crate) fn named(name: &str) -> Option<&'static BuiltIn> {
        BUILT_IN.iter().find(|built_in| built_in.name == name)
    }

    /// The template of the family that a tokenizer is made for.
    pub(crate) fn of(tokenizer: &Tokenizer) -> Option<&'static BuiltIn> {
        BUILT_IN.iter().find(|built_in| tokenizer.added_token(built_in.token).is_some())
    }

    /// All names.
    pub(crate) fn names() -> String {
        BUILT_IN.map(|built_in| built_in.name).join(", ")
    }
}
