//! Notices for the user about files and documents: those that are left out, and files with a name that decides.

use std::collections::BTreeMap;
use std::path::PathBuf;

use common::choice;
use common::format::counted;

choice! {
    /// A statement about files.
    #[derive(PartialOrd, Ord)]
    pub enum Told {
        /// Files are trained on, because their names say so.
        TrainedOn = "to train on, named as training data",
        /// Files are trained on, because the user named each, and their names say that they are for validation or tests.
        TrainedOnAnyway = "to train on, because data.path names them, though named as validation or test data",
        /// Files are validated on, because their names say so.
        ValidatedOn = "to validate on in place of data.split, named as validation data",
        /// Files are evaluated on, because their names say so.
        EvaluatedOn = "to evaluate on, named as validation data",
        /// The files are training data, and the purpose is another.
        Train = "left out, named as training data",
        /// The files are validation data, and the purpose is another.
        Validation = "left out, named as validation data",
        /// The files are test data.
        Test = "left out, named as test data",
        /// The files have no name of a split, in a folder where other files have such names.
        BesideSplits = "left out, beside files named as training data and as validation or test data (files that you name are read)",
        /// The files are not text.
        NotText = "left out, because neither UTF-8 text nor JSON lines",
        /// The files are text, and other files of the folder have records: descriptions, licences.
        BesideRecords = "left out, because their folder has JSON lines or Parquet files, and these are not",
        /// Files of text or records whose folder has token files.
        BesideTokens = "left out, because their folder has token files (files that you name are read)",
        /// Files that begin with a mark of the byte order.
        Marked = "read without the byte-order mark at the begin",
    }
}

choice! {
    /// Why documents are left out.
    #[derive(PartialOrd, Ord)]
    pub enum NoDocument {
        /// Documents without a token.
        Empty = "their text is empty",
        /// The text of the record is `null`, or missing in the row.
        Null = "their text is null",
    }
}

/// Files, by the statement about the files, and documents that are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileNotices {
    files: BTreeMap<Told, Vec<PathBuf>>,
    /// The number of documents, and the name of the first.
    documents: BTreeMap<NoDocument, (u64, String)>,
}

impl FileNotices {
    /// Adds files.
    pub(crate) fn add(&mut self, told: Told, files: impl IntoIterator<Item = PathBuf>) {
        self.files.entry(told).or_default().extend(files);
    }

    /// Adds a document that is left out.
    pub(crate) fn add_document(&mut self, why: NoDocument, name: impl FnOnce() -> String) {
        self.documents.entry(why).or_insert_with(|| (0, name())).0 += 1;
    }

    /// Adds other notices.
    pub(crate) fn extend(&mut self, other: FileNotices) {
        other.files.into_iter().for_each(|(told, files)| self.add(told, files));
        for (why, (count, first)) in other.documents {
            self.documents.entry(why).or_insert((0, first)).0 += count;
        }
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
            (!files.is_empty()).then(|| format!("{count} {told}: {}{more}", named.join(", ")))
        };
        let documents = self.documents.into_iter().map(|(why, (count, first))| {
            format!("{} left out, because {why}; the first is {first}", counted(count as usize, "document"))
        });
        self.files.into_iter().filter_map(line).chain(documents).collect()
    }
}
