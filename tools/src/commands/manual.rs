//! `trainer man`: the manual's pages.

use std::path::{Path, PathBuf};

use clap::{Args, Command};

use super::args::path;
use trainer::error::{RunError, file_error};

/// The flags of `trainer man`.
#[derive(Args, Debug)]
#[group(skip)]
pub(super) struct Flags {
    /// Folder to write to, such as ~/.local/share/man/man1.
    #[arg(value_name = "FOLDER", value_parser = path())]
    pub(super) folder: PathBuf,
}

/// Writes a page for the command line `of`, and for each command of `of`. Returns a message for the user.
///
/// # Errors
/// The folder cannot be made or written to.
pub(super) fn write(of: Command, folder: &Path) -> Result<String, RunError> {
    let pages = std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(of, folder));
    pages.map_err(file_error(format!("the manual in {}", folder.display())))?;
    Ok(format!("wrote the pages of the manual to {}", folder.display()))
}
