//! Files of one folder for training, for validation and for tests, told apart by name as in the package `datasets` of
//! Hugging Face.
//!
//! A name says a split by a whole word, its first or its last one: `train-00000-of-00003.parquet`, `valid.jsonl`,
//! `fineweb_val_000001.bin`, a folder `test`. `training-notes.txt` says none. Names count only if a folder has training
//! files or folders, and others for validation or tests beside them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use common::UserError;

use crate::file_notices::{FileNotices, Told};

/// The split that a name says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    Train,
    Validation,
    Test,
}

/// The purpose for which the files of a path are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To train on, and to validate on the files named as validation data.
    TrainAndValidate,
    /// To train on. Files to validate on are named elsewhere, or not needed.
    Train,
    /// To evaluate on.
    Evaluate,
}

/// The files that a path has for a purpose.
#[derive(Debug)]
pub(crate) struct Chosen<F> {
    /// The files for the purpose.
    pub(crate) files: Vec<F>,
    /// Files to validate on. Empty unless the purpose is to train and validate, and names say it.
    pub(crate) validation: Vec<F>,
    /// Notices for the user.
    pub(crate) notices: FileNotices,
}

impl<F> Chosen<F> {
    /// A file that the user named: it is read whatever its name says.
    pub(crate) fn named(file: F) -> Chosen<F> {
        Chosen { files: vec![file], validation: Vec::new(), notices: FileNotices::default() }
    }

    /// The same files in another form.
    pub(crate) fn map<T>(self, form: impl Fn(F) -> T) -> Chosen<T> {
        let Chosen { files, validation, notices } = self;
        let [files, validation] = [files, validation].map(|files| files.into_iter().map(&form).collect());
        Chosen { files, validation, notices }
    }
}

impl Chosen<PathBuf> {
    /// The files that `folder` has for a purpose. `what` stands for the folder in messages. `files` are in it or in
    /// folders within it.
    ///
    /// # Errors
    /// The purpose is to evaluate, and names mark training files but no validation files.
    pub(crate) fn of_folder(
        what: &str,
        folder: &Path,
        files: Vec<PathBuf>,
        purpose: Purpose,
    ) -> Result<Chosen<PathBuf>, UserError> {
        let (mut train, mut validation, mut test, mut whole) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut notices = FileNotices::default();
        for (place, file) in places(folder, &files).into_iter().zip(files) {
            match place {
                Place::Whole => whole.push(file),
                Place::Split(Named::Train) => train.push(file),
                Place::Split(Named::Validation) => validation.push(file),
                Place::Split(Named::Test) => test.push(file),
                Place::Beside => notices.add(Told::BesideSplits, [file]),
            }
        }
        if train.is_empty() {
            return Ok(Chosen { files: whole, validation, notices });
        }
        notices.add(Told::Test, test);
        let (files, validation) = match purpose {
            Purpose::Evaluate if validation.is_empty() && whole.is_empty() => {
                return Err(UserError::new(
                    format!("{what} has training files, such as {}, and none for validation", train[0].display()),
                    "what a folder has for training is not evaluated on",
                    "name the files to evaluate on, such as 'FOLDER/test*'",
                ));
            }
            Purpose::Evaluate => {
                notices.add(Told::Train, train);
                notices.add(Told::EvaluatedOn, validation.clone());
                ([whole, validation].concat(), Vec::new())
            }
            Purpose::Train => {
                notices.add(Told::Validation, validation);
                notices.add(Told::TrainedOn, train.clone());
                ([whole, train].concat(), Vec::new())
            }
            Purpose::TrainAndValidate => {
                notices.add(Told::TrainedOn, train.clone());
                notices.add(Told::ValidatedOn, validation.clone());
                ([whole, train].concat(), validation)
            }
        };
        let in_order = |mut files: Vec<PathBuf>| {
            files.sort();
            files
        };
        Ok(Chosen { files: in_order(files), validation: in_order(validation), notices })
    }
}

/// Paths named by the user as files, with names of validation or test data, if another of `paths` has a name of
/// training data.
pub(crate) fn named_otherwise(paths: &[String]) -> Vec<PathBuf> {
    let said = |path: &String| Path::new(path).file_name().and_then(|name| named(&name.to_string_lossy()));
    if !paths.iter().any(|path| said(path) == Some(Named::Train)) {
        return Vec::new();
    }
    let otherwise =
        |path: &&String| matches!(said(path), Some(Named::Validation | Named::Test)) && Path::new(path).is_file();
    paths.iter().filter(otherwise).map(PathBuf::from).collect()
}

/// The place of a file among the splits.
enum Place {
    /// In no folder that has splits.
    Whole,
    Split(Named),
    /// In a folder that has splits, and in no split.
    Beside,
}

/// The place of each file.
fn places(top: &Path, files: &[PathBuf]) -> Vec<Place> {
    // The splits that names say, by folder. A file's names are those of the folders below `top`, then its own.
    let mut said: HashMap<PathBuf, Vec<Named>> = HashMap::new();
    for (folder, name) in files.iter().flat_map(|file| names(top, file)) {
        said.entry(folder).or_default().extend(named(&name));
    }
    let has_splits = |folder: &PathBuf| {
        let said = said.get(folder).map_or(&[][..], Vec::as_slice);
        said.contains(&Named::Train) && said.iter().any(|named| *named != Named::Train)
    };
    let place = |file: &PathBuf| {
        let within = names(top, file).into_iter().filter(|(folder, _)| has_splits(folder));
        within.fold(Place::Whole, |place, (_, name)| match (place, named(&name)) {
            // The outermost name that says a split decides.
            (Place::Split(found), _) | (_, Some(found)) => Place::Split(found),
            (_, None) => Place::Beside,
        })
    };
    files.iter().map(place).collect()
}

/// The names of a file below `top`, from the outermost folder on, each with the folder that it is in.
fn names(top: &Path, file: &Path) -> Vec<(PathBuf, String)> {
    let below = file.strip_prefix(top).unwrap_or(file);
    let mut folder = PathBuf::new();
    let pair = |name: std::path::Component<'_>| {
        let pair = (folder.clone(), name.as_os_str().to_string_lossy().into_owned());
        folder.push(name);
        pair
    };
    below.components().map(pair).collect()
}

/// The split that a name says by the first or the last word. Numbers and the extensions of files are no words.
fn named(name: &str) -> Option<Named> {
    let says = |word: &str| match word.to_ascii_lowercase().as_str() {
        "train" => Some(Named::Train),
        "validation" | "valid" | "val" | "dev" => Some(Named::Validation),
        "test" | "eval" => Some(Named::Test),
        _ => None,
    };
    let is_between = |c: char| matches!(c, '-' | '_' | '.' | ' ') || c.is_ascii_digit();
    let words = |text: &str| -> Vec<Option<Named>> {
        text.split(is_between).filter(|word| !word.is_empty()).map(says).collect()
    };
    let unpacked = [".gz", ".zst"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
    let stem = Path::new(unpacked).file_stem().map_or(unpacked.into(), |stem| stem.to_string_lossy());
    let words = words(&stem);
    words.first().copied().flatten().or_else(|| words.last().copied().flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_a_split_by_its_first_or_last_whole_word() {
        for name in
            ["train", "train.jsonl", "train-00000-of-00003.parquet", "fineweb_train_000001.bin", "wiki.train.tokens"]
        {
            assert_eq!(named(name), Some(Named::Train), "{name}");
        }
        for name in ["valid.txt", "val-1.jsonl.gz", "dev", "validation-00000-of-00001-0a1b.parquet", "GPT4-valid.txt"] {
            assert_eq!(named(name), Some(Named::Validation), "{name}");
        }
        for name in ["test", "eval.jsonl", "test_sft-00000-of-00001.parquet", "x.test.jsonl.zst"] {
            assert_eq!(named(name), Some(Named::Test), "{name}");
        }
        for name in
            ["training-notes.txt", "latest-news.jsonl", "how-to-train-your-dog.txt", "data", "0", "devel.txt", ""]
        {
            assert_eq!(named(name), None, "{name}");
        }
    }

    /// The files of `folder/` to train on, to validate on, and the notices.
    fn chosen(files: &[&str], purpose: Purpose) -> Result<[Vec<String>; 3], UserError> {
        let paths = files.iter().map(|name| Path::new("folder").join(name)).collect();
        let Chosen { files, validation, notices } = Chosen::of_folder("x", Path::new("folder"), paths, purpose)?;
        let shown = |files: Vec<PathBuf>| files.iter().map(|path| path.display().to_string()[7..].into()).collect();
        Ok([shown(files), shown(validation), notices.lines()])
    }

    #[test]
    fn names_count_where_a_folder_has_training_files_and_others_beside_them() {
        let both = Purpose::TrainAndValidate;
        for whole in [
            &["train-1.txt", "train-2.txt", "notes.txt"][..],
            &["validation.txt", "test.txt", "notes.txt"],
            &["training-notes.txt", "test.txt"],
            // They are not in one folder.
            &["a/train.txt", "b/test.txt"],
        ] {
            let [mut files, validation, notices] = chosen(whole, both).unwrap();
            let mut expected = whole.to_vec();
            files.sort();
            expected.sort_unstable();
            assert_eq!(
                (files, validation, notices),
                (expected.iter().map(|name| name.to_string()).collect(), vec![], vec![])
            );
        }
        let nested = ["books/all.txt", "wiki/train/a.txt", "wiki/dev/train.txt", "wiki/notes.txt", "wiki/more/b.txt"];
        let [files, validation, notices] = chosen(&nested, both).unwrap();
        assert_eq!(
            (&files[..], &validation[..]),
            (&["books/all.txt".into(), "wiki/train/a.txt".into()][..], &["wiki/dev/train.txt".into()][..])
        );
        assert_eq!(notices.len(), 3, "{notices:?}");
        assert!(notices[2].contains("2 files left out, beside files named as training data"), "{notices:?}");
    }

    #[test]
    fn every_purpose_has_its_files_and_each_other_split_a_line() {
        let files = ["dev.txt", "test.txt", "train.txt"];
        for (purpose, read, validation, says) in [
            (
                Purpose::TrainAndValidate,
                "train.txt",
                &["dev.txt"][..],
                ["to train on", "to validate on", "left out, named as test data"],
            ),
            (
                Purpose::Train,
                "train.txt",
                &[],
                ["to train on", "left out, named as validation data", "left out, named as test data"],
            ),
            (
                Purpose::Evaluate,
                "dev.txt",
                &[],
                ["to evaluate on", "left out, named as training data", "left out, named as test data"],
            ),
        ] {
            let [found, validates, notices] = chosen(&files, purpose).unwrap();
            assert_eq!((&found[..], validates.len()), (&[read.to_string()][..], validation.len()));
            assert!(
                notices.len() == 3 && says.iter().all(|part| notices.iter().any(|line| line.contains(part))),
                "{notices:?}"
            );
        }
        let problem = chosen(&["test.txt", "train.txt"], Purpose::Evaluate).unwrap_err().to_string();
        assert!(
            problem.contains("x has training files, such as folder/train.txt, and none for validation"),
            "{problem}"
        );
    }
}
