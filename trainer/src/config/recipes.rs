//! The recipes of `configs/`, embedded in the binary. `--config NAME` uses one, `trainer configs` shows them.

use common::{UserError, nearest};

/// A recipe: its name and its TOML text.
macro_rules! recipe {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../configs/", $name, ".toml")))
    };
}

/// All recipes. Each is named for its model and its machine.
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

/// The text of the recipe that a user named.
///
/// # Errors
/// No recipe has that name. The fix is the most similar one.
pub fn named(name: &str) -> Result<&'static str, UserError> {
    recipe(name).ok_or_else(|| {
        let fix = match nearest(name, RECIPES.iter().map(|(known, _)| *known)) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "see `trainer configs list`".into(),
        };
        UserError::new(
            format!("no recipe is called `{name}`"),
            "the name is one that `trainer configs list` prints, or that of a TOML file",
            fix,
        )
    })
}

/// A line for each recipe: its name, and its first comment.
pub fn list() -> String {
    let width = RECIPES.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let about = |text: &'static str| text.lines().next().unwrap_or_default().trim_start_matches("# ");
    RECIPES.iter().map(|(name, text)| format!("{name:width$}  {}\n", about(text))).collect()
}
