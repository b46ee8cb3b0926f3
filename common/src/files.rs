//! Files that other programs may have written, opened so that no path makes the process wait or fill its memory.

use std::fs::{File, Metadata};
use std::io::{Error, ErrorKind, Read, Result};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a regular file to read. Links are followed: a model that Hugging Face's library downloaded consists of links.
///
/// # Errors
/// What the operating system said. A pipe, a device or a folder: opening a pipe would wait, and a device may have no end.
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
    let found = std::fs::symlink_metadata(path)?;
    if found.is_symlink() {
        return Err(Error::new(ErrorKind::InvalidInput, "it is a link"));
    }
    ensure_regular(&found)?;
    open(path, OFlags::NONBLOCK | OFlags::NOFOLLOW)
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
/// What the operating system said; a larger file, also one that grows while it is read.
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

/// Whether a name that a file gives is the name of another file in its folder, and no path to elsewhere.
pub fn is_plain_name(name: &str) -> bool {
    let parts = !name.contains(['/', '\\']) && name != "." && name != "..";
    parts && !name.is_empty() && name.len() <= 255 && !name.chars().any(char::is_control)
}

fn open(path: &Path, flags: OFlags) -> Result<File> {
    let file = File::options().read(true).custom_flags(flags.bits() as i32).open(path)?;
    ensure_regular(&file.metadata()?)?;
    Ok(file)
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
    fn a_plain_name_leads_nowhere_else() {
        assert!(is_plain_name("model-00001-of-00002.safetensors") && is_plain_name("..x"));
        for name in ["", ".", "..", "a/b", "/etc/passwd", "../a", "a\\b", "a\u{1b}[2J", &"x".repeat(256)] {
            assert!(!is_plain_name(name), "{name:?}");
        }
    }
}
