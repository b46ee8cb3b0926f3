//! Mixtral (Jiang et al., 2024): Mistral's blocks with experts. `MixtralForCausalLM` in `transformers`.

use common::UserError;
use engine::model::GptShape;
use serde_json::{Value as Json, json};

use super::config_json::ConfigJson;
use super::expert_files::{self, Names};
use super::family::{FileTensor, HuggingFace, ModelFamily, ModelOptions, Size, TensorNames};
use super::llama_files::{self, Absent};
use super::training::large_with_experts;
use super::windows;

/// The family.
pub const MIXTRAL: ModelFamily = ModelFamily {
    name: "Mixtral",
    choices: &[
        ("model.norm", "\"rmsnorm\""),
        ("model.norm_eps", "1e-5"),
        ("model.activation", "\"swiglu\""),
        ("model.position", "\"rotary\""),
        ("model.rope_base", "1000000.0"),
        ("model.bias", "false"),
        ("model.residual_init", "\"plain\""),
        ("model.tie_embeddings", "false"),
    ],
    // config.json of mistralai/Mixtral-8x7B-v0.1. It has no window. Learning rates are as for Mistral.
    sizes: &[Size {
        name: "mixtral-8x7b",
        model: &[
            ("model.layers", "32"),
            ("model.hidden", "4096"),
            ("model.heads", "32"),
            ("model.kv_heads", "8"),
            ("model.ffn", "14336"),
            ("model.experts", "8"),
            ("model.experts_per_token", "2"),
            ("model.vocab", "32000"),
            ("model.seq_length", "8192"),
        ],
        training: &large_with_experts("3e-4", "0.02"),
    }],
    hugging_face: Some(&MixtralFiles),
};

struct MixtralFiles;

const ABSENT: Absent = Absent { kv_heads: Some(8), head_dim: None, context: 131_072, norm_eps: 1e-5, rope_base: 1e6 };
const ABSENT_EXPERTS: expert_files::Absent = expert_files::Absent { count: 8, per_token: 2 };
const NAMES: Names = Names { module: "block_sparse_moe", matrices: ["w1", "w3", "w2"] };

impl HuggingFace for MixtralFiles {
    fn model_type(&self) -> &'static str {
        "mixtral"
    }

    fn requirements(&self, shape: &GptShape) -> Vec<(bool, &'static str)> {
        let mut all = expert_files::requirements(shape);
        let normalises = shape.experts.as_ref().is_none_or(|experts| experts.router.normalise);
        all.extend([
            (normalises, "model.router_normalise = false"),
            expert_files::without_dense_blocks(shape),
            (shape.qk_norm.is_none(), "model.qk_norm = true"),
            (windows::are_in_all_blocks_or_none(shape), "a model.window_pattern"),
        ]);
        all
    }

    fn options(&self, config: &ConfigJson<'_>) -> Result<ModelOptions, UserError> {
        config.is_known("router_jitter_noise", &[json!(0.0), json!(0)])?;
        let mut options = llama_files::options(config, &ABSENT)?;
        options.extend(expert_files::options(config, &ABSENT_EXPERTS)?);
        let has_windows = !config.get("sliding_window").is_null();
        let window = if has_windows { Some(config.whole("sliding_window")?) } else { None };
        options.extend(windows::options(window, &[true]));
        options.push(("model.bias", false.into()));
        Ok(options)
    }

    fn config_json(&self, shape: &GptShape) -> Json {
        let mut config = expert_files::config_json(shape, "num_local_experts");
        config.insert("architectures".into(), json!(["MixtralForCausalLM"]));
        config.insert("model_type".into(), json!("mixtral"));
        config.insert("sliding_window".into(), windows::tokens(shape));
        config.insert("intermediate_size".into(), expert_files::value(shape, |experts| experts.ffn));
        config.into()
    }

    fn tensors(&self) -> &'static TensorNames {
        &TensorNames { of: tensors, fused: expert_files::fused, ..llama_files::TENSORS }
    }
}

fn tensors(shape: &GptShape, parameter: &str) -> Vec<FileTensor> {
    expert_files::tensors(&NAMES, shape, parameter)
}
