//! The chat templates that are built in, for models that ship none. They mark the answers.

use crate::text::tokenizer::Tokenizer;

/// A template that is built in.
pub(crate) struct BuiltIn {
    /// The template's name for `--chat-template`.
    pub(crate) name: &'static str,
    /// A token that tokenizers of the template's family have.
    pub(crate) token: &'static str,
    /// The tokens around the family's messages. Mistral's are text in its first models.
    pub(crate) markers: &'static [&'static str],
    /// The template.
    pub(crate) source: &'static str,
}

/// All built-in templates.
pub(crate) const BUILT_IN: [BuiltIn; 4] = [
    BuiltIn {
        name: "chatml",
        token: "<|im_start|>",
        markers: &["<|im_start|>", "<|im_end|>"],
        source: include_str!("templates/chatml.jinja"),
    },
    BuiltIn {
        name: "llama3",
        token: "<|start_header_id|>",
        markers: &["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        source: include_str!("templates/llama3.jinja"),
    },
    BuiltIn {
        name: "gemma",
        token: "<start_of_turn>",
        markers: &["<start_of_turn>", "<end_of_turn>"],
        source: include_str!("templates/gemma.jinja"),
    },
    BuiltIn { name: "mistral", token: "[INST]", markers: &[], source: include_str!("templates/mistral.jinja") },
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

    /// The template with that text.
    pub(crate) fn of_source(source: &str) -> Option<&'static BuiltIn> {
        BUILT_IN.iter().find(|built_in| built_in.source == source)
    }

    /// All names.
    pub(crate) fn names() -> String {
        BUILT_IN.map(|built_in| built_in.name).join(", ")
    }
}
