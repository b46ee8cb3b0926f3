//! `trainer man`: the manual's pages.

use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Command};

use super::args::{positional, text};
use trainer::error::{RunError, file_error};

pub(super) fn command() -> Command {
    let folder: Arg = positional("folder", "Folder to write to, such as ~/.local/share/man/man1").value_name("FOLDER");
    Command::new("man").about("Writes the manual's pages, one for each command").arg(folder)
}

pub(super) fn folder(matches: &ArgMatches) -> PathBuf {
    text(matches, "folder").unwrap_or_default().into()
}

/// Writes a page for the command line `of`, and for each of its commands. Returns a message for the user.
///
/// # Errors
/// The folder cannot be made or written to.
pub(super) fn write(of: Command, folder: &Path) -> Result<String, RunError> {
    let pages = std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(of, folder));
    pages.map_err(file_error(format!("the manual in {}", folder.display())))?;
    Ok(format!("wrote the pages of the manual to {}", folder.display()))
}
