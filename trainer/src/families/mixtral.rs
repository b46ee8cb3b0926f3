//! Mixtral (Jiang et al., 2024): Mistral's blocks with experts. `MixtralForCausalLM` in `transformers`.

use common::UserError;
use serde_json::json;

use super::config_json::ConfigJson;
use super::expert_files::{self, Names, every};
use super::family::{HuggingFace, Keys, ModelFamily, NamedOptions, TensorNames, sizes};
use super::llama_files;
use super::requirements::{NO_QK_NORM, NOT_GEMMA, OF_LLAMAS, SAME_WINDOWS};
use super::training::large_with_experts;
use super::windows;

/// The family.
pub const MIXTRAL: ModelFamily = ModelFamily {
    name: "Mixtral",
    choices: r#"norm = "rmsnorm"; norm_eps = 1e-5; activation = "swiglu"; position = "rotary"; rope_base = 1000000.0;
                bias = false; residual_init = "plain"; tie_embeddings = false"#,
    // config.json of mistralai/Mixtral-8x7B-v0.1. It has no window. Learning rates are as for Mistral.
    sizes: sizes! {
        "mixtral-8x7b", large_with_experts("3e-4", "0.02"),
            "layers = 32; hidden = 4096; heads = 32; kv_heads = 8; ffn = 14336; experts = 8; experts_per_token = 2;
             vocab = 32000; seq_length = 8192";
    },
    hugging_face: Some(&FILES),
};

const NAMES: Names = Names { module: "block_sparse_moe", matrices: ["w1", "w3", "w2"] };

const FILES: HuggingFace = HuggingFace {
    model_type: "mixtral",
    class: "MixtralForCausalLM",
    requirements: &[
        OF_LLAMAS,
        NOT_GEMMA,
        expert_files::REQUIREMENTS,
        expert_files::PLAIN_ROUTERS,
        &[
            (|shape| every(shape, |experts| experts.router.normalise), "model.router_normalise = false"),
            expert_files::NO_DENSE_BLOCKS,
            NO_QK_NORM,
            SAME_WINDOWS,
        ],
    ],
    absent: "num_key_value_heads = 8; max_position_embeddings = 131072; rms_norm_eps = 1e-5;
             rope_theta = 1000000.0; num_local_experts = 8; num_experts_per_tok = 2",
    keys: &[
        llama_files::KEYS,
        expert_files::LOCAL_KEYS,
        expert_files::FFN_IS_OF_EXPERTS,
        Keys { read: window, write: |shape| json!({ "sliding_window": windows::tokens(shape) }) },
    ],
    tensors: TensorNames {
        of: |shape, parameter| expert_files::tensors(&NAMES, shape, parameter),
        ..expert_files::TENSORS
    },
};

fn window(config: &ConfigJson<'_>) -> Result<NamedOptions, UserError> {
    config.is_known("router_jitter_noise", &[json!(0.0), json!(0)])?;
    let has_windows = !config.get("sliding_window").is_null();
    let window = if has_windows { Some(config.whole("sliding_window")?) } else { None };
    Ok(windows::options(window, &[true]))
}
