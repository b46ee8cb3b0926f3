//! The properties that files of several families require of a model.

use device::ops::NormKind;
use engine::model::{AttentionKind, FeedForward, NormPlacement, Position, QkNorm};

use super::family::Requirement;
use super::windows::are_in_all_blocks_or_none;

pub(super) const ATTENTION: Requirement = (|shape| shape.attention != AttentionKind::None, "model.attention = false");
pub(super) const NO_SINKS: Requirement =
    (|shape| shape.attention != AttentionKind::Grouped { sinks: true }, "model.attention_sinks = true");
pub(super) const NO_LATENT: Requirement =
    (|shape| !matches!(shape.attention, AttentionKind::Latent(_)), "model.kv_latent");
pub(super) const RMS_NORM: Requirement = (|shape| shape.norm == NormKind::Rms, "a model.norm other than \"rmsnorm\"");
pub(super) const PRE_NORM: Requirement =
    (|shape| shape.norm_placement == NormPlacement::Pre, "a model.norm_placement other than \"pre\"");
pub(super) const SWIGLU: Requirement =
    (|shape| shape.feed_forward == FeedForward::SwiGlu, "a model.activation other than \"swiglu\"");
pub(super) const ROTARY: Requirement =
    (|shape| matches!(shape.position, Position::Rotary { .. }), "a model.position other than \"rotary\"");
pub(super) const ONE_BASE: Requirement =
    (|shape| !matches!(shape.position, Position::Rotary { window_base: Some(_), .. }), "model.rope_window_base");
pub(super) const NO_BIAS: Requirement = (|shape| !shape.bias, "model.bias = true");
pub(super) const NO_QKV_BIAS: Requirement = (|shape| !shape.qkv_bias, "model.qkv_bias = true");
pub(super) const NO_QK_NORM: Requirement = (|shape| shape.qk_norm.is_none(), "model.qk_norm = true");
pub(super) const NORM_OF_EACH_HEAD: Requirement =
    (|shape| shape.qk_norm == Some(QkNorm::EachHead), "no model.qk_norm over each head");
pub(super) const NORM_OF_ALL_HEADS: Requirement =
    (|shape| shape.qk_norm == Some(QkNorm::AllHeads), "model.qk_norm_over = \"each_head\" or no model.qk_norm");
pub(super) const USUAL_HEAD_DIM: Requirement =
    (|shape| shape.heads * shape.head_dim() == shape.hidden, "a model.head_dim other than hidden / heads");
pub(super) const NO_WINDOWS: Requirement = (|shape| shape.windows.is_none(), "model.sliding_window");
pub(super) const SAME_WINDOWS: Requirement = (are_in_all_blocks_or_none, "a model.window_pattern");
pub(super) const NO_SCORE_CAP: Requirement = (|shape| shape.attention_soft_cap.is_none(), "model.attention_soft_cap");

/// Dense layers. Families of experts must not have it, and others must.
pub(super) const DENSE: Requirement = (|shape| shape.experts.is_none(), "model.experts");
/// The other way round.
pub(super) const EXPERTS: Requirement = (|shape| shape.experts.is_some(), "no model.experts");

/// Without the choices that only Gemma has.
pub(super) const NOT_GEMMA: &[Requirement] = &[
    (|shape| shape.query_pre_attn_scalar.is_none(), "model.query_pre_attn_scalar"),
    NO_SCORE_CAP,
    (|shape| shape.logit_soft_cap.is_none(), "model.logit_soft_cap"),
    (|shape| !shape.scaled_embedding, "model.scale_embeddings = true"),
];

/// Of all families of Llama's kind.
pub(super) const OF_LLAMAS: &[Requirement] = &[ATTENTION, NO_SINKS, NO_LATENT, RMS_NORM, SWIGLU, ROTARY, ONE_BASE];
