//! Adapters beside frozen weights.

use engine::model::{GptShape, Lora, LoraTarget};
use engine::precision::Precision;

use super::{BF16, F32, Tolerances, transformer};
use crate::experts::{tiny_deepseek, tiny_qwen3_moe};
use crate::lora::all_targets;
use crate::models::{tiny_gpt, tiny_llama, tiny_qwen2, tiny_qwen3};

/// Trains the adapters of a transformer of this shape on both sides.
fn by_lora(name: &str, kind: &str, within: &Tolerances, shape: GptShape, targets: &[LoraTarget]) {
    let lora = Lora { rank: 3, alpha: 6.0, dropout: 0.0, targets: targets.to_vec() };
    transformer(name, kind, within, GptShape { lora: Some(lora), ..shape });
}

#[test]
fn adapters_of_a_gpt_agree_with_pytorch_in_losses_gradients_and_final_weights() {
    use LoraTarget::{AttentionOutput, Down, QueryKeyValue, Up};
    let shape = tiny_gpt(0.0, Precision::F32);
    by_lora("gpt-lora", "gpt", &F32, shape.clone(), &[QueryKeyValue, AttentionOutput, Up, Down]);
    by_lora("gpt-lora-qkv", "gpt", &F32, shape, &[QueryKeyValue]);
}

#[test]
fn adapters_of_packed_projections_agree_with_transformers_in_losses_gradients_and_final_weights() {
    use LoraTarget::{Down, Gate, GateUp, Key, Query, Up, Value};
    let shape = tiny_qwen3(0.0, Precision::F32);
    by_lora("qwen3-lora", "qwen3", &F32, shape.clone(), &all_targets(&shape));
    by_lora("qwen3-lora-qv", "qwen3", &F32, shape, &[Query, Value]);
    by_lora("qwen2-lora-k-up", "qwen2", &F32, tiny_qwen2(0.0, Precision::F32), &[Key, Up]);
    let experts = tiny_qwen3_moe(0.0, Precision::F32);
    by_lora("qwen3moe-lora", "qwen3moe", &F32, experts.clone(), &all_targets(&experts));
    by_lora("qwen3moe-lora-gate", "qwen3moe", &F32, experts.clone(), &[Gate]);
    by_lora("qwen3moe-lora-packed", "qwen3moe", &F32, experts, &[GateUp, Down]);
    let latent = tiny_deepseek(Some(14), None);
    by_lora("deepseekv3-lora", "deepseekv3", &F32, latent.clone(), &all_targets(&latent));
}

#[test]
fn adapters_in_bf16_stay_beside_transformers_in_f32() {
    let shape = tiny_llama(0.0, Precision::Bf16);
    by_lora("llama-lora-bf16", "llama", &BF16, shape.clone(), &all_targets(&shape));
}
