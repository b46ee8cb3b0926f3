//! Trials of every operation, with sizes of models and odd ones.

use super::case::{Case, Trials};
use super::fp8_products::{self, Scales};
use super::sizes::Sizes;
use super::{
    attention, divided, documents, elementwise, embedding_and_loss, experts, fp8, fp8_blocks, generation, latent,
    norms, products, updates,
};
use crate::DType;

/// All trials, with `hopper` those of products that GPUs need compute capability 9.0 for.
pub fn all(hopper: bool) -> Vec<Case> {
    let usual =
        Sizes { batch: 2, seq: 128, heads: 6, kv_heads: 2, head_dim: 64, ffn: 768, vocab: 1000, padded_vocab: 1024 };
    let odd = Sizes { batch: 3, seq: 37, heads: 3, kv_heads: 1, head_dim: 10, ffn: 53, vocab: 101, padded_vocab: 128 };
    let mut to = Trials { cases: Vec::new(), dtype: DType::F32, label: String::new() };
    for (label, sizes) in [("", usual), (", odd sizes", odd)] {
        for dtype in [DType::F32, DType::Bf16] {
            to.dtype = dtype;
            to.labelled(label, |to| of_floats(sizes, dtype, to));
            if label.is_empty() {
                of_models(sizes, dtype, &mut to);
            }
            to.labelled(label, |to| updates::trials(sizes, dtype, to));
        }
    }
    to.dtype = DType::F8E4M3;
    fp8::trials(usual.rows(), usual.ffn, &mut to);
    fp8_blocks::copies(usual.rows(), usual.ffn, &mut to);
    for scales in [Scales::Tensor, Scales::Rows, Scales::Blocks] {
        if scales != Scales::Blocks || hopper {
            fp8_products::trials(scales, usual.rows(), usual.hidden(), usual.ffn, &mut to);
        }
    }
    if hopper {
        experts::in_8_bits(usual, &mut to);
    }
    to.cases
}

/// Trials of any sizes.
fn of_floats(sizes: Sizes, dtype: DType, to: &mut Trials) {
    products::trials(sizes, dtype, to);
    elementwise::trials(sizes, dtype, to);
    norms::trials(sizes.rows(), sizes.hidden(), dtype, to);
    attention::trials(sizes, dtype, to);
    latent::trials(sizes, dtype, to);
    documents::trials(sizes, dtype, to);
    divided::trials(sizes, dtype, to);
    embedding_and_loss::trials(sizes, dtype, to);
    experts::trials(sizes, dtype, to);
}

/// Trials of single sizes, those of models.
fn of_models(sizes: Sizes, dtype: DType, to: &mut Trials) {
    generation::trials(dtype, to);
    experts::many(dtype, to);
    if dtype == DType::Bf16 {
        experts::few(to);
    }
    // The width of rows decides how kernels divide them among threads.
    for hidden in [768, 1024, 2048] {
        to.labelled(&format!(", hidden {hidden}"), |to| norms::trials(50, hidden, dtype, to));
    }
    let wide = Sizes { batch: 1, seq: 16, vocab: 50257, padded_vocab: 50304, ..sizes };
    to.labelled(", vocab 50257", |to| embedding_and_loss::cross_entropies(wide, dtype, to));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::trials::Workbench;
    use crate::{Device, HostOptions, Op};

    /// Operations without a trial, and why.
    const WITHOUT: [(&str, &str); 3] = [
        ("collective", "it needs several ranks: `transfers` tries it"),
        ("custom", "it is a caller's own: `HostTensors` holds it to what it declares"),
        ("mark", "it reads and writes no tensor"),
    ];

    #[test]
    fn every_operation_has_a_trial_or_a_reason_why_not() {
        let device = Device::host(HostOptions::default()).unwrap();
        let tried: BTreeSet<&str> =
            all(true).iter().map(|case| (case.make)(&mut Workbench::new(&device)).unwrap().name()).collect();
        let names: Vec<&str> = Op::NAMES.concat();
        for name in &names {
            let reason = WITHOUT.iter().find(|(without, _)| without == name);
            assert!(tried.contains(name) != reason.is_some(), "{name}: tried, or a reason why not: {reason:?}");
        }
        assert!(tried.iter().all(|name| names.contains(name)), "{tried:?}");
    }
}
