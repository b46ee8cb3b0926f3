//! The linear layers that have low-rank adapters, by PEFT's names.

use std::collections::BTreeSet;

use common::{UserError, nearest};
use engine::model::{AttentionKind, GptShape, Latent, Lora, LoraTarget, gpt};

use super::is_dropout_rate;
use crate::config::RunConfig;
use crate::config::checks::{at_least, require, within};
use crate::families;

/// The target that means all linear layers of blocks, as in PEFT.
const ALL: &str = "all-linear";

/// A linear layer of the model's family, as in the family's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdaptedModule {
    /// The layer's name in a block without `.weight`, such as `self_attn.q_proj`. Those of all experts have one, such as
    /// `mlp.experts.up_proj`.
    pub name: String,
    /// The same layer in our blocks.
    pub target: LoraTarget,
    /// A parameter of all experts, and no module of `transformers`: PEFT has other words for it.
    pub is_parameter: bool,
}

impl AdaptedModule {
    /// The last part of the layer's name, such as `q_proj`. PEFT takes it as a target.
    pub fn short_name(&self) -> &str {
        self.name.rsplit('.').next().unwrap_or(&self.name)
    }

    /// Whether a target of PEFT means the layer: its name, or the end of its name after a dot.
    fn is_meant_by(&self, target: &str) -> bool {
        target == ALL
            || self.name == target
            || self.name.strip_suffix(target).is_some_and(|before| before.ends_with('.'))
    }

    /// Whether each expert has such a layer.
    fn is_of_experts(&self) -> bool {
        self.name.contains("experts.")
    }
}

/// The name of a layer of an expert without the expert's number, such as `mlp.experts.up_proj`. Others stay as they are.
pub fn of_any_expert(name: &str) -> String {
    let without = |(before, after): (&str, &str)| {
        let (expert, rest) = after.split_once('.')?;
        expert.bytes().all(|byte| byte.is_ascii_digit()).then(|| format!("{before}experts.{rest}"))
    };
    name.split_once("experts.").and_then(without).unwrap_or_else(|| name.into())
}

/// The linear layers of a block by the names of the family that `shape` is of.
///
/// # Errors
/// In words, the property of the shape that the nearest family lacks.
pub fn modules(shape: &GptShape) -> Result<Vec<AdaptedModule>, String> {
    use LoraTarget::{
        AttentionOutput, Down, Gate, GateUp, Key, KeyValueLatent, KeyValueOfLatent, Query, QueryKeyValue,
        QueryOfLatent, Up, Value,
    };
    let before_attention = match &shape.attention {
        AttentionKind::Latent(latent) => vec![latent.queries(), KeyValueLatent],
        _ => vec![Query, Key, Value],
    };
    let names = &families::of_shape(shape)?.tensors;
    let own: BTreeSet<String> = gpt(shape.clone()).specs.into_iter().map(|spec| spec.name).collect();
    let has = |weight: &str| own.contains(weight);
    let has_experts = |block: &usize| shape.block_experts(*block).is_some();
    let blocks = [(0..shape.layers).find(|block| !has_experts(block)), (0..shape.layers).find(has_experts)];
    let mut modules: Vec<AdaptedModule> = Vec::new();
    for block in blocks.into_iter().flatten() {
        for (layer, whole, packed) in [
            ("attn.c_attn", QueryKeyValue, &before_attention[..]),
            ("attn.q_b", QueryOfLatent, &[]),
            ("attn.kv_b", KeyValueOfLatent, &[]),
            ("attn.c_proj", AttentionOutput, &[]),
            ("mlp.c_fc", Up, &[Gate, Up]),
            ("mlp.c_proj", Down, &[]),
            ("mlp.experts.c_fc", GateUp, &[Gate, Up]),
            ("mlp.experts.c_proj", Down, &[Down]),
            ("mlp.shared.c_fc", GateUp, &[Gate, Up]),
            ("mlp.shared.c_proj", Down, &[]),
        ] {
            let weight = format!("h.{block}.{layer}.weight");
            if !has(&weight) {
                continue;
            }
            let tensors = (names.of)(shape, &weight);
            let targets = if tensors.len() == 1 { std::slice::from_ref(&whole) } else { packed };
            for (tensor, &target) in tensors.into_iter().zip(targets) {
                let name = tensor.name.strip_suffix(".weight").unwrap_or(&tensor.name);
                let in_block = name.split_once(&format!(".{block}.")).map_or(name, |(_, in_block)| in_block);
                let is_parameter = name == tensor.name;
                let module = AdaptedModule { name: of_any_expert(in_block), target, is_parameter };
                if !modules.contains(&module) {
                    modules.push(module);
                }
            }
        }
    }
    Ok(modules)
}

/// The adapters of a configuration for a model of that shape; `None` without adapters.
///
/// # Errors
/// The first rule that is broken.
pub fn lora_plan(config: &RunConfig, shape: &GptShape) -> Result<Option<Lora>, UserError> {
    let model = &config.model;
    if model.lora_rank == 0 {
        return Ok(None);
    }
    is_dropout_rate("model.lora_dropout", model.lora_dropout)?;
    let alpha = model.lora_alpha;
    within("model.lora_alpha", alpha, alpha > 0.0 && alpha.is_finite(), "it is above 0", "set model.lora_alpha = 16")?;
    let of_attention = match shape.attention {
        AttentionKind::Latent(Latent { query_rank, rank, .. }) => {
            query_rank.map_or(rank, |of_queries| of_queries.min(rank))
        }
        _ => shape.kv_heads * shape.head_dim(),
    };
    let widths = [shape.hidden, of_attention, shape.ffn].into_iter();
    let narrowest = widths.chain(shape.experts.as_ref().map(|experts| experts.ffn)).min().unwrap_or(0);
    require(model.lora_rank <= narrowest, || {
        UserError::new(
            format!("model.lora_rank = {}", model.lora_rank),
            format!("the rank is below the sizes of the matrices, of which the smallest is {narrowest}"),
            "set model.lora_rank = 16 (--lora-rank 16), or less",
        )
    })?;
    let all = modules(shape).map_err(|options| {
        let own = config.own.text("part").map_or(String::new(), |part| format!(" with own.part = {part:?}"));
        UserError::new(
            format!("model.lora_rank = {}{own} on a model with {options}", model.lora_rank),
            format!("a model with adapters is of one of these families: {}", families::hugging_face_names()),
            "start from a model of one of them: --init-from FOLDER",
        )
    })?;
    at_least("the number of model.lora_target_modules", model.lora_target_modules.len(), 1)?;
    let texts = || model.lora_target_modules.iter().flat_map(|texts| texts.split(','));
    let is_meant = |module: &AdaptedModule| texts().any(|text| module.is_meant_by(text));
    if let Some(text) = texts().find(|text| !all.iter().any(|module| module.is_meant_by(text))) {
        return Err(unknown(text, &all));
    }
    let mut targets: Vec<LoraTarget> =
        all.iter().filter(|module| is_meant(module)).map(|module| module.target).collect();
    targets.sort_unstable();
    targets.dedup();
    if let Some(other) = all.iter().find(|module| targets.contains(&module.target) && !is_meant(module)) {
        return Err(UserError::new(
            format!("model.lora_target_modules leaves out {}, and has layers of the same kind", other.name),
            "layers of a kind have adapters in all blocks, of experts or not",
            format!("name them all: --lora-target-modules {}", other.short_name()),
        ));
    }
    if let Some(of_experts) = all.iter().find(|module| module.is_of_experts() && targets.contains(&module.target))
        && model.lora_dropout > 0.0
    {
        return Err(UserError::new(
            format!("model.lora_dropout = {} with adapters of {}", model.lora_dropout, of_experts.name),
            "adapters of experts drop nothing",
            "set model.lora_dropout = 0, or name layers of attention alone in --lora-target-modules",
        ));
    }
    Ok(Some(Lora { rank: model.lora_rank, alpha, dropout: model.lora_dropout, targets }))
}

fn unknown(text: &str, all: &[AdaptedModule]) -> UserError {
    let mut names: Vec<&str> = all.iter().map(AdaptedModule::short_name).collect();
    names.sort_unstable();
    names.dedup();
    let near = nearest(text, names.iter().copied().chain([ALL])).unwrap_or(ALL);
    UserError::new(
        format!("model.lora_target_modules has {text:?}"),
        format!("the linear layers of this model's blocks are {}; {ALL:?} is all of them", names.join(", ")),
        format!("for example --lora-target-modules {near}"),
    )
}

#[cfg(test)]
mod tests {
    use super::super::{ModelPlan, model_plan};
    use super::*;
    use crate::config::ConfigSources;

    fn plan(options: &str) -> Result<Option<Lora>, String> {
        let mut sources = ConfigSources::default();
        sources.read_text(options, "test").unwrap();
        let ModelPlan::Gpt(shape) = model_plan(&sources.resolve()).map_err(|error| error.to_string())? else {
            panic!("not a gpt")
        };
        Ok(shape.lora)
    }

    #[test]
    fn targets_have_the_names_of_the_models_family() {
        use LoraTarget::{
            AttentionOutput, Down, Gate, GateUp, Key, KeyValueLatent, KeyValueOfLatent, Query, QueryKeyValue,
            QueryLatent, QueryOfLatent, Up, Value,
        };
        let targets = |options: &str| plan(&format!("[model]\nlora_rank = 8\n{options}")).unwrap().unwrap().targets;
        let llama = "preset = \"tiny-llama\"\n";
        assert_eq!(targets(llama), [Query, Key, Value, AttentionOutput, Gate, Up, Down]);
        assert_eq!(
            targets(&format!("{llama}lora_target_modules = [\"v_proj\", \"q_proj\", \"v_proj\"]")),
            [Query, Value]
        );
        assert_eq!(targets(&format!("{llama}lora_target_modules = [\"mlp.up_proj\"]")), [Up]);
        let mixture = "preset = \"qwen3-30b-a3b\"\n";
        assert_eq!(targets(mixture), [Query, Key, Value, AttentionOutput, Gate, Up, Down]);
        assert_eq!(targets(&format!("{mixture}lora_target_modules = [\"mlp.experts.down_proj\"]")), [Down]);
        assert_eq!(targets("preset = \"gpt-oss-20b\"\nlora_target_modules = [\"gate_up_proj\"]"), [GateUp]);
        assert_eq!(targets("preset = \"mixtral-8x7b\"\nlora_target_modules = [\"w2\", \"w3\"]"), [Up, Down]);
        assert_eq!(targets(""), [QueryKeyValue, AttentionOutput, Up, Down]);
        let latent = "preset = \"glm-4.7-flash\"\nlora_target_modules";
        assert_eq!(
            targets(&format!(
                "{latent} = [\"q_a_proj\", \"q_b_proj\", \"kv_a_proj_with_mqa\", \"kv_b_proj\", \"o_proj\"]"
            )),
            [QueryLatent, KeyValueLatent, QueryOfLatent, KeyValueOfLatent, AttentionOutput]
        );
        let latent = latent.replace("glm-4.7-flash", "deepseek-v2-lite");
        assert_eq!(targets(&format!("{latent} = [\"q_proj\", \"kv_b_proj\"]")), [Query, KeyValueOfLatent]);
        // Both projections of GPT-2 have this name.
        assert_eq!(targets("lora_target_modules = [\"c_proj\"]"), [AttentionOutput, Down]);
        assert_eq!(plan("[model]\nlora_alpha = 8.0").unwrap(), None);
    }

    #[test]
    fn adapters_that_a_model_cannot_have_are_refused_with_what_it_has() {
        for (options, words) in [
            ("lora_target_modules = [\"q_proj\"]", "c_attn, c_fc, c_proj"),
            ("lora_target_modules = []", "model.lora_target_modules"),
            ("lora_alpha = 0.0", "model.lora_alpha"),
            ("lora_dropout = 1.0", "model.lora_dropout"),
            ("hidden = 32\nlora_rank = 33", "smallest is 32"),
            ("activation = \"swiglu\"", "families"),
        ] {
            let rank = if options.contains("lora_rank") { "" } else { "lora_rank = 8\n" };
            let error = plan(&format!("[model]\n{rank}{options}")).unwrap_err();
            assert!(error.contains(words), "{options}: {error}");
        }
        let mixture = "[model]\npreset = \"qwen3-30b-a3b\"\nexperts = 8\nlora_rank = 8\n";
        let error = plan(&format!("{mixture}lora_dropout = 0.1")).unwrap_err();
        assert!(error.contains("adapters of mlp.experts.gate_proj") && error.contains("lora_dropout = 0"), "{error}");
        let some = format!("{mixture}lora_dropout = 0.1\nlora_target_modules = [\"q_proj\", \"o_proj\"]");
        assert!(plan(&some).is_ok());
        // Dense blocks and those with experts have layers of the same kinds.
        let both = format!("{mixture}expert_pattern = [0, 1]\n");
        let error = plan(&format!("{both}lora_target_modules = [\"experts.up_proj\"]")).unwrap_err();
        assert!(error.contains("leaves out mlp.up_proj") && error.contains("modules up_proj"), "{error}");
        assert!(plan(&format!("{both}lora_target_modules = [\"up_proj\"]")).is_ok());
    }
}
