#![doc = include_str!("../README.md")]

mod config;
mod error;
mod formats;
mod identity;
mod inspect;
mod interrupt;
mod one_tokenizer;
mod open;
mod paths;
mod prefetch;
mod random;
mod source;
mod sources;
mod text;
mod unused;

pub use config::{DataConfig, RawTokens};
pub use error::DataError;
pub use formats::llmc;
pub use formats::tokens::TokenType;
pub use identity::{Identities, Identity, changed};
pub use inspect::{InspectRequest, inspect};
pub use interrupt::ensure_not_interrupted;
pub use open::{forms, open};
pub use paths::{PathItem, Paths};
pub use prefetch::{BATCHES_IN_MEMORY, Prefetch};
pub use source::{Source, Split};
pub use sources::markov::MarkovSource;
pub use sources::missing::Missing;
pub use sources::regression::Regression;
pub use sources::token_source::TokenSource;
pub use text::chat_template::{ChatTemplate, TOKENIZER_CONFIG};
pub use text::text_stream::TextStream;
pub use text::tokenize::{TokenizeError, TokenizeRequest, tokenize};
pub use text::tokenizer::Tokenizer;
pub use text::tokenizer_copy::{TOKENIZER_JSON, TOKENS_JSON, TokenizerCopy};
pub use unused::refuse_unused;
