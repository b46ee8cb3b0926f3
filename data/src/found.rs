//! From a path of data to the path's files: token files, or files of text.

use std::path::{Path, PathBuf};

use common::UserError;

use crate::file_notices::Told;
use crate::splits::{Chosen, Purpose};
use crate::text::files::{Records, TextFile, beside_tokens, text_files};

/// The files that a path names.
pub(crate) enum Found {
    /// `.bin` files.
    Tokens(Chosen<PathBuf>),
    /// Files of text.
    Text(Chosen<TextFile>),
}

/// The paths, with each pattern such as `data/*.jsonl` replaced by the pattern's matches in sorted order, for patterns
/// that no shell has expanded. A path that exists is no pattern. If both files of a Megatron dataset match, the index is
/// left out.
///
/// # Errors
/// A pattern that matches nothing, or is none; a folder that cannot be read.
pub(crate) fn expanded(key: &str, paths: &[&str]) -> Result<Vec<String>, UserError> {
    let is_there = |path: &str| Path::new(path).exists() || Path::new(&format!("{path}.bin")).exists();
    let mut all = Vec::new();
    for path in paths {
        if !path.contains(['*', '?', '[']) || is_there(path) {
            all.push(path.to_string());
            continue;
        }
        let refuse = |problem: String| {
            let what = format!("{key} = `{path}`{problem}");
            UserError::new(what, "a path with *, ? or [ is a pattern of paths that exist", "check the path")
        };
        let found = glob::glob(path).map_err(|error| refuse(format!(" is no pattern: {error}")))?;
        let found: Vec<PathBuf> =
            found.collect::<Result<_, _>>().map_err(|error| refuse(format!(" cannot be read: {error}")))?;
        if found.is_empty() {
            return Err(refuse(" matches nothing".into()));
        }
        let is_index = |path: &PathBuf| {
            path.extension().is_some_and(|extension| extension == "idx") && found.contains(&path.with_extension("bin"))
        };
        all.extend(found.iter().filter(|path| !is_index(path)).map(|path| path.display().to_string()));
    }
    Ok(all)
}

/// A file, a folder of `.bin` files, a folder of text, or a Megatron prefix: `NAME` for `NAME.bin` and `NAME.idx`. Text has
/// these `records`. `key` is the option that has the name.
///
/// # Errors
/// A path that cannot be read, or has no data for the purpose.
pub(crate) fn found(key: &str, name: &str, records: Records<'_>, purpose: Purpose) -> Result<Found, UserError> {
    let path = Path::new(name);
    let is = |extension: &str| path.extension().is_some_and(|found| found == extension);
    let prefixed = PathBuf::from(format!("{name}.bin"));
    if !path.exists() && prefixed.exists() && prefixed.with_extension("idx").exists() {
        return Ok(Found::Tokens(Chosen::named(prefixed)));
    }
    if is("idx") {
        return Ok(Found::Tokens(Chosen::named(path.with_extension("bin"))));
    }
    let what = format!("{key} = `{name}`");
    let unreadable = |error: std::io::Error| unreadable(&what, &error);
    if is("bin") {
        std::fs::metadata(path).map_err(unreadable)?;
        return Ok(Found::Tokens(Chosen::named(path.into())));
    }
    if path.is_dir() {
        let entries = std::fs::read_dir(path).and_then(Iterator::collect::<Result<Vec<_>, _>>).map_err(unreadable)?;
        let bin = |path: &PathBuf| path.is_file() && path.extension().is_some_and(|found| found == "bin");
        let mut bins: Vec<PathBuf> = entries.iter().map(std::fs::DirEntry::path).filter(bin).collect();
        if !bins.is_empty() {
            bins.sort();
            let mut chosen = Chosen::of_folder(&what, path, bins, purpose)?;
            chosen.notices.add(Told::BesideTokens, beside_tokens(path).map_err(unreadable)?);
            return Ok(Found::Tokens(chosen));
        }
    }
    text_files(&what, path, records, purpose).map(Found::Text)
}

/// The error for data that cannot be read.
pub(crate) fn unreadable(what: &str, error: &std::io::Error) -> UserError {
    UserError::new(format!("{what} cannot be read: {error}"), "it names files or folders of data", "check the path")
}
