//! Llama (Touvron et al., 2023; Llama Team, 2024). `LlamaForCausalLM` in `transformers`.

use common::UserError;
use serde_json::json;

use super::config_json::ConfigJson;
use super::family::{HuggingFace, Keys, ModelFamily, NamedOptions, sizes};
use super::llama_files;
use super::requirements::{DENSE, NO_QK_NORM, NO_WINDOWS, NOT_GEMMA, OF_LLAMAS, PRE_NORM};
use super::training::large;

/// The family.
pub const LLAMA: ModelFamily = ModelFamily {
    name: "Llama",
    // Llama Team, 2024, section 3.2.
    choices: r#"norm = "rmsnorm"; activation = "swiglu"; position = "rotary"; rope_base = 500000.0; bias = false;
                residual_init = "plain"; tie_embeddings = false"#,
    sizes: sizes! {
        "tiny-llama", [], "kv_heads = 2; ffn = 176";
        // Llama 3.2 1B, config.json of meta-llama/Llama-3.2-1B: tied, and with the scaled frequencies of Llama 3.1.
        "llama-1b", large("3e-4"),
            "layers = 16; hidden = 2048; heads = 32; kv_heads = 8; ffn = 8192; vocab = 128256; seq_length = 8192;
             rope_scaling = [32.0, 1.0, 4.0, 8192.0]; tie_embeddings = true";
        // Llama 3.2 3B, config.json of meta-llama/Llama-3.2-3B.
        "llama-3b", large("3e-4"),
            "layers = 28; hidden = 3072; heads = 24; kv_heads = 8; ffn = 8192; vocab = 128256; seq_length = 8192;
             rope_scaling = [32.0, 1.0, 4.0, 8192.0]; tie_embeddings = true";
        // Llama Team, 2024, table 3, and config.json of meta-llama/Meta-Llama-3-8B and -70B.
        "llama-8b", large("3e-4"),
            "layers = 32; hidden = 4096; heads = 32; kv_heads = 8; ffn = 14336; vocab = 128256; seq_length = 8192";
        "llama-70b", large("1.5e-4"),
            "layers = 80; hidden = 8192; heads = 64; kv_heads = 8; ffn = 28672; vocab = 128256; seq_length = 8192";
    },
    hugging_face: Some(&FILES),
};

const FILES: HuggingFace = HuggingFace {
    model_type: "llama",
    class: "LlamaForCausalLM",
    requirements: &[
        OF_LLAMAS,
        NOT_GEMMA,
        &[
            DENSE,
            (|shape| shape.bias || !shape.qkv_bias, "model.qkv_bias = true with model.bias = false"),
            NO_QK_NORM,
            PRE_NORM,
            NO_WINDOWS,
        ],
    ],
    absent: "max_position_embeddings = 2048; rms_norm_eps = 1e-6; rope_theta = 10000.0",
    keys: &[
        llama_files::KEYS,
        Keys { read: bias, write: |shape| json!({ "attention_bias": shape.bias, "mlp_bias": shape.bias }) },
    ],
    tensors: llama_files::TENSORS,
};

fn bias(config: &ConfigJson<'_>) -> Result<NamedOptions, UserError> {
    let bias = config.flag_or("attention_bias", false)?;
    match config.flag_or("mlp_bias", false)? == bias {
        true => Ok(vec![("bias", bias.into())]),
        false => Err(config.refuse("mlp_bias", "it is as attention_bias")),
    }
}
