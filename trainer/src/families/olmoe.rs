//! OLMoE (Muennighoff et al., 2024): experts, norms before attention and experts, and norms over all queries and all keys.
//! `OlmoeForCausalLM` in `transformers`.

use common::UserError;

use super::config_json::ConfigJson;
use super::expert_files::{self};
use super::family::{HuggingFace, Keys, ModelFamily, NamedOptions, sizes};
use super::llama_files;
use super::requirements::{NO_WINDOWS, NORM_OF_ALL_HEADS, NOT_GEMMA, OF_LLAMAS, USUAL_HEAD_DIM};
use super::training::large_with_experts;

/// The family.
pub const OLMOE: ModelFamily = ModelFamily {
    name: "OLMoE",
    choices: r#"norm = "rmsnorm"; norm_eps = 1e-5; activation = "swiglu"; position = "rotary"; rope_base = 10000.0;
                bias = false; qk_norm = true; qk_norm_over = "all_heads"; router_normalise = false;
                residual_init = "plain"; tie_embeddings = false"#,
    // config.json of allenai/OLMoE-1B-7B-0924; learning rates as in Muennighoff et al., 2024.
    sizes: sizes! {
        "olmoe-1b-7b", large_with_experts("4e-4", "0.01"),
            "layers = 16; hidden = 2048; heads = 16; ffn = 1024; experts = 64; experts_per_token = 8; vocab = 50304;
             seq_length = 4096";
    },
    hugging_face: Some(&FILES),
};

const FILES: HuggingFace = HuggingFace {
    model_type: "olmoe",
    class: "OlmoeForCausalLM",
    requirements: &[
        OF_LLAMAS,
        NOT_GEMMA,
        expert_files::REQUIREMENTS,
        expert_files::PLAIN_ROUTERS,
        &[NORM_OF_ALL_HEADS, USUAL_HEAD_DIM, NO_WINDOWS, expert_files::NO_DENSE_BLOCKS],
    ],
    absent: "max_position_embeddings = 4096; rms_norm_eps = 1e-5; rope_theta = 10000.0;
             num_local_experts = 64; num_experts_per_tok = 8",
    keys: &[
        Keys { read: options, write: llama_files::config_json },
        llama_files::NO_ATTENTION_BIAS,
        expert_files::KEYS,
        expert_files::FFN_IS_OF_EXPERTS,
        expert_files::NORMALISED,
    ],
    tensors: expert_files::TENSORS,
};

fn options(config: &ConfigJson<'_>) -> Result<NamedOptions, UserError> {
    if !config.get("clip_qkv").is_null() {
        return Err(config.refuse("clip_qkv", "it is null or absent: norms of queries and keys take its place"));
    }
    let options = llama_files::options(config)?;
    match options.iter().any(|(name, _)| *name == "head_dim") {
        true => Err(config.refuse("head_dim", "it is hidden_size / num_attention_heads")),
        false => Ok(options),
    }
}
