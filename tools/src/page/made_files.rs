//! Files that a run writes only if it is asked to: their places, and reasons why one cannot be shown.

use std::path::{Path, PathBuf};

use common::files::read_file;

/// The largest of these files that is read, bytes.
const LARGEST: u64 = 2 << 30;

/// A file that a run may have written.
#[derive(Debug)]
pub(crate) enum Made<T> {
    There(T),
    /// Why it is not shown, as a sentence.
    Missing(String),
}

impl<T> Made<T> {
    /// Reads a file. It is searched in the run's working folder, if that is this process's, and then in the run's
    /// folder.
    pub(crate) fn read(name: &str, folder: &Path, parse: impl FnOnce(&[u8]) -> serde_json::Result<T>) -> Made<T> {
        let Some(path) = find(name, folder) else {
            return Made::Missing(format!("The run names {name}, which is neither there nor in {}.", folder.display()));
        };
        let read = read_file(&path, LARGEST).map_err(|error| error.to_string());
        let parsed = read.and_then(|bytes| match bytes.is_empty() {
            true => Err("the run has not written it yet".into()),
            false => parse(&bytes).map_err(|error| error.to_string()),
        });
        match parsed {
            Ok(content) => Made::There(content),
            Err(problem) => Made::Missing(format!("{} cannot be shown: {problem}.", path.display())),
        }
    }
}

/// The file of that name as seen from here, or the file of its last part in the folder.
fn find(name: &str, folder: &Path) -> Option<PathBuf> {
    let path = Path::new(name);
    let beside = path.file_name().map(|name| folder.join(name));
    std::iter::once(path.to_path_buf()).chain(beside).find(|path| path.is_file())
}

/// The value of a flag in the message at a run's start. The message ends with the command as a list of quoted
/// arguments.
pub(crate) fn flag_value(message: &str, flag: &str) -> Option<String> {
    let (_, list) = message.split_once(": [")?;
    let arguments: Vec<String> = serde_json::from_str(&format!("[{list}")).ok()?;
    let mut values = arguments.iter().enumerate().filter_map(|(at, argument)| match argument.strip_prefix(flag)? {
        "" => arguments.get(at + 1).cloned(),
        rest => rest.strip_prefix('=').map(String::from),
    });
    values.next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flags_value_is_the_next_argument_or_follows_an_equals_sign() {
        let value = |list: &str| flag_value(&format!("trainer 1 starts as process 2: {list}"), "--graph-report");
        assert_eq!(value(r#"["trainer", "--graph-report", "a b\".json", "--x"]"#).as_deref(), Some("a b\".json"));
        assert_eq!(
            value(r#"["trainer", "--graph-report=a.json", "--graph-report=b.json"]"#).as_deref(),
            Some("b.json")
        );
        assert_eq!(
            [value(r#"["trainer", "--graph-reports", "x"]"#), value(r#"["--graph-report"]"#), value("x")],
            [const { None }; 3]
        );
    }

    #[test]
    fn a_file_is_found_by_its_name_in_the_runs_folder_and_a_bad_one_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let read = |name: &str| match Made::read(name, folder.path(), |bytes| serde_json::from_slice::<Vec<u32>>(bytes))
        {
            Made::There(content) => format!("{content:?}"),
            Made::Missing(why) => why,
        };
        assert!(read("elsewhere/t.json").starts_with("The run names elsewhere/t.json, which is neither there nor in "));
        for (text, shown) in [("[1, 2]", "[1, 2]"), ("", "has not written it yet."), ("[1,", "EOF while parsing")] {
            std::fs::write(folder.path().join("t.json"), text).unwrap();
            assert!(read("elsewhere/t.json").contains(shown), "{text}: {}", read("elsewhere/t.json"));
        }
    }
}
