//! Every family, and the parts of which models choose.

use device::ops::{ExpertGroups, GroupScore, NormKind};
use engine::model::{BalanceGroup, BalanceLoss, Experts, FeedForward, FurtherTokens, GptShape, Position, Scaling};
use engine::precision::Precision;

use super::{BF16, F32, Tolerances, in_small_steps, transformer};
use crate::experts::{FOUR, tiny_deepseek, tiny_gpt_oss, tiny_mixtral, tiny_olmoe, tiny_qwen3_moe, tiny_shared};
use crate::models::{tiny_gemma2, tiny_gemma3, tiny_gpt, tiny_llama, tiny_mistral, tiny_olmo2, tiny_qwen2, tiny_qwen3};

/// Positions by rotation with a short base.
fn turned(scaling: Scaling) -> Position {
    Position::Rotary { base: 100.0, scaling: Some(scaling), window_base: None }
}

#[test]
fn gpts_agree_with_pytorch_in_losses_gradients_and_final_weights() {
    let own = || tiny_gpt(0.0, Precision::F32);
    let position = Position::Rotary { base: 1e4, scaling: None, window_base: None };
    // The terms are so large that without their gradients norms and weights would be others.
    let further_tokens = Some(FurtherTokens { depths: 2, factor: 3.0 });
    let mixture = |over| tiny_shared(0.0, over);
    for (name, shape) in [
        ("gpt", own()),
        ("gpt-z-loss", GptShape { z_loss_multiplier: 0.05, ..own() }),
        ("gpt-rotary", GptShape { kv_heads: 2, norm: NormKind::Rms, position, bias: false, ..own() }),
        ("gpt-swiglu", GptShape { feed_forward: FeedForward::SwiGlu, position: Position::None, tied: false, ..own() }),
        ("gpt-further", GptShape { further_tokens, loss_pieces: 2, ..mixture(BalanceGroup::Microbatch) }),
        ("gpt-experts-microbatch", mixture(BalanceGroup::Microbatch)),
        ("gpt-experts-sequence", mixture(BalanceGroup::Sequence)),
        ("gpt-experts-global", mixture(BalanceGroup::GlobalBatch)),
    ] {
        transformer(name, "gpt", &F32, shape);
    }
}

#[test]
fn dense_families_agree_with_transformers_in_losses_gradients_and_final_weights() {
    let [llama, qwen2, qwen3, gemma2] =
        [tiny_llama, tiny_qwen2, tiny_qwen3, tiny_gemma2].map(|tiny| tiny(0.0, Precision::F32));
    // Wavelengths of 6 to 200 around a context of 16: one pair is scaled in part, slower ones in full.
    let scaled = turned(Scaling::Llama3 { factor: 8.0, low: 0.5, high: 4.0, original_context: 16.0 });
    // Of the four pairs the first keeps its frequency, the second is between, the others are scaled in full.
    let yarn = turned(Scaling::Yarn {
        factor: 4.0,
        original_context: 16.0,
        beta_fast: 2.0,
        beta_slow: 0.5,
        attention_factor: 1.2,
        rounds: true,
    });
    let uncapped = GptShape { attention_soft_cap: None, logit_soft_cap: None, ..gemma2.clone() };
    for (name, kind, shape) in [
        ("llama", "llama", llama.clone()),
        ("llama-scaled", "llama", GptShape { tied: true, kv_heads: 1, position: scaled, ..llama }),
        ("qwen2", "qwen2", qwen2.clone()),
        ("qwen2-tied", "qwen2", GptShape { tied: true, head_dim: Some(4), kv_heads: 4, ..qwen2.clone() }),
        ("qwen2-yarn", "qwen2", GptShape { position: yarn, ..qwen2 }),
        ("qwen3", "qwen3", qwen3.clone()),
        ("qwen3-tied", "qwen3", GptShape { tied: true, head_dim: Some(6), kv_heads: 1, ..qwen3 }),
        ("gemma2", "gemma2", gemma2),
        ("gemma2-untied", "gemma2", GptShape { tied: false, head_dim: Some(6), kv_heads: 4, ..uncapped }),
    ] {
        transformer(name, kind, &F32, shape);
    }
    let [mistral, olmo2, gemma3] = [tiny_mistral, tiny_olmo2, tiny_gemma3].map(|tiny| tiny(0.0, Precision::F32));
    for (name, kind, shape) in [
        ("mistral", "mistral", mistral),
        ("olmo2", "olmo2", olmo2.clone()),
        ("olmo2-tied", "olmo2", GptShape { tied: true, head_dim: Some(6), kv_heads: 1, ..olmo2 }),
        ("gemma3", "gemma3", gemma3),
    ] {
        in_small_steps(name, kind, &F32, shape);
    }
}

#[test]
fn families_with_experts_agree_with_transformers_in_losses_gradients_and_final_weights() {
    let balance = Some(BalanceLoss { multiplier: 0.3, over: BalanceGroup::Microbatch });
    let balanced = GptShape { experts: Some(Experts { balance, ..FOUR }), ..tiny_llama(0.0, Precision::F32) };
    transformer("mixtral", "mixtral", &F32, tiny_mixtral(0.0, Precision::F32));
    transformer("mixtral-balance", "mixtral", &F32, balanced);
    transformer("qwen3moe", "qwen3moe", &F32, tiny_qwen3_moe(0.0, Precision::F32));
    in_small_steps("olmoe", "olmoe", &F32, tiny_olmoe(0.0, Precision::F32));
    in_small_steps("gptoss", "gptoss", &F32, tiny_gpt_oss(Precision::F32));
    in_small_steps("deepseekv3", "deepseekv3", &F32, tiny_deepseek(Some(14), None));
    let groups = Some(ExpertGroups { count: 3, per_token: 1, score: GroupScore::TwoHighest });
    in_small_steps("deepseekv3-groups", "deepseekv3", &F32, tiny_deepseek(None, groups));
}

#[test]
fn models_in_bf16_stay_beside_references_in_f32() {
    transformer("gpt-bf16", "gpt", &BF16, tiny_gpt(0.0, Precision::Bf16));
    transformer("llama-bf16", "llama", &BF16, tiny_llama(0.0, Precision::Bf16));
    transformer("qwen3-bf16", "qwen3", &BF16, GptShape { windows: None, ..tiny_qwen3(0.0, Precision::Bf16) });
    in_small_steps("mixtral-bf16", "mixtral", &BF16, tiny_mixtral(0.0, Precision::Bf16));
    in_small_steps("gemma2-bf16", "gemma2", &BF16, tiny_gemma2(0.0, Precision::Bf16));
    // The norms of heads sum gradients that nearly cancel: in six channels more is left of rounding.
    let within = Tolerances { grads: 8e-2, ..BF16 };
    in_small_steps("gemma3-bf16", "gemma3", &within, tiny_gemma3(0.0, Precision::Bf16));
}
