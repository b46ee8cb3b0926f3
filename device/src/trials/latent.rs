//! Trials of the operations of latent attention.

use super::case::Trials;
use super::sizes::Sizes;
use super::workbench::Workbench;
use crate::DType;
use crate::ops::{LatentHead, LatentTensors, PackLatent, PackLatentBackward, ResizeHeads};

/// Trials of queries apart, or in front of the keys' rotated channels.
pub(super) fn trials(s: Sizes, dtype: DType, to: &mut Trials) {
    let Sizes { batch, seq, heads, .. } = s;
    for (label, apart, head) in [
        ("", false, LatentHead { plain: 48, rotated: 16, value: 48 }),
        (", queries apart", true, LatentHead { plain: 12, rotated: 6, value: 20 }),
    ] {
        let (query, width) = (heads * head.query(), head.packed());
        let columns = query + 5 + head.rotated;
        let keys = [batch, seq, heads * (head.plain + head.value)];
        let packed = [batch, seq, 3 * heads * width];
        let table = move |b: &mut Workbench| b.input([seq, head.rotated / 2, 2], DType::F32);
        to.add(&format!("pack_latent{label}"), move |b| {
            let rotated = b.input([batch, seq, columns], dtype)?;
            let queries = if apart { b.input([batch, seq, query], dtype)? } else { rotated };
            let (keys_values, packed) = (b.input(keys, dtype)?, b.output(packed, dtype)?);
            let tensors = LatentTensors { queries, keys_values, rotated, packed };
            Ok(PackLatent { head, tensors, table: table(b)? })
        });
        to.add(&format!("pack_latent backward{label}"), move |b| {
            let rotated = b.output([batch, seq, columns], dtype)?;
            let queries = if apart { b.output([batch, seq, query], dtype)? } else { rotated };
            let (keys_values, packed) = (b.output(keys, dtype)?, b.input(packed, dtype)?);
            let tensors = LatentTensors { queries, keys_values, rotated, packed };
            Ok(PackLatentBackward { head, tensors, table: table(b)? })
        });
    }
    for (label, before, after) in [("fewer channels", 24, 15), ("more channels", 15, 24)] {
        to.add(&format!("resize_heads, {label}"), move |b| {
            let input = b.input([batch * seq, heads * before], dtype)?;
            Ok(ResizeHeads { input, output: b.output([batch * seq, heads * after], dtype)?, heads })
        });
    }
}
