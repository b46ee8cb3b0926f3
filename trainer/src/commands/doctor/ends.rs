//! Trials of what is at the ends of a model: embedding and losses.

use device::ops::{ColumnRange, CopyColumns, CrossEntropy, Embedding, EmbeddingBackward, Mse, ZLoss};
use device::{DType, Tensor};

use super::sizes::{CONTROL, Sizes};
use super::workbench::AddTrial;
use crate::run::random::uniform;

/// Token ids, some more frequent than others.
fn tokens(s: Sizes) -> Vec<i32> {
    (0..s.rows()).map(|i| ((uniform(5, i as u64).powi(3) * s.vocab as f32) as usize % s.vocab) as i32).collect()
}

fn columns(first: usize, output: Tensor) -> Option<ColumnRange> {
    Some(ColumnRange { first, output })
}

pub(super) fn trials(s: Sizes, dtype: DType, add: AddTrial<'_>) {
    let Sizes { batch, seq, padded_vocab, .. } = s;
    let hidden = s.hidden();
    for (label, scale) in [("", 1.0), (", scaled", 45.25)] {
        add(
            &format!("embedding{label}"),
            Box::new(move |b| {
                let tokens = b.integers([batch, seq], &tokens(s))?;
                let (table, positions) =
                    (b.input([padded_vocab, hidden], dtype)?, Some(b.input([seq + 3, hidden], dtype)?));
                let (output, first_token) = (b.output([batch, seq, hidden], dtype)?, 0);
                Ok(Embedding { tokens, table, first_token, scale, positions, position_ids: None, output }.into())
            }),
        );
        add(
            &format!("embedding backward{label}"),
            Box::new(move |b| {
                let tokens = b.integers([batch, seq], &tokens(s))?;
                let grad_output = b.input([batch, seq, hidden], dtype)?;
                let grad_table = Some(b.input([padded_vocab, hidden], DType::F32)?);
                let grad_positions = Some(b.input([seq + 3, hidden], DType::F32)?);
                Ok(EmbeddingBackward { tokens, grad_output, grad_table, first_token: 0, scale, grad_positions }.into())
            }),
        );
    }
    if dtype == DType::F32 {
        add(
            "copy_columns, tokens",
            Box::new(move |b| {
                let input = b.integers([batch, seq], &tokens(s))?;
                let (inputs, targets) =
                    (b.output([batch, seq - 1], DType::I32)?, b.output([batch, seq - 1], DType::I32)?);
                Ok(CopyColumns { input, parts: [columns(0, inputs), columns(1, targets)] }.into())
            }),
        );
    }
    add(
        "copy_columns, features and outputs",
        Box::new(move |b| {
            let input = b.input([s.rows(), hidden + 5], DType::F32)?;
            let (features, outputs) = (b.output([s.rows(), hidden], dtype)?, b.output([s.rows(), 5], dtype)?);
            Ok(CopyColumns { input, parts: [columns(0, features), columns(hidden, outputs)] }.into())
        }),
    );
    cross_entropies(s, dtype, add);
    for train in [true, false] {
        add(
            if train { "mse and gradient" } else { "mse" },
            Box::new(move |b| {
                let shape = [s.rows(), hidden];
                let (prediction, target) = (b.input(shape, dtype)?, b.input(shape, dtype)?);
                let losses = b.output([s.rows()], DType::F32)?;
                let grad = if train { Some((b.output(shape, dtype)?, b.block(&CONTROL)?)) } else { None };
                Ok(Mse { prediction, target, losses, grad }.into())
            }),
        );
    }
}

pub(super) fn cross_entropies(s: Sizes, dtype: DType, add: AddTrial<'_>) {
    for (label, train, multiplier, soft_cap) in [
        (" and gradient", true, None, None),
        (" and gradient with a z-loss", true, Some(1e-3), None),
        ("", false, None, None),
        (" and gradient, soft cap", true, None, Some(4.0)),
        (" and gradient with a z-loss, soft cap", true, Some(1e-3), Some(4.0)),
    ] {
        add(
            &format!("cross_entropy{label}"),
            Box::new(move |b| {
                let rows = s.rows();
                let logits = b.scaled([rows, s.padded_vocab], dtype, 6.0)?;
                let mut wanted = tokens(s);
                wanted[rows / 2] = -1;
                let (targets, losses) = (b.integers([rows], &wanted)?, b.output([rows], DType::F32)?);
                let control = if train { Some(b.block(&CONTROL)?) } else { None };
                let z_loss = match multiplier {
                    Some(multiplier) => Some(ZLoss { multiplier, losses: b.output([rows], DType::F32)? }),
                    None => None,
                };
                Ok(CrossEntropy { logits, targets, losses, vocab: s.vocab, soft_cap, z_loss, control }.into())
            }),
        );
    }
}
