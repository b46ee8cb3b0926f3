//! The files of text that a path names: the path itself, or what of a folder is text.

use std::path::{Path, PathBuf};

use common::UserError;
use common::format::counted;

use crate::formats::data_file::DataFile;
use crate::text::text_bytes::cannot_be_read;
use crate::text::text_file::holds_records;

/// A file of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TextFile {
    /// Its path.
    pub(crate) path: PathBuf,
    /// The user named its folder, not the file: it is left out if it is not UTF-8.
    pub(crate) in_folder: bool,
}

/// Files of folders that are not read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeftOut {
    /// They are not text.
    pub(crate) not_text: Vec<PathBuf>,
    /// They are text, and other files of the folder have records: descriptions, licences.
    pub(crate) beside_records: Vec<PathBuf>,
}

impl LeftOut {
    /// Adds other files.
    pub(crate) fn extend(&mut self, other: LeftOut) {
        self.not_text.extend(other.not_text);
        self.beside_records.extend(other.beside_records);
    }

    /// A line for each reason that names files.
    pub(crate) fn notices(self) -> Vec<String> {
        const NAMED: usize = 3;
        let notice = |mut files: Vec<PathBuf>, why: &str| {
            files.sort();
            files.dedup();
            let named: Vec<String> = files.iter().take(NAMED).map(|path| path.display().to_string()).collect();
            let more = match files.len().saturating_sub(NAMED) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let count = counted(files.len(), "file");
            (!files.is_empty()).then(|| format!("{count} left out, because {why}: {}{more}", named.join(", ")))
        };
        let lines = [
            notice(self.not_text, "neither UTF-8 text nor JSON lines"),
            notice(self.beside_records, "their folder has JSON lines or Parquet files, and these are not"),
        ];
        lines.into_iter().flatten().collect()
    }
}

/// The file at `path`, or the files in that folder and the folders inside it, sorted by name. Hidden ones are not read. If a
/// file of the folder has records, JSON lines with text under `key` or Parquet, then only such files are.
///
/// # Errors
/// What cannot be read, and a folder with a model. `what` is what messages call the path.
pub(crate) fn text_files(what: &str, path: &Path, key: &str) -> Result<(Vec<TextFile>, LeftOut), UserError> {
    let unreadable = |error: std::io::Error| {
        let what = format!("{what} cannot be read: {error}");
        UserError::new(what, "it names files or folders of data", "check the path")
    };
    let mut left_out = LeftOut::default();
    if !path.is_dir() {
        std::fs::metadata(path).map_err(unreadable)?;
        return Ok((vec![TextFile { path: path.into(), in_folder: false }], left_out));
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
        holds_records(path, &file, key)
    };
    let records: Vec<bool> = files.iter().map(has_records).collect::<Result<_, _>>()?;
    if records.contains(&true) {
        let mut is_record = records.iter();
        let (with, without) = files.into_iter().partition(|_| is_record.next() == Some(&true));
        (files, left_out.beside_records) = (with, without);
    }
    Ok((files.into_iter().map(|path| TextFile { path, in_folder: true }).collect(), left_out))
}

/// The files of a folder, which is `top` or inside it.
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
            let (files, left_out) = text_files("x", folder.path(), key).unwrap();
            (names(files.into_iter().map(|file| file.path).collect()), names(left_out.beside_records))
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
        let (records, others) = (vec!["data/lines.txt".to_string()], vec!["README.md".into(), "info.json".into()]);
        assert_eq!(listed("body"), (records, others));
        std::fs::write(at("data/more.jsonl"), "").unwrap();
        assert_eq!(listed("text").0, ["data/more.jsonl"]);
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
            let problem = text_files("data.path = `x`", path, "text").unwrap_err().to_string();
            assert!(
                problem.contains("data.path = `x` has ") && problem.contains("the weights of a model"),
                "{problem}"
            );
            assert!(problem.contains("--init-from"), "{problem}");
        }
    }
}
