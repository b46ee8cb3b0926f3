//! Mixtral (Jiang et al., 2024): Mistral's blocks with experts. `MixtralForCausalLM` in `transformers`.

use common::UserError;
use serde_json::json;

use super::config_json::ConfigJson;
use super::expert_files::{self, Names, every};
use super::family::{HuggingFace, Keys, ModelFamily, NamedOptions, TensorNames, sizes};
use super::llama_files::{self, Absent};
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

const ABSENT: Absent = Absent { kv_heads: Some(8), head_dim: None, context: 131_072, norm_eps: 1e-5, rope_base: 1e6 };
const ABSENT_EXPERTS: expert_files::Absent = expert_files::Absent { count: 8, per_token: 2 };
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
    keys: &[
        Keys { read: |config| llama_files::options(config, &ABSENT), write: llama_files::config_json },
        Keys {
            read: |config| expert_files::options(config, &ABSENT_EXPERTS),
            write: |shape| expert_files::config_json(shape, "num_local_experts"),
        },
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
