//! Trials of the operations that generate text.

use super::case::Trials;
use crate::DType;
use crate::ops::{CachedAttention, CachedLatentAttention, LatentHead, Mask, Scores, TakeRows};

/// Attention of `rows` tokens over a cache that has earlier ones, for heads of 64 channels and odd ones, over a cache of
/// latents, and reads of rows of a table.
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
    let small = LatentHead { plain: 5, rotated: 6, value: 7 };
    let large = LatentHead { plain: 128, rotated: 64, value: 128 };
    for (label, rows, heads, head, rank, window, scores) in [
        ("a token", 1, 4, large, 512, None, plain),
        ("a prompt", 20, 2, large, 512, None, plain),
        ("odd sizes", 3, 3, small, 13, None, plain),
        ("a window and a soft cap", 5, 2, small, 250, Some(50), capped),
    ] {
        to.add(&format!("cached_latent_attention, {label}"), move |b| {
            let (batch, before, capacity) = (2, 131, 170);
            // Rotated channels behind the queries, or apart.
            let columns = heads * head.query() + head.rotated;
            let queries = b.input([batch, rows, columns], dtype)?;
            let rotated = if heads % 2 == 0 { queries } else { b.input([batch, rows, head.rotated], dtype)? };
            let latents = b.input([batch, rows, rank], dtype)?;
            let weight = b.input([heads * (head.plain + head.value), rank], dtype)?;
            let table = b.input([rows, head.rotated / 2, 2], DType::F32)?;
            let cache = b.input([batch, capacity, rank + head.rotated], dtype)?;
            let start = b.integers([1], &[before])?;
            let output = b.output([batch, rows, heads * head.value], dtype)?;
            let mask = Mask { window };
            Ok(CachedLatentAttention {
                head,
                queries,
                latents,
                rotated,
                table,
                weight,
                cache,
                start,
                output,
                scores,
                mask,
            })
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
