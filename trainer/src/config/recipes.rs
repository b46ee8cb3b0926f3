//! The recipes of `configs/`, embedded in the binary: `--config NAME` takes one, `trainer configs` shows them.

use common::{UserError, nearest};

/// A recipe: its name, and the TOML that `--config` reads.
macro_rules! recipe {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../configs/", $name, ".toml")))
    };
}

/// All recipes, by name: the model, then what it is trained on.
pub const RECIPES: &[(&str, &str)] = &[
    recipe!("tiny-laptop"),
    recipe!("bytes-laptop"),
    recipe!("gpt2-124m-1xh200"),
    recipe!("gpt2-124m-8xh200"),
    recipe!("gpt2-350m-8xh200"),
    recipe!("gpt-1.3b-8xh200"),
    recipe!("llama-1b-8xh200"),
    recipe!("llama-8b-8xh200"),
];

/// The text of the recipe of that name.
pub fn recipe(name: &str) -> Option<&'static str> {
    RECIPES.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// The text of the recipe of that name, for one who asked for it.
///
/// # Errors
/// There is none, with the nearest name.
pub fn show(name: &str) -> Result<&'static str, UserError> {
    recipe(name).ok_or_else(|| {
        let fix = match nearest(name, RECIPES.iter().map(|(known, _)| *known)) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "see `trainer configs list`".into(),
        };
        UserError::new(
            format!("no recipe is called `{name}`"),
            "it is a recipe of `trainer configs list`, or a TOML file",
            fix,
        )
    })
}

/// A line for each: its name, and what its first line says of it.
pub fn list() -> String {
    let width = RECIPES.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let about = |text: &'static str| text.lines().next().unwrap_or_default().trim_start_matches("# ");
    RECIPES.iter().map(|(name, text)| format!("{name:width$}  {}\n", about(text))).collect()
}
