//! The files of text that a path names: the file itself, or the text files of a folder.

use std::path::{Path, PathBuf};

use common::UserError;

use super::records::Records;
use super::text_bytes::cannot_be_read;
use super::text_file::{has_extension, holds_records};
use crate::file_notices::Told;
use crate::formats::data_file::DataFile;
use crate::splits::{Chosen, Purpose};

/// A file of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TextFile {
    /// The file's path.
    pub(crate) path: PathBuf,
    /// Whether the user named the file's folder, not the file: it is left out if it is not UTF-8.
    pub(crate) in_folder: bool,
}

/// The file at `path`, or the files in that folder and in inner folders, sorted by name. Hidden ones are not read. If a
/// file of the folder has such records, only files with records are read, and if they are documents, texts by their name
/// too. If files are named as training, validation or test data, those for the purpose are chosen.
///
/// # Errors
/// A path that cannot be read, a folder with a model, a folder without files for the purpose. `what` stands for the
/// path in messages.
pub(crate) fn text_files(
    what: &str,
    path: &Path,
    records: Records<'_>,
    purpose: Purpose,
) -> Result<Chosen<TextFile>, UserError> {
    let unreadable = |error: std::io::Error| {
        let what = format!("{what} cannot be read: {error}");
        UserError::new(what, "it names files or folders of data", "check the path")
    };
    if !path.is_dir() {
        std::fs::metadata(path).map_err(unreadable)?;
        return Ok(Chosen::named(TextFile { path: path.into(), in_folder: false }));
    }
    let mut files = files_within(path, path).map_err(unreadable)?;
    if let Some(weights) = files.iter().find(|path| path.extension().is_some_and(|found| found == "safetensors")) {
        return Err(UserError::new(
            format!("{what} has {}, the weights of a model", weights.display()),
            "data are text or tokens",
            "continue a run with --resume, start from a model with --init-from, and name a folder of data here",
        ));
    }
    let has_records = |path: &PathBuf| {
        let file = DataFile::open(path).map_err(|error| cannot_be_read(path, &error.to_string()))?;
        holds_records(path, &file, records)
    };
    let is_record: Vec<bool> = files.iter().map(has_records).collect::<Result<_, _>>()?;
    let mut beside_records = Vec::new();
    if is_record.contains(&true) {
        let mut is_record = is_record.iter();
        let reads_text = matches!(records, Records::Documents(_));
        (files, beside_records) = files
            .into_iter()
            .partition(|path| is_record.next() == Some(&true) || reads_text && has_extension(path, &["txt", "text"]));
    }
    let mut chosen = Chosen::of_folder(what, path, files, purpose)?;
    chosen.notices.add(Told::BesideRecords, beside_records);
    Ok(chosen.map(|path| TextFile { path, in_folder: true }))
}

/// The files of a folder of token files that are text or records by name, and are not read. Tokenizers have texts of
/// their own.
pub(crate) fn beside_tokens(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = files_within(path, path)?;
    let is_of_tokenizer =
        |path: &Path| path.file_name().is_some_and(|name| name == "merges.txt" || name == "vocab.txt");
    files.retain(|path| has_extension(path, &["txt", "text", "jsonl", "ndjson", "parquet"]) && !is_of_tokenizer(path));
    Ok(files)
}

/// The files of folder `path`: it is `top` or inside it.
fn files_within(top: &Path, path: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let entries = std::fs::read_dir(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let mut entries = entries.map_err(|error| match path == top {
        true => error,
        false => std::io::Error::new(error.kind(), format!("{}: {error}", path.display())),
    })?;
    entries.retain(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."));
    entries.sort_by_key(|entry| entry.file_name());
    for entry in entries {
        let path = entry.path();
        if path.is_dir() && !entry.file_type()?.is_symlink() {
            files.extend(files_within(top, &path)?);
        } else if path.is_file() {
            files.push(path);
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_folder_with_records_nothing_else_is_read_and_hidden_files_never_are() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let names = |files: Vec<PathBuf>| -> Vec<String> {
            files.iter().map(|path| path.strip_prefix(folder.path()).unwrap().display().to_string()).collect()
        };
        let listed = |key: &str| {
            let chosen = text_files("x", folder.path(), Records::Documents(key), Purpose::TrainAndValidate).unwrap();
            (names(chosen.files.into_iter().map(|file| file.path).collect()), chosen.notices.lines())
        };
        std::fs::create_dir_all(at(".cache")).unwrap();
        std::fs::create_dir_all(at("data")).unwrap();
        for (name, text) in [
            (".gitattributes", "words"),
            (".cache/x.jsonl", "{\"text\": \"a\"}"),
            ("README.md", "words"),
            ("data/lines.txt", "{\"body\": \"a\"}\n"),
            ("info.json", "{\"default\": 1}"),
        ] {
            std::fs::write(at(name), text).unwrap();
        }
        let all = ["README.md", "data/lines.txt", "info.json"].map(String::from).to_vec();
        assert_eq!(listed("text"), (all, vec![]));
        let (records, notices) = listed("body");
        assert_eq!(records, ["data/lines.txt"]);
        assert!(notices.len() == 1 && notices[0].starts_with("2 files left out, because their folder has JSON lines"));
        assert!(notices[0].contains("README.md") && notices[0].contains("info.json"), "{notices:?}");
        std::fs::write(at("data/more.jsonl"), "").unwrap();
        // A file of text is a document, beside records of documents too.
        assert_eq!(listed("text").0, ["data/lines.txt", "data/more.jsonl"]);
        let chats = text_files("x", folder.path(), Records::Conversations, Purpose::Train).unwrap();
        assert_eq!(names(chats.files.into_iter().map(|file| file.path).collect()), ["data/more.jsonl"]);
    }

    #[test]
    fn a_folder_of_checkpoints_is_no_data() {
        let folder = tempfile::tempdir().unwrap();
        let step = folder.path().join("step-00000010");
        std::fs::create_dir(&step).unwrap();
        for name in ["config.toml", "manifest.json", "model.safetensors"] {
            std::fs::write(step.join(name), "words").unwrap();
        }
        for path in [folder.path(), &step] {
            let records = Records::Documents("text");
            let problem = text_files("data.path = `x`", path, records, Purpose::Train).unwrap_err().to_string();
            assert!(
                problem.contains("data.path = `x` has ") && problem.contains("the weights of a model"),
                "{problem}"
            );
            assert!(problem.contains("--init-from"), "{problem}");
        }
    }
}
