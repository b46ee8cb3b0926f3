//! Model families: the choices that make a model one of a family, its published sizes, and its files on Hugging Face.
//!
//! To add a family:
//! 1. Write a file here with a [`ModelFamily`]: its choices and its published sizes.
//! 2. Add the family to [`FAMILIES`].
//! 3. If `transformers` has it, add a [`HuggingFace`] to the same file: what it requires of a shape, the keys of
//!    `config.json`, and the names of tensors.
//! 4. If its blocks have a new kind of part, add that to the engine first: see `engine::model`.
//! 5. Add a small model to `tools/tests/hf/models.py`, so that its logits are compared with those of `transformers`.

mod changes;
mod config_json;
mod deepseek;
mod expert_files;
mod family;
mod gemma2;
mod gemma3;
mod gemma_files;
mod gpt2;
mod gpt_oss;
mod llama;
mod llama_files;
mod mistral;
mod mixtral;
mod mlp;
mod olmo2;
mod olmoe;
mod preset;
mod qwen2;
mod qwen3;
mod qwen3_moe;
mod requirements;
mod rope;
mod training;
mod windows;

use std::sync::OnceLock;

use common::UserError;
use engine::model::GptShape;
use serde_json::Value as Json;
use toml::Value;

use family::settings;
use requirements::{DENSE, EXPERTS};

pub use changes::change;
pub use config_json::{COPIED_TABLES, ConfigJson, FURTHER_TOKENS, MOST_LAYERS};
pub use family::{FileLayout, FileTensor, HuggingFace, ModelFamily, ModelOptions, Size, TensorNames};
pub use preset::Preset;

/// The trainer's families. A model with a shape that several have is exported as the first of these.
pub const FAMILIES: &[ModelFamily] = &[
    gpt2::GPT2,
    llama::LLAMA,
    mistral::MISTRAL,
    mixtral::MIXTRAL,
    qwen2::QWEN2,
    qwen3::QWEN3,
    qwen3_moe::QWEN3_MOE,
    olmo2::OLMO2,
    olmoe::OLMOE,
    gemma2::GEMMA2,
    gemma3::GEMMA3,
    gpt_oss::GPT_OSS,
    deepseek::DEEPSEEK_V2,
    deepseek::DEEPSEEK_V3,
    deepseek::GLM4_MOE_LITE,
    mlp::MLP,
];

/// The trainer's families, then the families that the program adds.
fn all() -> impl Iterator<Item = &'static ModelFamily> {
    FAMILIES.iter().chain(ADDED.get().copied().unwrap_or_default())
}

static ADDED: OnceLock<&'static [ModelFamily]> = OnceLock::new();

/// Adds families. Called once.
pub(crate) fn add(families: &'static [ModelFamily]) {
    assert!(ADDED.set(families).is_ok(), "families are added once");
}

/// The families that `transformers` has, with the files of each family.
fn hugging_face() -> impl Iterator<Item = (&'static ModelFamily, &'static HuggingFace)> {
    all().filter_map(|family| Some((family, family.hugging_face?)))
}

/// The names of the families that `transformers` has, such as `GPT-2, Llama`.
pub fn hugging_face_names() -> String {
    hugging_face().map(|(family, _)| family.name).collect::<Vec<_>>().join(", ")
}

/// The family and the options of the model that a `config.json` describes; `origin` names the file in errors.
///
/// # Errors
/// A family or a choice that the trainer does not have.
pub fn from_config_json(config: &Json, origin: &str) -> Result<(&'static HuggingFace, ModelOptions), UserError> {
    let names = hugging_face_names();
    let config = ConfigJson::new(config, origin, &names);
    let kind = config.get("model_type").as_str();
    let Some((family, files)) = hugging_face().find(|(_, files)| Some(files.model_type) == kind) else {
        let known: Vec<String> = hugging_face().map(|(_, files)| format!("{:?}", files.model_type)).collect();
        return Err(config.refuse("model_type", &format!("it is {}", known.join(" or "))));
    };
    let config = config.with_absent(files.absent);
    let mut options = ModelOptions::new();
    let mut set = |name: &str, value: Value| options.insert(format!("model.{name}"), value);
    set("kind", "gpt".into());
    set("attention", true.into());
    for (name, value) in settings(family.choices) {
        set(name, value.parse().unwrap_or_else(|error| unreachable!("{name} = {value}: {error}")));
    }
    for keys in files.keys {
        (keys.read)(&config)?.into_iter().for_each(|(name, value)| drop(set(name, value)));
    }
    config.no_key_is_misspelled()?;
    Ok((files, options))
}

/// The Hugging Face family with files that can hold a model of that shape.
///
/// # Errors
/// In words, the property of the shape that the nearest family lacks.
pub fn of_shape(shape: &GptShape) -> Result<&'static HuggingFace, String> {
    // A family of experts is near to no dense model, nor the other way round.
    let is_of_other_kind = |unmet: &[&str]| unmet.iter().any(|words| [DENSE.1, EXPERTS.1].contains(words));
    // Files of the trainer's families have no tensors for parts of others.
    let of_others = |family: &ModelFamily| {
        let is_ours = FAMILIES.iter().any(|ours| ours.name == family.name);
        (shape.own_part.is_some() && is_ours).then_some("own.part")
    };
    let unmet = |family, files: &'static HuggingFace| of_others(family).into_iter().chain(files.unmet(shape)).collect();
    let families = hugging_face().map(|(family, files)| -> (_, Vec<&str>) { (files, unmet(family, files)) });
    match families.min_by_key(|(_, unmet)| (is_of_other_kind(unmet), unmet.len())) {
        Some((files, unmet)) if unmet.is_empty() => Ok(files),
        Some((_, unmet)) => Err(unmet.join(" and ")),
        None => Err("a shape of no family".into()),
    }
}

#[cfg(test)]
mod tests {
    use common::Choice;

    use super::*;
    use crate::config::ConfigSources;
    use crate::config::plan::{ModelPlan, model_plan};

    #[test]
    fn presets_of_a_name_are_one_and_have_the_choices_of_their_family() {
        let mut names = Preset::WORDS.to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Preset::ALL.len());
        let of = |name: &str, key: &str| {
            let values = Preset::from_word(name).unwrap().values();
            values.filter(|(known, _)| known == key).map(|(_, value)| value).last()
        };
        assert_eq!(of("llama-8b", "model.norm"), Some("\"rmsnorm\""));
        assert_eq!(of("llama-8b", "model.tie_embeddings"), Some("false"));
        assert_eq!(of("llama-1b", "model.tie_embeddings"), Some("true"), "a size overrides its family's choices");
        assert_eq!(of("gpt2-124m", "model.norm"), None);
        assert_eq!(of("gpt2-124m", "optimizer.lr"), Some("6e-4"));
        assert_eq!(Preset::from_word("llama"), None);
        assert_eq!(Preset::default().word(), "tiny");
    }

    /// The family of a model with the given options, or how the model differs from the nearest.
    fn family(options: &str) -> Result<&'static str, String> {
        of_shape(&shape(options)).map(|files| files.model_type)
    }

    fn shape(options: &str) -> GptShape {
        let mut sources = ConfigSources::default();
        sources.read_text(&format!("[model]\n{options}"), "test").unwrap();
        let ModelPlan::Gpt(shape) = model_plan(&sources.resolve()).unwrap() else { panic!("not a gpt") };
        shape
    }

    #[test]
    fn a_shape_is_of_the_family_whose_choices_it_has_or_differs_from_the_nearest_by_named_options() {
        assert_eq!(family("preset = \"tiny\""), Ok("gpt2"));
        assert_eq!(family("preset = \"tiny-llama\"\nbias = true\ntie_embeddings = true"), Ok("llama"));
        for (preset, kind) in [
            ("mistral-nemo-12b", "llama"),
            ("llama-3b", "llama"),
            ("qwen2.5-0.5b", "qwen2"),
            ("qwen3-0.6b", "qwen3"),
            ("olmo2-7b", "olmo2"),
            ("mixtral-8x7b", "mixtral"),
            ("qwen3-30b-a3b", "qwen3_moe"),
            ("olmoe-1b-7b", "olmoe"),
            ("gemma2-2b", "gemma2"),
            ("gemma3-1b", "gemma3_text"),
            ("gemma3-4b", "gemma3_text"),
            ("gpt-oss-20b", "gpt_oss"),
            ("deepseek-v2-lite", "deepseek_v2"),
            ("moonlight-16b-a3b", "deepseek_v3"),
            // Any family that computes the same is found.
            ("glm-4.7-flash", "deepseek_v3"),
        ] {
            assert_eq!(family(&format!("preset = {preset:?}")), Ok(kind));
        }
        assert_eq!(family("preset = \"qwen3-8b\"\nqkv_bias = true"), Err("model.qk_norm = true".into()));
        assert_eq!(family("preset = \"qwen2.5-7b\"\nbias = true"), Ok("llama"), "all linear layers have biases");
        assert_eq!(
            family("preset = \"tiny-llama\"\nactivation = \"gelu\""),
            Err("a model.activation other than \"swiglu\"".into())
        );
        let differs = family("bias = false\nkv_heads = 2");
        assert_eq!(differs, Err("model.bias = false and model.kv_heads below model.heads".into()));
        let differs = family("preset = \"tiny-llama\"\nattention = false\nposition = \"none\"");
        assert_eq!(differs, Err("model.attention = false and a model.position other than \"rotary\"".into()));
    }

    #[test]
    fn a_model_with_experts_is_of_no_dense_family_and_differs_from_the_nearest_with_experts() {
        for (preset, more, differs) in [
            ("mixtral-8x7b", "router_score = \"sigmoid\"", "a model.router_score other than \"softmax\""),
            ("mixtral-8x7b", "router_scale = 2.5", "a model.router_scale other than 1"),
            ("mixtral-8x7b", "router_bias = true", "model.router_bias = true"),
            ("mixtral-8x7b", "shared_expert_ffn = 64", "model.shared_expert_ffn"),
            ("mixtral-8x7b", "router_normalise = false", "model.router_normalise = false"),
            ("mixtral-8x7b", "expert_pattern = [0, 1]", "dense blocks in model.expert_pattern"),
            ("qwen3-30b-a3b", "qkv_bias = true", "model.qkv_bias = true"),
            ("qwen3-30b-a3b", "attention_sinks = true", "model.attention_sinks = true"),
            ("gpt-oss-20b", "attention_sinks = false", "model.attention_sinks = false"),
            ("moonlight-16b-a3b", "router_bias = false", "model.router_bias = false"),
            (
                "deepseek-v2-lite",
                "expert_groups = 8\nexpert_groups_per_token = 2",
                "a model.expert_group_score other than \"highest\"",
            ),
        ] {
            assert_eq!(family(&format!("preset = {preset:?}\n{more}")), Err(differs.into()), "{preset} {more}");
        }
        assert_eq!(family("preset = \"qwen3-30b-a3b\"\nexpert_pattern = [0, 1]"), Ok("qwen3_moe"));
        assert_eq!(family("preset = \"olmoe-1b-7b\"\nrouter_normalise = true"), Ok("olmoe"));
        let (_, olmoe) = hugging_face().find(|(family, _)| family.name == "OLMoE").unwrap();
        for (more, differs) in [
            ("expert_pattern = [1, 0]", "dense blocks in model.expert_pattern"),
            ("head_dim = 64", "a model.head_dim other than hidden / heads"),
            ("qk_norm_over = \"each_head\"", "model.qk_norm_over = \"each_head\" or no model.qk_norm"),
            ("sliding_window = 64", "model.sliding_window"),
        ] {
            assert_eq!(olmoe.unmet(&shape(&format!("preset = \"olmoe-1b-7b\"\n{more}"))), [differs]);
        }
        for preset in ["llama-1b", "mistral-7b", "qwen2.5-0.5b", "qwen3-0.6b", "olmo2-1b", "gemma2-2b", "gemma3-1b"] {
            let shape = shape(&format!("preset = {preset:?}\nexperts = 4"));
            for (ModelFamily { name, .. }, files) in hugging_face() {
                let refused = files.unmet(&shape).contains(&"model.experts");
                let mut rules = files.requirements.iter().copied().flatten();
                assert!(refused || rules.any(|(_, words)| *words == EXPERTS.1), "{preset}: {name}");
            }
        }
    }

    #[test]
    fn the_tensors_of_a_family_have_each_row_of_a_parameter_once() {
        for preset in [
            "tiny",
            "tiny-llama",
            "mistral-nemo-12b",
            "qwen2.5-0.5b",
            "qwen3-0.6b",
            "olmo2-32b",
            "mixtral-8x7b",
            "qwen3-30b-a3b",
            "olmoe-1b-7b",
            "gemma2-2b",
            "gemma3-1b",
            "gpt-oss-20b",
            "moonlight-16b-a3b",
        ] {
            let mut sources = ConfigSources::default();
            sources.set("model.preset", preset, "test").unwrap();
            let ModelPlan::Gpt(shape) = model_plan(&sources.resolve()).unwrap() else { panic!("not a gpt") };
            let family = of_shape(&shape).unwrap();
            let mut names = Vec::new();
            for spec in engine::model::gpt(shape.clone()).specs {
                let tensors = (family.tensors.of)(&shape, &spec.name);
                let rows: usize = tensors.iter().map(|tensor| tensor.rows.unwrap_or(spec.whole[0])).sum();
                assert_eq!(rows, spec.whole[0], "{preset}: {}", spec.name);
                names.extend(tensors.into_iter().map(|tensor| tensor.name));
            }
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count, "{preset}: no tensor has two parameters");
        }
    }
}
