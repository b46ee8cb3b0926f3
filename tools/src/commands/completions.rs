//! `trainer completions`: scripts that let shells complete the trainer's flags.

use clap::{Arg, ArgMatches, Command, value_parser};
use clap_complete::{Shell, generate};

pub(super) fn command() -> Command {
    let shell = Arg::new("shell").value_name("SHELL").value_parser(value_parser!(Shell)).required(true);
    Command::new("completions")
        .about("Prints a script that completes flags in a shell: source <(trainer completions bash)")
        .arg(shell.help("The shell"))
}

/// The script for completing the command line `of` in the shell that was named.
pub(super) fn script(matches: &ArgMatches, mut of: Command) -> String {
    let mut script = Vec::new();
    if let Some(shell) = matches.get_one::<Shell>("shell") {
        generate(*shell, &mut of, "trainer", &mut script);
    }
    String::from_utf8_lossy(&script).into_owned()
}
