//! `trainer completions`: scripts that let shells complete the trainer's flags.

use clap::{Args, Command};
use clap_complete::{Shell, generate};

/// The shell of `trainer completions`.
#[derive(Args, Debug)]
#[group(skip)]
pub(super) struct Flags {
    /// The shell.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// The script for completing the command line `of`.
pub(super) fn script(flags: &Flags, mut of: Command) -> String {
    let mut script = Vec::new();
    generate(flags.shell, &mut of, "trainer", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}
