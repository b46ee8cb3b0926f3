//! Parameters with a learning rate, or a weight decay, of their own.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use common::UserError;
use common::format::counted;
use engine::optimizer::ParamGroup;

use super::freeze::FrozenNames;
use super::name_patterns::matching;
use crate::config::checks::fits_f32;
use crate::config::plan::model::ModelPlan;

const KEY: &str = "optimizer.param_groups";

/// Parameters with a learning rate, or a weight decay, of their own.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedGroup {
    pattern: String,
    /// The parameters that are trained and that no earlier group has.
    names: Arc<BTreeSet<String>>,
    lr_multiplier: f32,
    weight_decay: Option<f32>,
}

impl NamedGroup {
    /// The groups of `optimizer.param_groups`, each `PATTERN=MULTIPLIER` or `PATTERN=MULTIPLIER,WEIGHT_DECAY`. A parameter is in the
    /// first that matches it.
    ///
    /// # Errors
    /// An item of another form; a pattern that matches nothing, or nothing that is left.
    pub(crate) fn all(items: &[String], model: &ModelPlan, frozen: &FrozenNames) -> Result<Vec<NamedGroup>, UserError> {
        if items.is_empty() {
            return Ok(Vec::new());
        }
        let all: Vec<String> = model.architecture().specs.into_iter().map(|spec| spec.name).collect();
        let mut taken = BTreeSet::new();
        let mut groups = Vec::new();
        for item in items {
            let (pattern, lr_multiplier, weight_decay) = parsed(item)?;
            let rest = &item[pattern.len()..];
            let trained = matching(KEY, pattern, rest, &all)?.filter(|name| !frozen.has(name));
            let names: BTreeSet<String> = trained.filter(|name| taken.insert(name.to_string())).cloned().collect();
            if names.is_empty() {
                return Err(UserError::new(
                    format!("{KEY} = {item:?} has no parameter"),
                    "a parameter is in the first group that matches it, and frozen ones are in none",
                    "leave it out, or put it before the groups that have its parameters",
                ));
            }
            groups.push(NamedGroup { pattern: pattern.into(), names: names.into(), lr_multiplier, weight_decay });
        }
        Ok(groups)
    }

    /// The groups of an optimizer, with the named parameters in groups before them: same update rule, their own rate.
    pub(crate) fn before(named: &[NamedGroup], groups: Vec<ParamGroup>) -> Vec<ParamGroup> {
        let of = |named: &NamedGroup, group: &ParamGroup| ParamGroup {
            names: Some(named.names.clone()),
            lr_multiplier: named.lr_multiplier,
            weight_decay: named.weight_decay.unwrap_or(group.weight_decay),
            ..group.clone()
        };
        let own: Vec<ParamGroup> =
            named.iter().flat_map(|named| groups.iter().map(move |group| of(named, group))).collect();
        own.into_iter().chain(groups).collect()
    }
}

impl fmt::Display for NamedGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} x lr", self.pattern, self.lr_multiplier)?;
        if let Some(decay) = self.weight_decay {
            write!(f, " and weight decay {decay}")?;
        }
        write!(f, " ({})", counted(self.names.len(), "parameter"))
    }
}

/// The pattern of an item, its multiplier, and its weight decay.
fn parsed(item: &str) -> Result<(&str, f32, Option<f32>), UserError> {
    let refuse = || {
        UserError::new(
            format!("{KEY} = {item:?}"),
            "an item is PATTERN=MULTIPLIER or PATTERN=MULTIPLIER,WEIGHT_DECAY, with numbers of 0 or more",
            format!("for example {KEY} = [\"wte.*=0.1\", \"h.[0-3].*=0.5,0.0\"]"),
        )
    };
    let number = |text: &str| {
        let value = text.trim().parse::<f64>().ok().filter(|value| *value >= 0.0).ok_or_else(refuse)?;
        fits_f32(KEY, value)?;
        Ok::<f32, UserError>(value as f32)
    };
    let (pattern, numbers) = item.rsplit_once('=').filter(|(pattern, _)| !pattern.is_empty()).ok_or_else(refuse)?;
    let (multiplier, decay) = numbers.split_once(',').map_or((numbers, None), |(first, rest)| (first, Some(rest)));
    Ok((pattern, number(multiplier)?, decay.map(number).transpose()?))
}

#[cfg(test)]
mod tests {
    use engine::optimizer::UpdateRule;

    use super::*;
    use crate::config::ConfigSources;
    use crate::config::plan::model::model_plan;
    use crate::config::plan::optimizer::OptimizerPlan;

    /// The model, and the groups of an optimizer of that kind with the given named groups.
    fn groups(
        kind: &str,
        items: &[&str],
        freeze: &[&str],
    ) -> Result<(ModelPlan, Vec<ParamGroup>, Vec<NamedGroup>), UserError> {
        let mut sources = ConfigSources::default();
        sources.set("optimizer.kind", kind, "test").unwrap();
        let config = sources.resolve();
        let model = model_plan(&config).unwrap();
        let texts = |all: &[&str]| all.iter().map(|text| text.to_string()).collect::<Vec<_>>();
        let frozen = FrozenNames::new(&texts(freeze), &model)?;
        let named = NamedGroup::all(&texts(items), &model, &frozen)?;
        let usual = OptimizerPlan::new(&config).unwrap().groups;
        Ok((model, NamedGroup::before(&named, usual), named))
    }

    #[test]
    fn the_first_group_that_matches_wins_and_each_keeps_the_rule_of_its_parameter() {
        for kind in ["adamw", "lion", "muon", "sgd"] {
            let items = ["h.0.ln_1.*=2", "h.0.*=0.5,0.3", "*.bias=0", "w?e.*=0.1"];
            let (model, groups, named) = groups(kind, &items, &["h.1.attn.*"]).unwrap();
            let described: Vec<String> = named.iter().map(|group| group.to_string()).collect();
            assert_eq!(
                described[..2],
                ["h.0.ln_1.* at 2 x lr (2 parameters)", "h.0.* at 0.5 x lr and weight decay 0.3 (10 parameters)"]
            );
            let specs = model.architecture().specs;
            let group = |name: &str| {
                let spec = specs.iter().find(|spec| spec.name == name).unwrap();
                groups.iter().find(|group| group.has(spec)).unwrap()
            };
            for (name, multiplier, decay) in [
                ("h.0.ln_1.weight", 2.0, 0.0),
                ("h.0.attn.c_attn.weight", 0.5, 0.3),
                ("h.0.ln_2.bias", 0.5, 0.3),
                ("h.1.mlp.c_fc.bias", 0.0, 0.0),
                ("h.1.mlp.c_fc.weight", 1.0, 0.1),
                ("wte.weight", 0.1, 0.1),
            ] {
                let found = group(name);
                assert_eq!((found.lr_multiplier, found.weight_decay), (multiplier, decay), "{kind} {name}");
            }
            let rule = |name: &str| -> &Arc<dyn UpdateRule> { &group(name).rule };
            assert!(Arc::ptr_eq(rule("h.0.mlp.c_fc.weight"), rule("h.1.mlp.c_fc.weight")), "{kind}: one launch");
            assert!(Arc::ptr_eq(rule("wte.weight"), rule("h.0.ln_1.weight")), "{kind}: one launch");
        }
    }

    #[test]
    fn mistakes_name_the_item_the_rule_and_the_fix() {
        for (items, freeze, parts) in [
            (&["wte.*"][..], &[][..], ["\"wte.*\"", "PATTERN=MULTIPLIER"]),
            (&["=0.1"], &[], ["\"=0.1\"", "PATTERN=MULTIPLIER"]),
            (&["wte.*=-1"], &[], ["\"wte.*=-1\"", "0 or more"]),
            (&["wte.*=1,x"], &[], ["\"wte.*=1,x\"", "0 or more"]),
            (&["wte.*=nan"], &[], ["nan", "0 or more"]),
            (&["wte.*=1e39"], &[], ["optimizer.param_groups = 1000", "f32"]),
            (&["h.[0-=1"], &[], ["\"h.[0-=1\"", "as in a shell"]),
            (&["h.0.attn.q_proj.*=1"], &[], ["\"h.0.attn.q_proj.*\" matches no parameter", "=1\"]"]),
            (&["*=0.5", "wte.*=1"], &[], ["\"wte.*=1\" has no parameter", "first group that matches"]),
            (&["wte.*=1"], &["wte.*"], ["\"wte.*=1\" has no parameter", "frozen"]),
        ] {
            let error = groups("adamw", items, freeze).unwrap_err().to_string();
            parts.iter().for_each(|part| assert!(error.contains(part), "{error}"));
        }
    }
}
