//! `trainer checkpoint`: the contents of a folder of checkpoints.

use std::path::PathBuf;

use clap::{ArgMatches, Command};

use super::args::{positional, text};

pub(super) fn command() -> Command {
    let list = Command::new("list").about("Lists the checkpoints in a folder and checks every byte");
    Command::new("checkpoint")
        .about("Lists and checks checkpoints")
        .subcommand_required(true)
        .subcommand(list.arg(positional("dir", "The checkpoint.dir of a run").value_name("DIR")))
}

/// The folder to list.
pub(super) fn folder(matches: &ArgMatches) -> PathBuf {
    let list = matches.subcommand_matches("list");
    list.and_then(|list| text(list, "dir")).unwrap_or_default().into()
}
