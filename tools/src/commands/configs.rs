//! `trainer configs`: the recipes in the binary.

use clap::{Arg, ArgMatches, Command};
use common::UserError;

use super::args::text;
use trainer::config::recipes;

pub(super) fn command() -> Command {
    Command::new("configs")
        .about("Shows the recipes that --config takes by name")
        .subcommand_required(true)
        .subcommand(Command::new("list").about("Lists the recipes"))
        .subcommand(
            Command::new("show")
                .about("Prints a recipe as TOML, to start a file of your own from")
                .arg(Arg::new("name").value_name("NAME").required(true).help("Name of the recipe")),
        )
}

/// The list of recipes, or the text of one.
///
/// # Errors
/// A name that no recipe has.
pub(super) fn page(matches: &ArgMatches) -> Result<String, UserError> {
    match matches.subcommand_matches("show").and_then(|show| text(show, "name")) {
        Some(name) => recipes::named(&name).map(str::to_string),
        None => Ok(recipes::list()),
    }
}
