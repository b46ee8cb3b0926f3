//! The frozen parameters.

use std::collections::BTreeSet;

use common::UserError;
use engine::model::{GptShape, is_adapter};

use super::name_patterns::matching;
use crate::config::plan::model::ModelPlan;

/// The names of the frozen parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrozenNames {
    names: BTreeSet<String>,
    all: bool,
}

impl FrozenNames {
    /// The parameters of `model` that match any of the `patterns` of `optimizer.freeze` by name. In a model with
    /// adapters also all parameters outside of adapters.
    ///
    /// # Errors
    /// A wrong pattern; a pattern that matches nothing; nothing left to train.
    pub(crate) fn new(patterns: &[String], model: &ModelPlan) -> Result<FrozenNames, UserError> {
        let has_adapters = matches!(model, ModelPlan::Gpt(GptShape { lora: Some(_), .. }));
        if patterns.is_empty() && !has_adapters {
            return Ok(FrozenNames::default());
        }
        let all: Vec<String> = model.architecture().specs.into_iter().map(|spec| spec.name).collect();
        let mut frozen = BTreeSet::new();
        if has_adapters {
            frozen.extend(all.iter().filter(|name| !is_adapter(name)).cloned());
        }
        for text in patterns {
            frozen.extend(matching("optimizer.freeze", text, "", &all)?.cloned());
        }
        if frozen.len() == all.len() {
            return Err(UserError::new(
                format!("optimizer.freeze = {patterns:?} matches all {} parameters", all.len()),
                "a run trains at least one parameter",
                "freeze fewer parameters; `trainer eval` computes losses without training",
            ));
        }
        Ok(FrozenNames { names: frozen, all: false })
    }

    /// Whether the parameter of that name is frozen.
    pub fn has(&self, name: &str) -> bool {
        self.all || self.names.contains(name)
    }

    /// The frozen names of a run that does not train.
    pub fn all() -> FrozenNames {
        FrozenNames { names: BTreeSet::new(), all: true }
    }

    /// Whether all parameters are frozen, so that the run does not train.
    pub fn are_all(&self) -> bool {
        self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigSources;
    use crate::config::plan::model::model_plan;

    fn names(patterns: &[&str]) -> Result<FrozenNames, UserError> {
        let mut sources = ConfigSources::default();
        sources.set("model.layers", "12", "test").unwrap();
        let model = model_plan(&sources.resolve()).unwrap();
        FrozenNames::new(&patterns.iter().map(|text| text.to_string()).collect::<Vec<_>>(), &model)
    }

    #[test]
    fn patterns_are_those_of_a_shell_over_the_names_of_parameters() {
        let frozen = names(&["w?e.*", "h.[0-3].*", "h.1[01].mlp.c_fc.weight"]).unwrap();
        for (name, is_frozen) in [
            ("wte.weight", true),
            ("wpe.weight", true),
            ("h.0.attn.c_attn.bias", true),
            ("h.3.ln_1.weight", true),
            ("h.4.ln_1.weight", false),
            ("h.10.mlp.c_fc.weight", true),
            ("h.10.mlp.c_fc.bias", false),
            ("h.9.mlp.c_fc.weight", false),
            ("ln_f.weight", false),
        ] {
            assert_eq!(frozen.has(name), is_frozen, "{name}");
        }
        assert_eq!(names(&[]).unwrap(), FrozenNames::default());
    }

    #[test]
    fn patterns_that_match_nothing_or_everything_are_refused() {
        let error = names(&["wte.*", "h.0.attn.q_proj.*"]).unwrap_err().to_string();
        assert!(error.contains("\"h.0.attn.q_proj.*\" matches no parameter"), "{error}");
        assert!(error.contains("h.0.attn.c_proj") && error.contains("begin with h, ln_f, wpe, wte"), "{error}");
        assert!(names(&["*"]).unwrap_err().to_string().contains("at least one parameter"));
        assert!(names(&["h.[0-"]).unwrap_err().to_string().contains("as in a shell"));
    }
}
