//! Qwen3 (Yang et al., 2025), dense: Llama's blocks with RMSNorms on queries and keys, head by head. `Qwen3ForCausalLM` in
//! `transformers`.

use super::family::{HuggingFace, ModelFamily, sizes};
use super::llama_files;
use super::requirements::{DENSE, NO_BIAS, NO_QKV_BIAS, NORM_OF_EACH_HEAD, NOT_GEMMA, OF_LLAMAS, PRE_NORM};
use super::training::large;
use super::windows;

/// The family.
pub const QWEN3: ModelFamily = ModelFamily {
    name: "Qwen3",
    choices: r#"norm = "rmsnorm"; norm_eps = 1e-6; activation = "swiglu"; position = "rotary"; rope_base = 1000000.0;
                bias = false; qk_norm = true; residual_init = "plain"; tie_embeddings = false"#,
    sizes: sizes! {
        // config.json of Qwen/Qwen3-0.6B-Base, -1.7B-Base, -4B-Base and -8B-Base. Most of their training had a context
        // of 4096. Its learning rates are not published; these are Llama's.
        "qwen3-0.6b", large("3e-4"),
            "layers = 28; hidden = 1024; heads = 16; kv_heads = 8; head_dim = 128; ffn = 3072; vocab = 151936;
             seq_length = 4096; tie_embeddings = true";
        "qwen3-1.7b", large("3e-4"),
            "layers = 28; hidden = 2048; heads = 16; kv_heads = 8; head_dim = 128; ffn = 6144; vocab = 151936;
             seq_length = 4096; tie_embeddings = true";
        "qwen3-4b", large("3e-4"),
            "layers = 36; hidden = 2560; heads = 32; kv_heads = 8; head_dim = 128; ffn = 9728; vocab = 151936;
             seq_length = 4096; tie_embeddings = true";
        "qwen3-8b", large("3e-4"),
            "layers = 36; hidden = 4096; heads = 32; kv_heads = 8; head_dim = 128; ffn = 12288; vocab = 151936;
             seq_length = 4096";
    },
    hugging_face: Some(&FILES),
};

const FILES: HuggingFace = HuggingFace {
    model_type: "qwen3",
    class: "Qwen3ForCausalLM",
    requirements: &[OF_LLAMAS, NOT_GEMMA, &[DENSE, NO_BIAS, NO_QKV_BIAS, NORM_OF_EACH_HEAD, PRE_NORM]],
    absent: "num_key_value_heads = 32; head_dim = 128; max_position_embeddings = 32768; rms_norm_eps = 1e-6;
             rope_theta = 10000.0",
    keys: &[llama_files::KEYS, llama_files::NO_ATTENTION_BIAS, windows::OPTIONAL],
    tensors: llama_files::TENSORS,
};
