//! Trials of operations on sequences that ranks divide.

use super::case::Trials;
use super::sizes::Sizes;
use super::workbench::Workbench;
use crate::ops::{
    AddRows, AddSinks, Attention, AttentionBackward, Corner, KeyPart, KeysOf, Mask, MergeAttention, OrderRows,
    RankKeys, RankKeysBackward, RowOrder, Scores, SequenceShare, SinkGradients,
};
use crate::{DType, Result, Shape};

pub(super) fn trials(s: Sizes, dtype: DType, to: &mut Trials) {
    let Sizes { batch, seq, heads, kv_heads, head_dim, .. } = s;
    let (ranks, width) = (2, 2 * kv_heads * head_dim);
    // The tokens here are an even number.
    let tokens = seq / (2 * ranks) * 2;
    to.add("rows by position", move |b| {
        let by_rank = b.input([ranks, batch, tokens, width], dtype)?;
        let by_position = b.output([batch, ranks * tokens, width], dtype)?;
        Ok(OrderRows { by_rank, by_position, to: RowOrder::ByPosition })
    });
    to.add("rows by rank", move |b| {
        let by_rank = b.output([ranks, batch, tokens, width], dtype)?;
        let by_position = b.input([batch, ranks * tokens, width], dtype)?;
        Ok(OrderRows { by_rank, by_position, to: RowOrder::ByRank })
    });
    let window = Some(seq / 6 + 1);
    for (label, rank, window, of) in [
        ("first part", 0, None, KeysOf::AllRanks),
        ("later part", 1, None, KeysOf::AllRanks),
        ("later part, window", 1, window, KeysOf::AllRanks),
        ("keys of a later rank", 0, None, KeysOf::Rank(1)),
        ("keys of a rank before", 1, None, KeysOf::Rank(0)),
    ] {
        let key_tokens = if of == KeysOf::AllRanks { ranks * tokens } else { tokens };
        let output = move |b: &mut Workbench, shape: Shape, dtype| match of {
            KeysOf::AllRanks => b.output(shape, dtype),
            KeysOf::Rank(_) => b.output_in_part(shape, dtype),
        };
        let forward = move |b: &mut Workbench| -> Result<Attention> {
            let rows = b.input([batch, key_tokens, width], dtype)?;
            Ok(Attention {
                qkv: b.input([batch, tokens, heads * head_dim + width], dtype)?,
                keys: Some(RankKeys { rows, share: SequenceShare { rank, ranks }, of }),
                output: output(b, [batch, tokens, heads * head_dim].into(), dtype)?,
                stats: output(b, [batch, heads, tokens].into(), DType::F32)?,
                heads,
                kv_heads,
                scores: Scores::default(),
                mask: Mask { window },
                documents: None,
                dropout: None,
            })
        };
        to.add(&format!("attention of a share, {label}"), move |b| forward(b));
        to.add(&format!("attention backward of a share, {label}"), move |b| {
            let op = forward(b)?;
            b.run(op.clone())?;
            let grad_output = b.input(op.output.shape, dtype)?;
            let grad_qkv = b.output_in_part(op.qkv.shape, dtype)?;
            let grad = |keys: RankKeys, b: &mut Workbench| output(b, keys.rows.shape, dtype);
            let keys = match op.keys {
                Some(keys) => Some(RankKeysBackward { keys, grad: grad(keys, b)? }),
                None => None,
            };
            Ok(AttentionBackward { keys, ..op.backward(grad_output, grad_qkv) })
        });
    }
    parts(s, tokens, dtype, to);
}

/// Sums over parts of the keys.
fn parts(s: Sizes, tokens: usize, dtype: DType, to: &mut Trials) {
    let Sizes { batch, heads, kv_heads, head_dim, .. } = s;
    let outputs = [("first of two", dtype, dtype), ("first", dtype, DType::F32), ("last", DType::F32, dtype)];
    for (label, first, merged) in outputs {
        to.add(&format!("attention merged, {label}"), move |b| {
            let (output, stats) = ([batch, tokens, heads * head_dim], [batch, heads, tokens]);
            let first = KeyPart { output: b.input(output, first)?, stats: b.input(stats, DType::F32)? };
            let second = KeyPart { output: b.input(output, dtype)?, stats: b.input(stats, DType::F32)? };
            let merged = KeyPart { output: b.output(output, merged)?, stats: b.output(stats, DType::F32)? };
            Ok(MergeAttention { first, second, first_query: tokens / 2, merged })
        });
    }
    let attended = move |b: &mut Workbench| -> Result<KeyPart> {
        let output = b.input([batch, tokens, heads * head_dim], dtype)?;
        Ok(KeyPart { output, stats: b.input([batch, heads, tokens], DType::F32)? })
    };
    to.add("sinks", move |b| {
        let attended = attended(b)?;
        Ok(AddSinks { attended, sinks: b.input([heads], DType::F32)? })
    });
    to.add("gradients of sinks", move |b| {
        let (attended, sinks) = (attended(b)?, b.input([heads], DType::F32)?);
        let grad_output = b.input(attended.output.shape, dtype)?;
        let summands = b.output([batch, tokens, heads], DType::F32)?;
        Ok(SinkGradients { attended, grad_output, sinks, summands })
    });
    let (columns, rows) = (heads * head_dim, batch * tokens);
    let wide = columns + 2 * kv_heads * head_dim;
    for (label, b_type, to_type, adds) in [("sum", dtype, DType::F32, false), ("total", DType::F32, dtype, true)] {
        to.add(&format!("rows added, {label}"), move |b| {
            let a = adds.then(|| b.input([rows, columns], to_type).map(Corner::first)).transpose()?;
            let (b_matrix, matrix) = (b.input([rows, wide], b_type)?, b.output([rows, columns], to_type)?);
            let from = Corner { matrix: b_matrix, row: 0, column: wide - columns };
            let added = tokens / 2..tokens;
            Ok(AddRows { a, b: from, added, tokens, rows, columns, to: Corner::first(matrix) })
        });
    }
}
