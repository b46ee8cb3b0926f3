//! Mistral (Jiang et al., 2023). `MistralForCausalLM` in `transformers`. It computes as a Llama without biases does, apart
//! from a window of attention in its first version.

use serde_json::json;

use super::family::{HuggingFace, Keys, ModelFamily, sizes};
use super::llama_files;
use super::requirements::{DENSE, NO_BIAS, NO_QK_NORM, NO_QKV_BIAS, NOT_GEMMA, OF_LLAMAS, PRE_NORM, SAME_WINDOWS};
use super::training::large;
use super::windows;

/// The family.
pub const MISTRAL: ModelFamily = ModelFamily {
    name: "Mistral",
    choices: r#"norm = "rmsnorm"; norm_eps = 1e-5; activation = "swiglu"; position = "rotary"; rope_base = 1000000.0;
                bias = false; residual_init = "plain"; tie_embeddings = false"#,
    sizes: sizes! {
        // config.json of mistralai/Mistral-7B-v0.3. It has no window.
        "mistral-7b", large("3e-4"),
            "layers = 32; hidden = 4096; heads = 32; kv_heads = 8; ffn = 14336; vocab = 32768; seq_length = 8192";
        // config.json of mistralai/Mistral-Nemo-Base-2407.
        "mistral-nemo-12b", large("3e-4"),
            "layers = 40; hidden = 5120; heads = 32; kv_heads = 8; head_dim = 128; ffn = 14336; vocab = 131072;
             seq_length = 8192";
    },
    hugging_face: Some(&FILES),
};

const FILES: HuggingFace = HuggingFace {
    model_type: "mistral",
    class: "MistralForCausalLM",
    requirements: &[OF_LLAMAS, NOT_GEMMA, &[DENSE, NO_BIAS, NO_QKV_BIAS, NO_QK_NORM, PRE_NORM, SAME_WINDOWS]],
    absent: "num_key_value_heads = 8; max_position_embeddings = 131072; rms_norm_eps = 1e-6;
             rope_theta = 10000.0",
    keys: &[
        llama_files::KEYS,
        Keys {
            read: |config| Ok(windows::options(windows::sliding_window(config, 4096)?, &[true])),
            write: |shape| json!({ "sliding_window": windows::tokens(shape) }),
        },
    ],
    tensors: llama_files::TENSORS,
};
