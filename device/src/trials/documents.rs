//! Trials of attention within documents.

use super::case::Trials;
use super::sizes::Sizes;
use super::workbench::Workbench;
use crate::ops::{Attention, Documents, Embedding, Mask, Scores};
use crate::{DType, Result};

/// Documents of a sample, at most.
const MOST: usize = 8;

/// The position of each token in its document. The samples have 2, 5 and 8 documents.
fn documents(s: Sizes, b: &mut Workbench) -> Result<Documents> {
    let Sizes { batch, seq, .. } = s;
    let position = |sample: usize, token: usize| (token % seq.div_ceil(2 + 3 * sample)) as i32;
    let ids: Vec<i32> = (0..batch * seq).map(|at| position(at / seq, at % seq)).collect();
    Ok(Documents { position_ids: b.integers([batch, seq], &ids)?, most: MOST })
}

pub(super) fn trials(s: Sizes, dtype: DType, to: &mut Trials) {
    let Sizes { batch, seq, heads, head_dim, .. } = s;
    for (label, kv_heads, window) in [
        ("documents", heads, None),
        ("documents, grouped", s.kv_heads, None),
        ("documents, window", s.kv_heads, Some(seq / 6 + 1)),
    ] {
        let mask = Mask { window };
        let forward = move |b: &mut Workbench| -> Result<Attention> {
            Ok(Attention {
                qkv: b.input([batch, seq, (heads + 2 * kv_heads) * head_dim], dtype)?,
                keys: None,
                output: b.output([batch, seq, heads * head_dim], dtype)?,
                stats: b.output([batch, heads, seq], DType::F32)?,
                heads,
                kv_heads,
                scores: Scores::default(),
                mask,
                documents: Some(documents(s, b)?),
                dropout: None,
            })
        };
        to.add(&format!("attention, {label}"), move |b| forward(b));
        to.add(&format!("attention backward, {label}"), move |b| {
            let op = forward(b)?;
            b.run(op.clone())?;
            let (grad_output, grad_qkv) = (b.input(op.output.shape, dtype)?, b.output(op.qkv.shape, dtype)?);
            Ok(op.backward(grad_output, grad_qkv))
        });
    }
    to.add("embedding, positions in documents", move |b| {
        let hidden = heads * head_dim;
        let tokens: Vec<i32> = (0..batch * seq).map(|at| (at * 7 % 50) as i32).collect();
        Ok(Embedding {
            tokens: b.integers([batch, seq], &tokens)?,
            table: b.input([50, hidden], dtype)?,
            first_token: 0,
            scale: 1.0,
            positions: Some(b.input([seq, hidden], dtype)?),
            position_ids: Some(documents(s, b)?.position_ids),
            output: b.output([batch, seq, hidden], dtype)?,
        })
    });
}
