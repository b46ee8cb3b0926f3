//! Notices for the user about the files of folders: files that are left out, and files with a name that decides.

use std::collections::BTreeMap;
use std::path::PathBuf;

use common::format::counted;

/// A statement about files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Told {
    /// They are trained on, because their names say so.
    TrainedOn,
    /// They are trained on, because the user named each, and their names say that they are for validation or tests.
    TrainedOnAnyway,
    /// They are validated on, because their names say so.
    ValidatedOn,
    /// They are evaluated on, because their names say so.
    EvaluatedOn,
    /// They are training data, and the purpose is another.
    Train,
    /// They are validation data, and the purpose is another.
    Validation,
    /// They are test data.
    Test,
    /// Their folder has files with names of splits, and these have none.
    BesideSplits,
    /// They are not text.
    NotText,
    /// They are text, and other files of the folder have records: descriptions, licences.
    BesideRecords,
}

impl Told {
    /// The rest of a notice, after the number of files.
    fn words(self) -> &'static str {
        match self {
            Told::TrainedOn => "to train on, named as training data",
            Told::TrainedOnAnyway => {
                "to train on, because data.path names them, though named as validation or test data"
            }
            Told::ValidatedOn => "to validate on in place of data.split, named as validation data",
            Told::EvaluatedOn => "to evaluate on, named as validation data",
            Told::Train => "left out, named as training data",
            Told::Validation => "left out, named as validation data",
            Told::Test => "left out, named as test data",
            Told::BesideSplits => {
                "left out, beside files named as training data and as validation or test data (files that you name are read)"
            }
            Told::NotText => "left out, because neither UTF-8 text nor JSON lines",
            Told::BesideRecords => "left out, because their folder has JSON lines or Parquet files, and these are not",
        }
    }
}

/// Files, by the statement about them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileNotices(BTreeMap<Told, Vec<PathBuf>>);

impl FileNotices {
    /// Adds files.
    pub(crate) fn add(&mut self, told: Told, files: impl IntoIterator<Item = PathBuf>) {
        self.0.entry(told).or_default().extend(files);
    }

    /// Adds other notices.
    pub(crate) fn extend(&mut self, other: FileNotices) {
        other.0.into_iter().for_each(|(told, files)| self.add(told, files));
    }

    /// A line for each statement. It names some of the files.
    pub(crate) fn lines(self) -> Vec<String> {
        const NAMED: usize = 3;
        let line = |(told, mut files): (Told, Vec<PathBuf>)| {
            files.sort();
            files.dedup();
            let named: Vec<String> = files.iter().take(NAMED).map(|path| path.display().to_string()).collect();
            let more = match files.len().saturating_sub(NAMED) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let count = counted(files.len(), "file");
            (!files.is_empty()).then(|| format!("{count} {}: {}{more}", told.words(), named.join(", ")))
        };
        self.0.into_iter().filter_map(line).collect()
    }
}
