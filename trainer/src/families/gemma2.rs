//! Gemma 2 (Gemma Team, 2024): soft caps of scores and logits, and a window in every other layer. `Gemma2ForCausalLM` in
//! `transformers`.

use common::UserError;

use super::config_json::ConfigJson;
use super::family::{HuggingFace, Keys, ModelFamily, NamedOptions, sizes};
use super::llama_files;
use super::requirements::{NO_QK_NORM, ONE_BASE};
use super::training::large;
use super::{gemma_files, rope};

/// The family.
pub const GEMMA2: ModelFamily = ModelFamily {
    name: "Gemma 2",
    choices: r#"norm = "rmsnorm_1p"; norm_eps = 1e-6; norm_placement = "sandwich"; activation = "geglu";
                position = "rotary"; rope_base = 10000.0; query_pre_attn_scalar = 256.0; bias = false;
                residual_init = "plain"; scale_embeddings = true"#,
    sizes: sizes! {
        // config.json of google/gemma-2-2b, -9b and -27b. Learning rates are not published; these are Llama's.
        "gemma2-2b", large("3e-4"),
            "layers = 26; hidden = 2304; heads = 8; kv_heads = 4; head_dim = 256; ffn = 9216; vocab = 256000;
             seq_length = 8192; sliding_window = 4096; window_pattern = [1, 0]; attention_soft_cap = 50.0;
             logit_soft_cap = 30.0";
        "gemma2-9b", large("3e-4"),
            "layers = 42; hidden = 3584; heads = 16; kv_heads = 8; head_dim = 256; ffn = 14336; vocab = 256000;
             seq_length = 8192; sliding_window = 4096; window_pattern = [1, 0]; attention_soft_cap = 50.0;
             logit_soft_cap = 30.0";
        "gemma2-27b", large("3e-4"),
            "layers = 46; hidden = 4608; heads = 32; kv_heads = 16; head_dim = 128; ffn = 36864; vocab = 256000;
             seq_length = 8192; query_pre_attn_scalar = 144.0; sliding_window = 4096; window_pattern = [1, 0];
             attention_soft_cap = 50.0; logit_soft_cap = 30.0";
    },
    hugging_face: Some(&FILES),
};

const FILES: HuggingFace = HuggingFace {
    model_type: "gemma2",
    class: "Gemma2ForCausalLM",
    requirements: &[gemma_files::REQUIREMENTS, &[NO_QK_NORM, ONE_BASE]],
    absent: "num_key_value_heads = 4; head_dim = 256; max_position_embeddings = 8192; rms_norm_eps = 1e-6;
             rope_theta = 10000.0; attn_logit_softcapping = 50.0; final_logit_softcapping = 30.0",
    keys: &[Keys { read: options, write: gemma_files::config_json }],
    tensors: llama_files::TENSORS_WITH_NORMS_AFTER,
};

fn options(config: &ConfigJson<'_>) -> Result<NamedOptions, UserError> {
    let mut options = gemma_files::options(config, 2)?;
    options.extend(rope::options(config)?);
    let cap = gemma_files::soft_cap(config, "attn_logit_softcapping")?;
    options.extend(cap.map(|cap| ("attention_soft_cap", cap.into())));
    Ok(options)
}
