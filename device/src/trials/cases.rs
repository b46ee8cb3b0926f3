//! Trials of every operation, with sizes of models and odd ones.

use super::fp8_products::{self, Scales};
use super::sizes::Sizes;
use super::workbench::Make;
use super::{
    attention, divided, documents, elementwise, embedding_and_loss, experts, fp8, fp8_blocks, generation, latent,
    norms, products, updates,
};
use crate::DType;

/// The trial of an operation.
pub struct Case {
    /// The operation, and how it differs from other cases of it.
    pub name: String,
    /// The type of its larger tensors.
    pub dtype: DType,
    /// Makes it and its tensors.
    pub make: Make,
}

/// All trials, with `hopper` those of products that GPUs need compute capability 9.0 for.
pub fn all(hopper: bool) -> Vec<Case> {
    let usual =
        Sizes { batch: 2, seq: 128, heads: 6, kv_heads: 2, head_dim: 64, ffn: 768, vocab: 1000, padded_vocab: 1024 };
    let odd = Sizes { batch: 3, seq: 37, heads: 3, kv_heads: 1, head_dim: 10, ffn: 53, vocab: 101, padded_vocab: 128 };
    let mut all = Vec::new();
    for (label, sizes) in [("", usual), (", odd sizes", odd)] {
        for dtype in [DType::F32, DType::Bf16] {
            let mut add = |name: &str, make: Make| {
                all.push(Case { name: format!("{name}{label}"), dtype, make });
            };
            products::trials(sizes, dtype, &mut add);
            elementwise::trials(sizes, dtype, &mut add);
            norms::trials(sizes.rows(), sizes.hidden(), dtype, &mut add);
            attention::trials(sizes, dtype, &mut add);
            latent::trials(sizes, dtype, &mut add);
            documents::trials(sizes, dtype, &mut add);
            divided::trials(sizes, dtype, &mut add);
            embedding_and_loss::trials(sizes, dtype, &mut add);
            experts::trials(sizes, dtype, &mut add);
            if label.is_empty() {
                generation::trials(dtype, &mut add);
                experts::many(dtype, &mut add);
                if dtype == DType::Bf16 {
                    experts::few(&mut add);
                }
                // The width of rows decides how kernels divide them among threads.
                for hidden in [768, 1024, 2048] {
                    norms::trials(50, hidden, dtype, &mut |name, make| add(&format!("{name}, hidden {hidden}"), make));
                }
                let wide = Sizes { batch: 1, seq: 16, vocab: 50257, padded_vocab: 50304, ..sizes };
                embedding_and_loss::cross_entropies(wide, dtype, &mut |name, make| {
                    add(&format!("{name}, vocab 50257"), make)
                });
            }
            updates::trials(sizes, dtype, &mut add);
        }
    }
    let mut add = |name: &str, make: Make| all.push(Case { name: name.into(), dtype: DType::F8E4M3, make });
    fp8::trials(usual.rows(), usual.ffn, &mut add);
    fp8_blocks::copies(usual.rows(), usual.ffn, &mut add);
    for scales in [Scales::Tensor, Scales::Rows, Scales::Blocks] {
        if scales != Scales::Blocks || hopper {
            fp8_products::trials(scales, usual.rows(), usual.hidden(), usual.ffn, &mut add);
        }
    }
    if hopper {
        experts::in_8_bits(usual, &mut add);
    }
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::workbench::Workbench;
    use super::*;
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
