//! Trials of the operations at a model's ends: embedding and losses.

use super::case::Trials;
use super::sizes::{CONTROL, Sizes};
use crate::ops::{
    CODE_BLOCK, CodeForm, CodedValues, CodesOfValues, ColumnRange, CopyColumns, CrossEntropy, CrossEntropyJoin,
    CrossEntropyPart, Distribution, Embedding, EmbeddingBackward, FirstValues, FurtherTokens, MismatchedRewards, Mse,
    PairLoss, Preference, SequenceShare, VocabPart, ZLoss,
};
use crate::random::uniform;
use crate::{DType, Tensor};

/// Token ids, some more frequent than others.
fn tokens(s: Sizes) -> Vec<i32> {
    (0..s.rows()).map(|i| ((uniform(5, i as u64).powi(3) * s.vocab as f32) as usize % s.vocab) as i32).collect()
}

fn columns(first: usize, output: Tensor) -> Option<ColumnRange> {
    Some(ColumnRange { first, share: SequenceShare::WHOLE, output })
}

pub(super) fn trials(s: Sizes, dtype: DType, to: &mut Trials) {
    let Sizes { batch, seq, padded_vocab, .. } = s;
    let hidden = s.hidden();
    for (label, scale, learned) in [("", 1.0, true), (", scaled", 45.25, true), (", no positions", 1.0, false)] {
        to.add(&format!("embedding{label}"), move |b| {
            let tokens = b.integers([batch, seq], &tokens(s))?;
            let table = b.input([padded_vocab, hidden], dtype)?;
            let positions = if learned { Some(b.input([seq + 3, hidden], dtype)?) } else { None };
            let (output, first_token) = (b.output([batch, seq, hidden], dtype)?, 0);
            Ok(Embedding { tokens, table, first_token, scale, positions, position_ids: None, output })
        });
        to.add(&format!("embedding backward{label}"), move |b| {
            let tokens = b.integers([batch, seq], &tokens(s))?;
            let grad_output = b.input([batch, seq, hidden], dtype)?;
            let grad_table = Some(b.input([padded_vocab, hidden], DType::F32)?);
            let grad_positions = if learned { Some(b.input([seq + 3, hidden], DType::F32)?) } else { None };
            Ok(EmbeddingBackward { tokens, grad_output, grad_table, first_token: 0, scale, grad_positions })
        });
    }
    to.add("first_values", move |b| {
        let rounded = if dtype == DType::F32 { Some(b.output([padded_vocab, hidden], DType::Bf16)?) } else { None };
        let (output, distribution) = (b.output([padded_vocab, hidden], dtype)?, Distribution::Normal(0.02));
        let (seed, stream, first, row, pitch) = (5, 7, 3, hidden, hidden + 2);
        Ok(FirstValues { output, rounded, distribution, seed, stream, first, row, pitch })
    });
    to.add("first_values, remainders", move |b| {
        let rounded = Some(b.output([padded_vocab, hidden], DType::Bf16)?);
        let (output, distribution) = (b.output([padded_vocab, hidden], DType::U16)?, Distribution::Uniform(0.02));
        let (seed, stream, first, row, pitch) = (5, 7, 3, hidden, hidden + 2);
        Ok(FirstValues { output, rounded, distribution, seed, stream, first, row, pitch })
    });
    for form in [CodeForm::Nf4, CodeForm::Int8] {
        to.add(&format!("coded_values, {form:?}"), move |b| {
            let codes = b.input([padded_vocab, form.bytes(CODE_BLOCK)], DType::U8)?;
            let scales = b.input([padded_vocab], DType::Bf16)?;
            Ok(CodedValues { form, codes, scales, output: b.output([padded_vocab, CODE_BLOCK], dtype)? })
        });
        to.add(&format!("codes_of_values, {form:?}"), move |b| {
            let input = b.input([padded_vocab, CODE_BLOCK], dtype)?;
            let codes = b.output([padded_vocab, form.bytes(CODE_BLOCK)], DType::U8)?;
            let scales = b.output([padded_vocab], DType::Bf16)?;
            Ok(CodesOfValues { form, input, codes, scales })
        });
    }
    to.add("embedding backward, frozen table", move |b| {
        let (tokens, scale) = (b.integers([batch, seq], &tokens(s))?, 1.0);
        let grad_output = b.input([batch, seq, hidden], dtype)?;
        let grad_positions = Some(b.input([seq, hidden], DType::F32)?);
        let (grad_table, first_token) = (None, 0);
        Ok(EmbeddingBackward { tokens, grad_output, grad_table, first_token, scale, grad_positions })
    });
    if dtype == DType::F32 {
        to.add("copy_columns, positions", move |b| {
            let input = b.integers([batch, seq], &tokens(s))?;
            let positions = b.output([batch, seq / 3], DType::I32)?;
            Ok(CopyColumns { input, parts: [columns(seq / 2, positions), None] })
        });
        to.add("copy_columns, tokens", move |b| {
            let input = b.integers([batch, seq], &tokens(s))?;
            let (inputs, targets) = (b.output([batch, seq - 1], DType::I32)?, b.output([batch, seq - 1], DType::I32)?);
            Ok(CopyColumns { input, parts: [columns(0, inputs), columns(1, targets)] })
        });
    }
    if dtype == DType::F32 {
        for label in ["", ", documents"] {
            to.add(&format!("further_tokens{label}"), move |b| {
                let samples = b.integers([batch, seq], &tokens(s))?;
                let share = SequenceShare { rank: 0, ranks: 2 };
                let (columns, length) = ((seq - 1) / 4 * 2, (seq - 1) / 4 * 4);
                let ids: Vec<i32> = (0..batch * length).map(|at| (at % length % 5) as i32).collect();
                let has_documents = !label.is_empty();
                let position_ids = has_documents.then(|| b.integers([batch, length], &ids)).transpose()?;
                let [tokens, targets] = [(); 2].map(|()| b.output([batch, columns], DType::I32));
                let (tokens, targets) = (tokens?, targets?);
                let (first_input, first_target, ahead) = (0, 1, 2);
                Ok(FurtherTokens { samples, first_input, first_target, ahead, position_ids, share, tokens, targets })
            });
        }
    }
    to.add("copy_columns, features and outputs", move |b| {
        let input = b.input([s.rows(), hidden + 5], DType::F32)?;
        let (features, outputs) = (b.output([s.rows(), hidden], dtype)?, b.output([s.rows(), 5], dtype)?);
        Ok(CopyColumns { input, parts: [columns(0, features), columns(hidden, outputs)] })
    });
    cross_entropies(s, dtype, to);
    parallel_cross_entropies(s, dtype, to);
    if dtype == DType::F32 {
        pair_losses(s, to);
    }
    for train in [true, false] {
        to.add(if train { "mse and gradient" } else { "mse" }, move |b| {
            let shape = [s.rows(), hidden];
            let (prediction, target) = (b.input(shape, dtype)?, b.input(shape, dtype)?);
            let losses = b.output([s.rows()], DType::F32)?;
            let grad = if train { Some((b.output(shape, dtype)?, b.block(&CONTROL)?)) } else { None };
            Ok(Mse { prediction, target, losses, grad })
        });
    }
}

pub(super) fn cross_entropies(s: Sizes, dtype: DType, to: &mut Trials) {
    for (label, train, multiplier, soft_cap, weighted) in [
        (" and gradient", true, None, None, false),
        (" and gradient with a z-loss", true, Some(1e-3), None, false),
        ("", false, None, None, false),
        (" and gradient, soft cap", true, None, Some(4.0), false),
        (" and gradient with a z-loss, soft cap, weights", true, Some(1e-3), Some(4.0), true),
    ] {
        to.add(&format!("cross_entropy{label}"), move |b| {
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
            let weights = if weighted { Some(b.input([rows], DType::F32)?) } else { None };
            Ok(CrossEntropy { logits, targets, losses, vocab: s.vocab, soft_cap, z_loss, weights, control })
        });
    }
}

/// Two pairs in each sample, and places behind them; of KTO one answer of each label. Half of the targets have no loss.
fn pair_losses(s: Sizes, to: &mut Trials) {
    let (sigmoid, ipo) = (Preference::Sigmoid { beta: 0.1, label_smoothing: 0.2 }, Preference::Ipo { beta: 0.1 });
    let kto = Preference::Kto { beta: 0.1, desirable: 1.0, undesirable: 1.5 };
    for (label, preference, train, has_references) in [
        (" and gradient", sigmoid, true, false),
        ("", sigmoid, false, false),
        (", references apart", sigmoid, true, true),
        (" of IPO", ipo, true, false),
        (" of KTO", kto, true, false),
    ] {
        to.add(&format!("pair_loss{label}"), move |b| {
            let Sizes { batch, seq, .. } = s;
            let reference = |logp: f32| logp.to_bits() as i32;
            let is_kto = matches!(preference, Preference::Kto { .. });
            let places = match is_kto {
                true => [seq / 2, seq / 2, seq / 2, seq - 1],
                false => [seq / 4, seq / 2, seq * 3 / 4, seq - 1],
            };
            let places = places.map(|place| place as i32);
            let pair = |at: usize| [places[2 * at], places[2 * at + 1], reference(-3.0), reference(-2.5)];
            let pairs = b.integers([batch, 8], &[pair(0), pair(1)].concat().repeat(batch))?;
            let targets: Vec<i32> = (0..s.rows()).map(|at| at as i32 % 2 - 1).collect();
            let (losses, targets) = (b.input([batch, seq], DType::F32)?, b.integers([batch, seq], &targets)?);
            let results = b.output([batch, 2, PairLoss::RESULTS], DType::F32)?;
            let weights = if train { Some(b.output([batch, seq], DType::F32)?) } else { None };
            let apart = has_references.then(|| b.input([batch, 2, PairLoss::RESULTS], DType::F32));
            let rewards = match is_kto {
                true => Some(MismatchedRewards { sum: b.input([1], DType::F32)?, control: b.block(&CONTROL)? }),
                false => None,
            };
            let (references, mismatched) = (apart.transpose()?, rewards);
            Ok(PairLoss { losses, targets, pairs, references, mismatched, preference, results, weights })
        });
    }
}

/// Both halves of a cross-entropy over a vocabulary that two ranks share, on the second rank.
fn parallel_cross_entropies(s: Sizes, dtype: DType, to: &mut Trials) {
    let (rows, columns) = (s.rows(), s.padded_vocab / 2);
    let part = |rank: usize| VocabPart { first_token: rank * columns, vocab: s.vocab };
    let (part, soft_caps) = ([part(0), part(1)], [("", None), (", soft cap", Some(4.0))]);
    for (label, soft_cap) in soft_caps {
        to.add(&format!("cross_entropy_part{label}"), move |b| {
            let logits = b.scaled([rows, columns], dtype, 6.0)?;
            let (targets, stats) = (b.integers([rows], &tokens(s))?, b.output([3, rows], DType::F32)?);
            Ok(CrossEntropyPart { logits, targets, stats, part: part[1], soft_cap })
        });
    }
    for (label, train, multiplier, soft_cap, weighted) in [
        ("", false, None, None, false),
        (" with a z-loss", false, Some(1e-3), None, false),
        (" and gradient", true, None, None, false),
        (" and gradient with a z-loss, soft cap, weights", true, Some(1e-3), Some(4.0), true),
    ] {
        to.add(&format!("cross_entropy_join{label}"), move |b| {
            let [first, logits] = [b.scaled([rows, columns], dtype, 6.0)?, b.scaled([rows, columns], dtype, 6.0)?];
            let (targets, stats) = (b.integers([rows], &tokens(s))?, b.output([2, 3, rows], DType::F32)?);
            for (rank, logits) in [first, logits].into_iter().enumerate() {
                let stats = stats.at(rank);
                b.run(CrossEntropyPart { logits, targets, stats, part: part[rank], soft_cap })?;
            }
            let losses = b.output([rows], DType::F32)?;
            let control = if train { Some(b.block(&CONTROL)?) } else { None };
            let z_loss = match multiplier {
                Some(multiplier) => Some(ZLoss { multiplier, losses: b.output([rows], DType::F32)? }),
                None => None,
            };
            let part = part[1];
            let weights = if weighted { Some(b.input([rows], DType::F32)?) } else { None };
            let op = CrossEntropyJoin { logits, targets, stats, losses, part, soft_cap, z_loss, weights, control };
            Ok(op)
        });
    }
}
