//! Trials of the operations that generate text.

use crate::DType;
use crate::ops::{CachedAttention, Mask, Scores, TakeRows};

use super::case::Trials;

/// Attention of `rows` tokens over a cache that has earlier ones, for heads of 64 channels and odd ones, and reads of rows of a
/// table.
pub(super) fn trials(dtype: DType, to: &mut Trials) {
    let plain = Scores::default();
    let capped = Scores { scale: Some(0.3), soft_cap: Some(1.5) };
    for (label, rows, heads, kv_heads, head_dim, window, scores, sinks) in [
        ("a token", 1, 8, 2, 64, None, plain, false),
        ("a prompt", 70, 6, 3, 64, None, plain, false),
        ("odd heads", 3, 4, 2, 21, None, plain, false),
        ("wide heads", 2, 2, 1, 200, None, plain, false),
        ("a window", 5, 4, 2, 64, Some(50), plain, false),
        ("a soft cap", 5, 4, 1, 256, Some(50), capped, false),
        ("sinks", 5, 4, 2, 64, Some(50), plain, true),
    ] {
        to.add(&format!("cached_attention, {label}"), move |b| {
            let (batch, before, capacity) = (2, 131, 240);
            let qkv = b.input([batch, rows, (heads + 2 * kv_heads) * head_dim], dtype)?;
            let cache = b.input([batch, capacity, 2 * kv_heads * head_dim], dtype)?;
            let start = b.integers([1], &[before])?;
            let output = b.output([batch, rows, heads * head_dim], dtype)?;
            let mask = Mask { window };
            let sinks = sinks.then(|| b.input([heads], DType::F32)).transpose()?;
            Ok(CachedAttention { qkv, cache, start, output, heads, kv_heads, scores, mask, sinks })
        });
    }
    for (label, width) in [("", 96), (", odd width", 7)] {
        to.add(&format!("take_rows{label}"), move |b| {
            let table = b.input([50, width], dtype)?;
            let start = b.integers([1], &[33])?;
            Ok(TakeRows { table, start, output: b.output([9, width], dtype)? })
        });
    }
}
