#![doc = include_str!("../README.md")]

mod config;
mod error;
mod formats;
mod identity;
mod interrupt;
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
pub use interrupt::ensure_not_interrupted;
pub use open::{JSON_KEY, forms, open};
pub use paths::{PathItem, Paths};
pub use prefetch::{BATCHES_IN_MEMORY, Prefetch};
pub use source::{Source, Split};
pub use sources::markov::MarkovSource;
pub use sources::missing::Missing;
pub use sources::regression::Regression;
pub use sources::token_source::TokenSource;
pub use text::text_stream::TextStream;
pub use text::tokenize::{TokenizeError, TokenizeRequest, tokenize};
pub use text::tokenizer::Tokenizer;
pub use unused::refuse_unused;
