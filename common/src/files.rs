//! Files that other programs may have written or replaced, opened so that no path makes the process wait, fill memory, or
//! write to a file elsewhere.
//!
//! Files that the trainer writes are regular files under names of their own. A link in the place of one is not followed, and
//! a file with a second name is not written to: it may be any file of the user's.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a regular file to read. Links are followed: a model that Hugging Face's library downloaded consists of links.
///
/// # Errors
/// Errors of the operating system. A pipe, a device or a folder: opening a pipe would wait, and a device may have no
/// end.
pub fn open_file(path: &Path) -> Result<File> {
    // Asked before opening too: some devices act when they are opened.
    ensure_regular(&std::fs::metadata(path)?)?;
    open(path, OFlags::NONBLOCK)
}

/// As [`open_file`], but a link is refused. It is for files that the trainer itself wrote: it writes no links.
///
/// # Errors
/// As [`open_file`]; a link.
pub fn open_unlinked(path: &Path) -> Result<File> {
    ensure_unlinked(&std::fs::symlink_metadata(path)?)?;
    open(path, OFlags::NONBLOCK | OFlags::NOFOLLOW)
}

/// Opens a file to read and write, from the first byte on. A missing file is made; existing content stays.
///
/// # Errors
/// Errors of the operating system. A link, a file with a second name, a pipe, a device or a folder.
pub fn open_to_change(path: &Path) -> Result<File> {
    open_to_write(path, File::options().read(true).write(true).truncate(false))
}

/// Opens a file so that every write goes to the file's end. A missing file is made.
///
/// # Errors
/// As [`open_to_change`].
pub fn open_to_append(path: &Path) -> Result<File> {
    open_to_write(path, File::options().append(true))
}

/// Opens an empty file to read and write. Existing content is removed.
///
/// # Errors
/// As [`open_to_change`].
pub fn create_file(path: &Path) -> Result<File> {
    let file = open_to_change(path)?;
    file.set_len(0)?;
    Ok(file)
}

/// Writes a file that has this content and no other.
///
/// # Errors
/// As [`open_to_change`].
pub fn write_file(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    create_file(path)?.write_all(content.as_ref())
}

/// Replaces the file at `path` by what `write` writes, under another name first: a reader sees the file before or the new
/// one. Returns the new file. It is on disk once it is synced.
///
/// # Errors
/// As [`open_to_change`]; an error of `write`. The file before then stays.
pub fn replace_file(path: &Path, write: impl FnOnce(&mut File) -> Result<()>) -> Result<File> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".tmp");
    let beside = path.with_file_name(name);
    let mut file = create_file(&beside)?;
    write(&mut file)?;
    std::fs::rename(&beside, path)?;
    Ok(file)
}

/// Fails if a path names something other than a regular file. It may name nothing.
///
/// # Errors
/// As [`open_to_change`].
pub fn ensure_writable_name(path: &Path) -> Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(found) => ensure_unlinked(&found).and_then(|()| ensure_one_name(&found)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// The content of a regular file of at most `most` bytes. Links are followed.
///
/// # Errors
/// As [`open_file`]; a larger file.
pub fn read_file(path: &Path, most: u64) -> Result<Vec<u8>> {
    read_at_most(open_file(path)?, most)
}

/// As [`read_file`], with text.
///
/// # Errors
/// As [`read_file`]; bytes that are not UTF-8.
pub fn read_text(path: &Path, most: u64) -> Result<String> {
    let text = String::from_utf8(read_file(path, most)?);
    text.map_err(|error| {
        let text = format!("it is not UTF-8 text (byte {})", error.utf8_error().valid_up_to());
        Error::new(ErrorKind::InvalidData, text)
    })
}

/// The content of an open file of at most `most` bytes.
///
/// # Errors
/// Errors of the operating system; a larger file, also one that grows while it is read.
pub fn read_at_most(file: File, most: u64) -> Result<Vec<u8>> {
    let mut content = Vec::new();
    let length = file.metadata()?.len();
    if length <= most {
        file.take(most + 1).read_to_end(&mut content)?;
    }
    if length > most || content.len() as u64 > most {
        let bytes = length.max(content.len() as u64);
        return Err(Error::new(ErrorKind::FileTooLarge, format!("it has {bytes} bytes, and at most {most} are read")));
    }
    Ok(content)
}

/// Whether a name that a file gives is the name of another file in the same folder, and no path to elsewhere.
pub fn is_plain_name(name: &str) -> bool {
    let parts = !name.contains(['/', '\\']) && name != "." && name != "..";
    parts && !name.is_empty() && name.len() <= 255 && !name.chars().any(char::is_control)
}

fn open(path: &Path, flags: OFlags) -> Result<File> {
    let file = File::options().read(true).custom_flags(flags.bits() as i32).open(path)?;
    ensure_regular(&file.metadata()?)?;
    Ok(file)
}

fn open_to_write(path: &Path, options: &mut OpenOptions) -> Result<File> {
    ensure_writable_name(path)?;
    let file = options.create(true).custom_flags((OFlags::NONBLOCK | OFlags::NOFOLLOW).bits() as i32).open(path)?;
    let found = file.metadata()?;
    ensure_regular(&found)?;
    ensure_one_name(&found)?;
    Ok(file)
}

/// Fails on a file that a hard link gives a second name.
fn ensure_one_name(found: &Metadata) -> Result<()> {
    match found.nlink() {
        0 | 1 => Ok(()),
        names => {
            let text =
                format!("it has {names} names (hard links), and a write would change the file under all of them");
            Err(Error::new(ErrorKind::InvalidInput, text))
        }
    }
}

fn ensure_unlinked(found: &Metadata) -> Result<()> {
    if found.is_symlink() {
        return Err(Error::new(ErrorKind::InvalidInput, "it is a link"));
    }
    ensure_regular(found)
}

fn ensure_regular(found: &Metadata) -> Result<()> {
    if found.is_file() { Ok(()) } else { Err(Error::new(ErrorKind::InvalidInput, "it is not a regular file")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_of_a_bounded_size_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("file"), "12345").unwrap();
        std::os::unix::fs::symlink(at("file"), at("link")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", at("zero")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        let read = |name: &str, most| read_text(&at(name), most).map_err(|error| error.to_string());
        assert_eq!(read("file", 5), Ok("12345".into()));
        assert_eq!(read("link", 5), Ok("12345".into()));
        assert_eq!(read("file", 4), Err("it has 5 bytes, and at most 4 are read".into()));
        for name in ["zero", "pipe", "."] {
            assert_eq!(read(name, 5), Err("it is not a regular file".into()), "{name}");
        }
        let unlinked = |name: &str| open_unlinked(&at(name)).map(|_| ()).map_err(|error| error.to_string());
        assert_eq!(unlinked("file"), Ok(()));
        assert_eq!([unlinked("link"), unlinked("zero")], [(); 2].map(|()| Err("it is a link".into())));
        assert_eq!(unlinked("pipe"), Err("it is not a regular file".into()));
    }

    #[test]
    fn a_file_is_written_under_its_own_name_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let ways: [fn(&Path) -> Result<()>; 4] = [
            |path| open_to_change(path)?.write_all(b"changed"),
            |path| open_to_append(path)?.write_all(b"added"),
            |path| create_file(path)?.write_all(b"new"),
            |path| write_file(path, "new"),
        ];
        let outcomes = ["changedr file", "a longer fileadded", "new", "new"];
        for (write, outcome) in ways.into_iter().zip(outcomes) {
            std::fs::write(at("file"), "a longer file").unwrap();
            let _ = std::fs::remove_file(at("missing"));
            write(&at("file")).unwrap();
            write(&at("missing")).unwrap();
            let content = std::fs::read_to_string(at("file")).unwrap();
            assert!(content == outcome && at("missing").exists(), "{content}");
        }
        std::os::unix::fs::symlink(at("file"), at("link")).unwrap();
        std::os::unix::fs::symlink(at("elsewhere"), at("dangling")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        for (name, problem) in [
            ("link", "it is a link"),
            ("dangling", "it is a link"),
            ("pipe", "it is not a regular file"),
            (".", "it is not a regular file"),
        ] {
            for write in ways {
                assert_eq!(write(&at(name)).unwrap_err().to_string(), problem, "{name}");
            }
        }
        std::fs::write(at("two"), "mine").unwrap();
        std::fs::hard_link(at("two"), at("second")).unwrap();
        for write in ways {
            let error = write(&at("second")).unwrap_err().to_string();
            assert!(error.starts_with("it has 2 names (hard links)"), "{error}");
        }
        assert_eq!(std::fs::read_to_string(at("two")).unwrap(), "mine");
        assert!(!at("elsewhere").exists());
        assert_eq!(std::fs::read_to_string(at("file")).unwrap(), "new");
    }

    #[test]
    fn a_plain_name_leads_nowhere_else() {
        assert!(is_plain_name("model-00001-of-00002.safetensors") && is_plain_name("..x"));
        for name in ["", ".", "..", "a/b", "/etc/passwd", "../a", "a\\b", "a\u{1b}[2J", &"x".repeat(256)] {
            assert!(!is_plain_name(name), "{name:?}");
        }
    }
}
