//! Options that follow others unless set: the tokenizer that of the model that training starts from, the size of the
//! vocabulary that of the tokenizer.

use std::path::Path;

use common::UserError;
use common::format::bytes;
use data::{Missing, Tokenizer, forms, vocabulary};
use toml::Value;

use trainer::config::{ConfigSources, ModelKind};

/// Sets the options that follow others, and returns a line about each option. `folders` may have the tokenizer of the
/// model that training starts from; the first that has one counts.
///
/// # Errors
/// A tokenizer or a path of data that cannot be read.
pub(super) fn follow(sources: &mut ConfigSources, folders: &[&Path]) -> Result<Vec<String>, UserError> {
    let data = sources.resolve().data;
    // What is not here yet is looked at on the machine that has it.
    let is_here = data.tokenizer == "byte" || Path::new(&data.tokenizer).exists();
    if data.path.is_none() || Missing::of(&data).is_some() || !is_here {
        return Ok(Vec::new());
    }
    let mut notices = Vec::new();
    let with_tokenizer = folders.iter().find(|folder| Tokenizer::is_in(folder));
    if let (Some(folder), false, (true, _)) = (with_tokenizer, sources.is_set("data.tokenizer"), forms(&data)) {
        let folder = folder.display().to_string();
        notices.push(format!(
            "data.tokenizer = {folder}: the tokenizer of the model that training starts from (--tokenizer)"
        ));
        sources.start_from([("data.tokenizer", Value::String(folder))]);
    }
    let config = sources.resolve();
    // New tokens need rows in a model that training starts from, too.
    let adds = config.data.add_special_tokens && !sources.given().contains("model.vocab");
    if config.model.kind == ModelKind::Gpt
        && (adds || !sources.is_set("model.vocab"))
        && let Some((rows, whose)) = vocabulary(&config.data)?
        && (rows > config.model.vocab || (rows < config.model.vocab && !sources.is_set("model.vocab")))
    {
        let table = bytes(rows.saturating_mul(config.model.hidden).saturating_mul(size_of::<f32>()));
        notices.push(format!(
            "model.vocab = {rows}: the tokens of {whose}. The table of tokens has so many rows, {table} in f32 (--vocab)"
        ));
        sources.start_from([("model.vocab", Value::Integer(rows as i64))]);
    }
    Ok(notices)
}
