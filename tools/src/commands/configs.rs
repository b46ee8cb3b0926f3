//! `trainer configs`: the recipes in the binary.

use clap::Subcommand;
use common::UserError;

use trainer::config::recipes;

#[derive(Debug, Subcommand)]
pub(super) enum Configs {
    /// Lists the recipes.
    List,
    /// Prints a recipe as TOML, to start a file of your own from.
    Show {
        /// Name of the recipe.
        #[arg(value_name = "NAME")]
        name: String,
    },
}

/// The list of recipes, or the text of one.
///
/// # Errors
/// A name that no recipe has.
pub(super) fn page(asked: &Configs) -> Result<String, UserError> {
    match asked {
        Configs::Show { name } => recipes::named(name).map(str::to_string),
        Configs::List => Ok(recipes::list()),
    }
}
