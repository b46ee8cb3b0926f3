//! Trials of attention and of norms of its heads.

use super::case::Trials;
use super::joint_norm::joint_norms;
use super::sizes::{Sizes, site};
use super::workbench::Workbench;
use crate::ops::{Attention, HeadNorm, HeadNormBackward, Mask, Rotary, Scores};
use crate::{DType, Result, Tensor};

pub(super) fn trials(s: Sizes, dtype: DType, to: &mut Trials) {
    let Sizes { batch, seq, heads, head_dim, .. } = s;
    for inverse in [false, true] {
        to.add(if inverse { "rotary, inverse" } else { "rotary" }, move |b| {
            let qkv = b.input([batch, seq, (heads + 2 * s.kv_heads) * head_dim], dtype)?;
            let table = b.input([seq, head_dim / 2, 2], DType::F32)?;
            Ok(Rotary { qkv, table, heads, kv_heads: s.kv_heads, inverse })
        });
    }
    for (turns, weight_offset) in [(false, 0.0), (true, 0.0), (true, 1.0)] {
        head_norms(s, turns, weight_offset, dtype, to);
    }
    joint_norms(s, dtype, to);
    let plain = Scores::default();
    let scaled = Scores { scale: Some(0.3), soft_cap: None };
    let capped = Scores { scale: Some(0.3), soft_cap: Some(1.5) };
    // Gemma's heads have 256 channels.
    let wide = Sizes { heads: 2, kv_heads: 1, head_dim: 256, ..s };
    for (label, s, kv_heads, window, drops, scores) in [
        (", wide heads", wide, 1, None, false, plain),
        (", wide heads, window", wide, 1, Some(seq / 3 + 1), false, scaled),
        ("", s, heads, None, false, plain),
        (", grouped", s, s.kv_heads, None, false, plain),
        (", dropout", s, s.kv_heads, None, true, plain),
        (", window", s, s.kv_heads, Some(seq / 3 + 1), false, plain),
        (", window, dropout", s, s.kv_heads, Some(seq / 3 + 1), true, plain),
        (", scale", s, s.kv_heads, None, false, scaled),
        (", soft cap", s, s.kv_heads, None, false, capped),
        (", soft cap, window, dropout", s, s.kv_heads, Some(seq / 3 + 1), true, capped),
    ] {
        let (mask, Sizes { heads, head_dim, .. }) = (Mask { window }, s);
        let forward = move |b: &mut Workbench| -> Result<Attention> {
            let qkv = b.input([batch, seq, (heads + 2 * kv_heads) * head_dim], dtype)?;
            let output = b.output([batch, seq, heads * head_dim], dtype)?;
            let stats = b.output([batch, heads, seq], DType::F32)?;
            let dropout = if drops { Some(site(b)?) } else { None };
            Ok(Attention { qkv, keys: None, output, stats, heads, kv_heads, scores, mask, documents: None, dropout })
        };
        to.add(&format!("attention{label}"), move |b| forward(b));
        to.add(&format!("attention backward{label}"), move |b| {
            let op = forward(b)?;
            b.run(op.clone())?;
            let grad_output = b.input([batch, seq, heads * head_dim], dtype)?;
            let grad_qkv = b.output(op.qkv.shape, dtype)?;
            Ok(op.backward(grad_output, grad_qkv))
        });
    }
}

/// Norms of queries and keys, with or without the rotation after them.
fn head_norms(s: Sizes, turns: bool, weight_offset: f32, dtype: DType, to: &mut Trials) {
    let Sizes { batch, seq, heads, kv_heads, head_dim, .. } = s;
    let shape = [batch, seq, (heads + 2 * kv_heads) * head_dim];
    let table = move |b: &mut Workbench| -> Result<Option<Tensor>> {
        if turns { b.input([seq, head_dim / 2, 2], DType::F32).map(Some) } else { Ok(None) }
    };
    let of = if weight_offset == 0.0 { "norms of heads" } else { "norms of heads, 1 + weight" };
    let name = format!("{of}{}", if turns { ", rotary" } else { "" });
    to.add(&name, move |b| {
        let (input, output, table) = (b.input(shape, dtype)?, b.output(shape, dtype)?, table(b)?);
        let (query_weight, key_weight) = (b.input([head_dim], dtype)?, b.input([head_dim], dtype)?);
        let eps = 1e-6;
        Ok(HeadNorm { input, output, query_weight, key_weight, weight_offset, table, heads, kv_heads, eps })
    });
    for frozen in [false, true] {
        to.add(&format!("{name} backward{}", if frozen { ", frozen" } else { "" }), move |b| {
            let (input, grad, table) = (b.input(shape, dtype)?, b.input(shape, dtype)?, table(b)?);
            let mut sums = || match turns {
                _ if frozen => Ok(None),
                true => b.input([head_dim], DType::F32).map(Some),
                false => b.output([head_dim], DType::F32).map(Some),
            };
            let (grad_query_weight, grad_key_weight) = (sums()?, sums()?);
            Ok(HeadNormBackward {
                input,
                grad,
                query_weight: b.input([head_dim], dtype)?,
                key_weight: b.input([head_dim], dtype)?,
                weight_offset,
                table,
                grad_query_weight,
                grad_key_weight,
                heads,
                kv_heads,
                eps: 1e-6,
                accumulate: turns,
            })
        });
    }
}
