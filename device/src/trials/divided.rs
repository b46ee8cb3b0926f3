//! Trials of operations on sequences that ranks divide.

use crate::ops::{
    Attention, AttentionBackward, Mask, OrderRows, RowOrder, Scores, SequenceShare, WholeKeys, WholeKeysBackward,
};
use crate::{DType, Result};

use super::sizes::Sizes;
use super::workbench::{AddTrial, Workbench};

pub(super) fn trials(s: Sizes, dtype: DType, add: AddTrial<'_>) {
    let Sizes { batch, seq, heads, kv_heads, head_dim, .. } = s;
    let (ranks, width) = (2, 2 * kv_heads * head_dim);
    // The tokens here are an even number.
    let tokens = seq / (2 * ranks) * 2;
    add(
        "rows by position",
        Box::new(move |b| {
            let by_rank = b.input([ranks, batch, tokens, width], dtype)?;
            let by_position = b.output([batch, ranks * tokens, width], dtype)?;
            Ok(OrderRows { by_rank, by_position, to: RowOrder::ByPosition }.into())
        }),
    );
    add(
        "rows by rank",
        Box::new(move |b| {
            let by_rank = b.output([ranks, batch, tokens, width], dtype)?;
            let by_position = b.input([batch, ranks * tokens, width], dtype)?;
            Ok(OrderRows { by_rank, by_position, to: RowOrder::ByRank }.into())
        }),
    );
    for (label, rank, window) in
        [("first part", 0, None), ("later part", 1, None), ("later part, window", 1, Some(seq / 6 + 1))]
    {
        let forward = move |b: &mut Workbench| -> Result<Attention> {
            let rows = b.input([batch, ranks * tokens, width], dtype)?;
            Ok(Attention {
                qkv: b.input([batch, tokens, heads * head_dim + width], dtype)?,
                keys: Some(WholeKeys { rows, share: SequenceShare { rank, ranks } }),
                output: b.output([batch, tokens, heads * head_dim], dtype)?,
                stats: b.output([batch, heads, tokens], DType::F32)?,
                heads,
                kv_heads,
                scores: Scores::default(),
                mask: Mask { window },
                documents: None,
                dropout: None,
            })
        };
        add(&format!("attention of a share, {label}"), Box::new(move |b| Ok(forward(b)?.into())));
        add(
            &format!("attention backward of a share, {label}"),
            Box::new(move |b| {
                let op = forward(b)?;
                b.run(op.clone())?;
                let grad_output = b.input(op.output.shape, dtype)?;
                let grad_qkv = b.output_in_part(op.qkv.shape, dtype)?;
                let grad = |keys: WholeKeys, b: &mut Workbench| b.output(keys.rows.shape, dtype);
                let keys = match op.keys {
                    Some(keys) => Some(WholeKeysBackward { keys, grad: grad(keys, b)? }),
                    None => None,
                };
                Ok(AttentionBackward { keys, ..op.backward(grad_output, grad_qkv) }.into())
            }),
        );
    }
}
