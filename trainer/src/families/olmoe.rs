//! OLMoE (Muennighoff et al., 2024): experts, norms before attention and experts, and norms over all queries and all keys.
//! `OlmoeForCausalLM` in `transformers`.

use common::UserError;
use engine::model::{GptShape, QkNorm};
use serde_json::{Value as Json, json};
use toml::Value;

use super::config_json::ConfigJson;
use super::expert_files;
use super::family::{FileTensor, HuggingFace, ModelFamily, ModelOptions, Size, TensorNames};
use super::llama_files::{self, Absent};
use super::training::large_with_experts;

/// The family.
pub const OLMOE: ModelFamily = ModelFamily {
    name: "OLMoE",
    choices: &[
        ("model.norm", "\"rmsnorm\""),
        ("model.norm_eps", "1e-5"),
        ("model.activation", "\"swiglu\""),
        ("model.position", "\"rotary\""),
        ("model.rope_base", "10000.0"),
        ("model.bias", "false"),
        ("model.qk_norm", "true"),
        ("model.qk_norm_over", "\"all_heads\""),
        ("model.router_normalise", "false"),
        ("model.residual_init", "\"plain\""),
        ("model.tie_embeddings", "false"),
    ],
    // config.json of allenai/OLMoE-1B-7B-0924; learning rates as in Muennighoff et al., 2024.
    sizes: &[Size {
        name: "olmoe-1b-7b",
        model: &[
            ("model.layers", "16"),
            ("model.hidden", "2048"),
            ("model.heads", "16"),
            ("model.ffn", "1024"),
            ("model.experts", "64"),
            ("model.experts_per_token", "8"),
            ("model.vocab", "50304"),
            ("model.seq_length", "4096"),
        ],
        training: &large_with_experts("4e-4", "0.01"),
    }],
    hugging_face: Some(&OlmoeFiles),
};

struct OlmoeFiles;

const ABSENT: Absent = Absent { kv_heads: None, head_dim: None, context: 4096, norm_eps: 1e-5, rope_base: 1e4 };
const ABSENT_EXPERTS: expert_files::Absent = expert_files::Absent { count: 64, per_token: 8 };

impl HuggingFace for OlmoeFiles {
    fn model_type(&self) -> &'static str {
        "olmoe"
    }

    fn requirements(&self, shape: &GptShape) -> Vec<(bool, &'static str)> {
        let mut all = expert_files::requirements(shape);
        all.extend([
            (shape.qk_norm == Some(QkNorm::AllHeads), "model.qk_norm_over = \"each_head\" or no model.qk_norm"),
            (shape.head_dim() * shape.heads == shape.hidden, "a model.head_dim other than hidden / heads"),
            (shape.windows.is_none(), "model.sliding_window"),
            expert_files::without_dense_blocks(shape),
        ]);
        all
    }

    fn options(&self, config: &ConfigJson<'_>) -> Result<ModelOptions, UserError> {
        config.is_known("attention_bias", &[json!(false)])?;
        if !config.get("clip_qkv").is_null() {
            return Err(config.refuse("clip_qkv", "it is null or absent: norms of queries and keys take its place"));
        }
        let mut options = llama_files::options(config, &ABSENT)?;
        if options.iter().any(|(key, _)| *key == "model.head_dim") {
            return Err(config.refuse("head_dim", "it is hidden_size / num_attention_heads"));
        }
        options.extend(expert_files::options(config, &ABSENT_EXPERTS)?);
        options.extend([
            ("model.router_normalise", config.flag_or("norm_topk_prob", false)?.into()),
            ("model.bias", false.into()),
            ("model.qk_norm", true.into()),
            ("model.qk_norm_over", Value::String("all_heads".into())),
        ]);
        Ok(options)
    }

    fn config_json(&self, shape: &GptShape) -> Json {
        let mut config = expert_files::config_json(shape, "num_experts");
        config.insert("architectures".into(), json!(["OlmoeForCausalLM"]));
        config.insert("model_type".into(), json!("olmoe"));
        config.insert("attention_bias".into(), json!(false));
        config.insert("intermediate_size".into(), expert_files::value(shape, |experts| experts.ffn));
        config.insert("norm_topk_prob".into(), expert_files::value(shape, |experts| experts.router.normalise));
        config.into()
    }

    fn tensors(&self) -> &'static TensorNames {
        &TensorNames { of: tensors, fused: expert_files::fused, ..llama_files::TENSORS }
    }
}

fn tensors(shape: &GptShape, parameter: &str) -> Vec<FileTensor> {
    expert_files::tensors(&expert_files::NAMES, shape, parameter)
}
