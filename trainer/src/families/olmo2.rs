//! OLMo 2 (Team OLMo, 2024): norms after attention and feed-forward instead of before, and over all queries and all keys.
//! `Olmo2ForCausalLM` in `transformers`.

use engine::model::NormPlacement;

use super::family::{HuggingFace, ModelFamily, sizes};
use super::llama_files;
use super::requirements::{DENSE, NO_BIAS, NO_QKV_BIAS, NO_WINDOWS, NORM_OF_ALL_HEADS, NOT_GEMMA, OF_LLAMAS};
use super::training::large;

/// The family.
pub const OLMO2: ModelFamily = ModelFamily {
    name: "OLMo 2",
    choices: r#"norm = "rmsnorm"; norm_eps = 1e-6; norm_placement = "post"; activation = "swiglu";
                position = "rotary"; rope_base = 500000.0; bias = false; qk_norm = true; qk_norm_over = "all_heads";
                residual_init = "plain"; tie_embeddings = false"#,
    sizes: sizes! {
        // config.json of allenai/OLMo-2-0425-1B, -1124-7B, -1124-13B and -0325-32B; learning rates as in Team OLMo,
        // 2024.
        "olmo2-1b", large("4e-4"),
            "layers = 16; hidden = 2048; heads = 16; ffn = 8192; vocab = 100352; seq_length = 4096";
        "olmo2-7b", large("3e-4"),
            "layers = 32; hidden = 4096; heads = 32; ffn = 11008; vocab = 100352; seq_length = 4096";
        "olmo2-13b", large("9e-4"),
            "layers = 40; hidden = 5120; heads = 40; ffn = 13824; vocab = 100352; seq_length = 4096";
        "olmo2-32b", large("6e-4"),
            "layers = 64; hidden = 5120; heads = 40; kv_heads = 8; ffn = 27648; vocab = 100352; seq_length = 4096";
    },
    hugging_face: Some(&FILES),
};

const FILES: HuggingFace = HuggingFace {
    model_type: "olmo2",
    class: "Olmo2ForCausalLM",
    requirements: &[
        OF_LLAMAS,
        NOT_GEMMA,
        &[
            DENSE,
            (|shape| shape.norm_placement == NormPlacement::Post, "a model.norm_placement other than \"post\""),
            NO_BIAS,
            NO_QKV_BIAS,
            NORM_OF_ALL_HEADS,
            NO_WINDOWS,
        ],
    ],
    absent: "max_position_embeddings = 2048; rms_norm_eps = 1e-5; rope_theta = 10000.0",
    keys: &[llama_files::KEYS, llama_files::NO_ATTENTION_BIAS],
    tensors: llama_files::TENSORS_WITH_NORMS_AFTER,
};
