//! The documents, the help and the recipes are true.

mod completions;
mod configs;
mod container;
pub mod documents;
mod guides;
mod shown_output;
mod walks;
