//! The linear layers that have low-rank adapters, by the names that PEFT has for them.

use common::{UserError, nearest};
use engine::model::{GptShape, Lora, LoraTarget};

use crate::config::checks::{at_least, require, within};
use crate::config::model_plan::is_dropout_rate;
use crate::config::{Fp8Choice, RunConfig};
use crate::families;

/// The target that means all linear layers of blocks, as in PEFT.
const ALL: &str = "all-linear";

/// A linear layer of the model's family, as its files have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdaptedModule {
    /// The layer's name in a block without `.weight`, such as `self_attn.q_proj`.
    pub name: String,
    /// The same layer in our blocks.
    pub target: LoraTarget,
}

impl AdaptedModule {
    /// The last part of its name, such as `q_proj`. PEFT takes it as a target.
    pub fn short_name(&self) -> &str {
        self.name.rsplit('.').next().unwrap_or(&self.name)
    }

    /// Whether a target of PEFT means it: its name, or the end of its name after a dot.
    fn is_meant_by(&self, target: &str) -> bool {
        self.name == target || self.name.strip_suffix(target).is_some_and(|before| before.ends_with('.'))
    }
}

/// The linear layers of a block by the names of the family that `shape` is of.
///
/// # Errors
/// In words, the property of the shape that the nearest family lacks.
pub fn modules(shape: &GptShape) -> Result<Vec<AdaptedModule>, String> {
    use LoraTarget::{AttentionOutput, Down, Gate, Key, Query, QueryKeyValue, Up, Value};
    let names = &families::of_shape(shape)?.tensors;
    let mut modules = Vec::new();
    for (weight, whole, packed) in [
        ("attn.c_attn", QueryKeyValue, &[Query, Key, Value][..]),
        ("attn.c_proj", AttentionOutput, &[]),
        ("mlp.c_fc", Up, &[Gate, Up]),
        ("mlp.c_proj", Down, &[]),
    ] {
        let tensors = (names.of)(shape, &format!("h.0.{weight}.weight"));
        let targets = if tensors.len() == 1 { &[whole][..] } else { packed };
        modules.extend(tensors.into_iter().zip(targets).map(|(tensor, &target)| {
            let name = tensor.name.strip_suffix(".weight").unwrap_or(&tensor.name);
            let in_block = name.split_once(".0.").map_or(name, |(_, in_block)| in_block);
            AdaptedModule { name: in_block.into(), target }
        }));
    }
    Ok(modules)
}

/// The adapters of a configuration for a model of that shape; `None` if it has none.
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
    let narrowest = shape.hidden.min(shape.kv_heads * shape.head_dim()).min(shape.ffn);
    require(model.lora_rank <= narrowest, || {
        UserError::new(
            format!("model.lora_rank = {}", model.lora_rank),
            format!("the rank is below the sizes of the matrices, of which the smallest is {narrowest}"),
            "set model.lora_rank = 16 (--lora-rank 16), or less",
        )
    })?;
    require(config.precision.fp8 == Fp8Choice::None, || {
        UserError::new(
            format!("model.lora_rank = {} with precision.fp8 = \"{}\"", model.lora_rank, config.precision.fp8),
            "adapters go with f32 and bf16",
            "set precision.fp8 = \"none\", or leave out --lora-rank",
        )
    })?;
    let all = modules(shape).map_err(|options| {
        UserError::new(
            format!("model.lora_rank = {} on a model with {options}", model.lora_rank),
            format!("a model with adapters is of one of these families: {}", families::hugging_face_names()),
            "start from a model of one of them: --init-from FOLDER",
        )
    })?;
    at_least("the number of model.lora_target_modules", model.lora_target_modules.len(), 1)?;
    let mut targets = Vec::new();
    for text in model.lora_target_modules.iter().flat_map(|texts| texts.split(',')) {
        let meant = all.iter().filter(|module| text == ALL || module.is_meant_by(text));
        let before = targets.len();
        targets.extend(meant.map(|module| module.target));
        if let Some(experts) = &shape.experts
            && targets.iter().any(|target| is_in_feed_forward(*target))
        {
            return Err(of_experts(text, experts.count, &all));
        }
        if targets.len() == before {
            return Err(unknown(text, &all));
        }
    }
    targets.sort_unstable();
    targets.dedup();
    Ok(Some(Lora { rank: model.lora_rank, alpha, dropout: model.lora_dropout, targets }))
}

/// Whether a layer is in feed-forward layers.
fn is_in_feed_forward(target: LoraTarget) -> bool {
    matches!(target, LoraTarget::Gate | LoraTarget::Up | LoraTarget::Down)
}

/// A target that means a feed-forward layer, of a model with experts.
fn of_experts(text: &str, experts: usize, all: &[AdaptedModule]) -> UserError {
    let attention: Vec<&AdaptedModule> = all.iter().filter(|module| !is_in_feed_forward(module.target)).collect();
    let names: Vec<&str> = attention.iter().map(|module| module.short_name()).collect();
    UserError::new(
        format!("model.lora_target_modules has {text:?} with model.experts = {experts}"),
        "in a model with experts only attention has adapters, its feed-forward layers have none",
        format!("--lora-target-modules {}", names.join(" ")),
    )
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
    use super::*;
    use crate::config::ConfigSources;
    use crate::config::model_plan::{ModelPlan, model_plan};

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
        use LoraTarget::{AttentionOutput, Down, Gate, Key, Query, QueryKeyValue, Up, Value};
        let targets = |options: &str| plan(&format!("[model]\nlora_rank = 8\n{options}")).unwrap().unwrap().targets;
        let llama = "preset = \"tiny-llama\"\n";
        assert_eq!(targets(llama), [Query, Key, Value, AttentionOutput, Gate, Up, Down]);
        assert_eq!(
            targets(&format!("{llama}lora_target_modules = [\"v_proj\", \"q_proj\", \"v_proj\"]")),
            [Query, Value]
        );
        assert_eq!(targets(&format!("{llama}lora_target_modules = [\"mlp.up_proj\"]")), [Up]);
        assert_eq!(targets(""), [QueryKeyValue, AttentionOutput, Up, Down]);
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
        let mixture = "[model]\npreset = \"tiny-llama\"\nexperts = 4\nlora_rank = 8\n";
        for text in ["all-linear", "up_proj", "q_proj,mlp.down_proj"] {
            let error = plan(&format!("{mixture}lora_target_modules = [\"{text}\"]")).unwrap_err();
            let words =
                ["with model.experts = 4", "only attention", "--lora-target-modules q_proj k_proj v_proj o_proj"];
            assert!(words.iter().all(|word| error.contains(word)), "{text}: {error}");
        }
        assert!(plan(&format!("{mixture}lora_target_modules = [\"q_proj\", \"o_proj\"]")).is_ok());
        let error = plan("[model]\nlora_rank = 8\n[precision]\ncompute = \"bf16\"\nfp8 = \"hybrid\"").unwrap_err();
        assert!(error.contains("precision.fp8"), "{error}");
    }
}
