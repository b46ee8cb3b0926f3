//! The `[data]` section of a configuration.

use serde::{Deserialize, Serialize};

use crate::paths::Paths;

/// The `[data]` section. See `trainer options` for the meaning of each key.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the option table documents every field")]
// `seq_length_buckets` and `group_by_length` are the trainer's: see `TokenSource::grouped_by_length`.
pub struct DataConfig {
    pub path: Option<Paths>,
    pub validation_path: Option<Paths>,
    pub validation_sets: Vec<String>,
    pub tokenizer: String,
    pub end_of_text: Option<String>,
    pub text_key: String,
    pub reset_attention_mask: bool,
    pub reset_position_ids: bool,
    pub eod_mask_loss: bool,
    pub documents_per_sample: usize,
    pub sft: bool,
    pub dpo: bool,
    pub kto: bool,
    pub sft_packing: usize,
    pub seq_length_buckets: Vec<usize>,
    pub group_by_length: bool,
    pub chat_template: Option<String>,
    pub add_special_tokens: bool,
    pub raw_tokens: RawTokens,
    pub split: f64,
    pub seed: u64,
}

common::choice! {
    /// What the records of text are, with the word for one in messages.
    pub enum RecordKind {
        /// Documents: every token is learned.
        Documents = "document",
        /// Conversations: answers are learned.
        Conversations = "conversation",
        /// Pairs of answers: the model learns to prefer the chosen one.
        Pairs = "pair",
        /// Answers with a label: the model learns to give those that are desirable, and not to give others.
        Labelled = "answer",
    }
}

impl RecordKind {
    /// Whether the model learns from judged answers, compared with the reference model.
    pub fn is_judged(self) -> bool {
        matches!(self, RecordKind::Pairs | RecordKind::Labelled)
    }

    /// The option that says that records are of this kind, without dashes; that of conversations for documents.
    pub fn option(self) -> &'static str {
        match self {
            RecordKind::Documents | RecordKind::Conversations => "sft",
            RecordKind::Pairs => "dpo",
            RecordKind::Labelled => "kto",
        }
    }
}

impl DataConfig {
    /// What the records of text are.
    pub fn kind(&self) -> RecordKind {
        match () {
            () if self.dpo => RecordKind::Pairs,
            () if self.kto => RecordKind::Labelled,
            () if self.sft => RecordKind::Conversations,
            () => RecordKind::Documents,
        }
    }

    /// The first set option about documents within samples of text.
    pub fn divides(&self) -> Option<&'static str> {
        let all = [
            ("data.reset_attention_mask", self.reset_attention_mask),
            ("data.reset_position_ids", self.reset_position_ids),
            ("data.eod_mask_loss", self.eod_mask_loss),
        ];
        all.into_iter().find_map(|(key, is_set)| is_set.then_some(key))
    }
}

common::choice! {
    /// The content of a `.bin` file without a header or an index.
    pub enum RawTokens {
        /// Such files are refused.
        None = "none",
        /// 16-bit tokens, in nanoGPT's form.
        U16 = "u16",
        /// 32-bit tokens.
        U32 = "u32",
    }
}

#[cfg(test)]
impl DataConfig {
    /// The defaults of the section, for tests of this crate.
    pub(crate) fn for_tests() -> DataConfig {
        DataConfig {
            path: None,
            validation_path: None,
            validation_sets: Vec::new(),
            tokenizer: "byte".into(),
            end_of_text: None,
            text_key: "text".into(),
            reset_attention_mask: false,
            reset_position_ids: false,
            eod_mask_loss: false,
            documents_per_sample: 256,
            sft: false,
            dpo: false,
            kto: false,
            sft_packing: 1,
            seq_length_buckets: Vec::new(),
            group_by_length: false,
            chat_template: None,
            add_special_tokens: false,
            raw_tokens: RawTokens::None,
            split: 1.0,
            seed: 1,
        }
    }
}
