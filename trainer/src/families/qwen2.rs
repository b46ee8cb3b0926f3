//! Qwen2 and Qwen2.5 (Yang et al., 2024): Llama's blocks with biases on queries, keys and values. `Qwen2ForCausalLM` in
//! `transformers`.

use super::family::{HuggingFace, ModelFamily, sizes};
use super::llama_files;
use super::requirements::{DENSE, NO_BIAS, NO_QK_NORM, NOT_GEMMA, OF_LLAMAS, PRE_NORM};
use super::training::large;
use super::windows;

/// The family.
pub const QWEN2: ModelFamily = ModelFamily {
    name: "Qwen2",
    choices: r#"norm = "rmsnorm"; norm_eps = 1e-6; activation = "swiglu"; position = "rotary"; rope_base = 1000000.0;
                bias = false; qkv_bias = true; residual_init = "plain"; tie_embeddings = false"#,
    sizes: sizes! {
        // config.json of Qwen/Qwen2.5-0.5B, -1.5B and -7B. Most of their training had a context of 4096. Its learning
        // rates are not published; these are Llama's.
        "qwen2.5-0.5b", large("3e-4"),
            "layers = 24; hidden = 896; heads = 14; kv_heads = 2; ffn = 4864; vocab = 151936; seq_length = 4096;
             tie_embeddings = true";
        "qwen2.5-1.5b", large("3e-4"),
            "layers = 28; hidden = 1536; heads = 12; kv_heads = 2; ffn = 8960; vocab = 151936; seq_length = 4096;
             tie_embeddings = true";
        "qwen2.5-7b", large("3e-4"),
            "layers = 28; hidden = 3584; heads = 28; kv_heads = 4; ffn = 18944; vocab = 152064; seq_length = 4096";
    },
    hugging_face: Some(&FILES),
};

const FILES: HuggingFace = HuggingFace {
    model_type: "qwen2",
    class: "Qwen2ForCausalLM",
    requirements: &[
        OF_LLAMAS,
        NOT_GEMMA,
        &[DENSE, NO_BIAS, (|shape| shape.qkv_bias, "model.qkv_bias = false"), NO_QK_NORM, PRE_NORM],
    ],
    absent: "num_key_value_heads = 32; max_position_embeddings = 32768; rms_norm_eps = 1e-6;
             rope_theta = 10000.0",
    keys: &[llama_files::KEYS, windows::OPTIONAL],
    tensors: llama_files::TENSORS,
};
