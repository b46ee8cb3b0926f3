//! Trials of the operations of mixtures of experts.

use super::case::Trials;
use super::sizes::{CONTROL, Sizes};
use super::workbench::Workbench;
use crate::ops::{
    AddExpertBias, Balance, Columns, CombineRows, CountLoad, CountedLoads, ExpertBiasDots, ExpertBiasGradient,
    ExpertGlu, ExpertGluBackward, ExpertGroups, ExpertRows, ExpertsOfSlots, Gate, GatherRows, GemmColumns, GroupScore,
    GroupedGemm, GroupedProduct, LimitLoad, PlaceRows, Route, RouteBackward, Router, RowWeights, SampleTokens, Score,
    SlotsOfPairs, SortByExpert, Status, UpdateSelectionBias, ZLoss,
};
use crate::random::uniform;
use crate::{DType, Result, Tensor};

/// Sizes of a mixture.
#[derive(Clone, Copy)]
struct Mixture {
    sequences: usize,
    tokens: usize,
    hidden: usize,
    ffn: usize,
    experts: usize,
    k: usize,
}

impl Mixture {
    fn rows(&self) -> usize {
        self.tokens * self.k
    }

    /// The expert of each pair. Some have many, and some none. Those of a token differ.
    fn chosen(&self) -> Vec<i32> {
        let first = |token: usize| (uniform(6, token as u64).powi(3) * self.experts as f32) as usize;
        let choice = |pair: usize| (first(pair / self.k) + pair % self.k * (1 + pair / self.k % 2)) % self.experts;
        (0..self.rows()).map(|pair| choice(pair) as i32).collect()
    }

    /// The same; of every third token the last choice is dropped.
    fn kept(&self) -> Vec<i32> {
        let is_dropped = |pair: usize| pair % self.k + 1 == self.k && (pair / self.k).is_multiple_of(3);
        let all = self.chosen().into_iter().enumerate();
        all.map(|(pair, expert)| if is_dropped(pair) { self.experts as i32 } else { expert }).collect()
    }

    /// The position of each token in its document; those of a sequence are alike in length.
    fn position_ids(&self) -> Vec<i32> {
        let length = self.tokens / self.sequences;
        (0..self.tokens).map(|token| (token % length % (2 + token / length * 3)) as i32).collect()
    }

    /// The tokens of each sequence that are no padding.
    fn real(&self) -> Vec<i32> {
        let length = self.tokens / self.sequences;
        (1..=self.sequences).map(|number| (length * number / self.sequences) as i32).collect()
    }

    /// Logits between -2 and 2. Those of a token are far enough from each other that no device takes another for higher.
    fn logits(&self) -> Vec<f32> {
        let level = |token: usize, expert: usize| (7 * expert + 31 * token) % self.experts;
        let logit =
            |at: usize| 4.0 * (level(at / self.experts, at % self.experts) as f32 + 0.5) / self.experts as f32 - 2.0;
        (0..self.tokens * self.experts).map(logit).collect()
    }

    /// Offsets, pairs and rows in the order of experts.
    fn order(&self) -> [Vec<i32>; 3] {
        let kept = self.kept();
        let before = |expert: usize| kept.iter().filter(|of| (**of as usize) < expert).count() as i32;
        let mut pairs: Vec<i32> = (0..kept.len() as i32).collect();
        pairs.sort_by_key(|pair| kept[*pair as usize]);
        let mut rows = vec![-1; pairs.len()];
        let end = before(self.experts) as usize;
        pairs[..end].iter().enumerate().for_each(|(row, pair)| rows[*pair as usize] = row as i32);
        pairs[end..].iter_mut().for_each(|pair| *pair = -1 - *pair);
        [(0..=self.experts).map(before).collect(), pairs, rows]
    }
}

pub(super) fn trials(s: Sizes, dtype: DType, to: &mut Trials) {
    let (sequences, tokens, hidden, ffn) = (s.batch, s.rows(), s.hidden(), s.ffn / 4);
    let k = 1 + s.heads / 2;
    all(Mixture { sequences, tokens, hidden, ffn, experts: 4 * k + 1, k }, dtype, to);
}

/// As many experts as a GPU takes, with pairs for several blocks of a sort or a count.
pub(super) fn many(dtype: DType, to: &mut Trials) {
    let many = Mixture { sequences: 2, tokens: 1500, hidden: 64, ffn: 40, experts: 512, k: 8 };
    to.labelled(", many experts", |to| all(many, dtype, to));
}

/// So many rows an expert that blocks multiply in pairs on a GPU that can.
pub(super) fn few(to: &mut Trials) {
    let few = Mixture { sequences: 1, tokens: 17_000, hidden: 192, ffn: 64, experts: 2, k: 1 };
    to.labelled(", few experts", |to| products(few, DType::Bf16, to));
}

/// Products of 8-bit factors, and the gathering of such rows. GPUs need compute capability 9.0 for the products.
pub(super) fn in_8_bits(s: Sizes, to: &mut Trials) {
    let (sequences, tokens, hidden, ffn) = (s.batch, s.rows(), s.hidden(), s.ffn / 4 + 16);
    let m = Mixture { sequences, tokens, hidden, ffn, experts: 9, k: 2 };
    let large = Mixture { tokens: 17_000, hidden: 192, ffn: 64, experts: 2, k: 1, ..m };
    for (label, m) in [("", m), (", few experts", large)] {
        let ([rows, n, k], matrices) = ([m.rows() + 5, m.ffn, m.hidden], m.experts * m.ffn);
        for (name, product, dtype) in [
            ("forward", GroupedProduct::Forward, DType::F8E4M3),
            ("dgrad", GroupedProduct::InputGradient, DType::F8E5M2),
            ("dgrad in e4m3", GroupedProduct::InputGradient, DType::F8E4M3),
        ] {
            let (inner, width, weights) = match product {
                GroupedProduct::Forward => (k, n, [matrices, k]),
                _ => (n, k, [k, matrices]),
            };
            to.add(&format!("grouped_gemm in 8 bits, {name}{label}"), move |b| {
                let offsets = b.integers([m.experts + 1], &m.order()[0])?;
                let factor = |b: &mut Workbench, shape, dtype| b.scaled(shape, dtype, 200.0);
                let (a, weights) = (factor(b, [rows, inner], dtype)?, factor(b, weights, DType::F8E4M3)?);
                let scales = Some([b.between([1], 1e-3, 2e-3)?, b.between([1], 1e-3, 2e-3)?]);
                let out = b.output_in_part([rows, width], DType::Bf16)?;
                Ok(GroupedGemm { scales, ..GroupedGemm::new(product, offsets, [a, weights], out) })
            });
        }
    }
    to.add("gather_rows in 8 bits", move |b| {
        let [_, _, rows] = m.order();
        let input = b.scaled([m.tokens, m.hidden], DType::F8E5M2, 200.0)?;
        let rows = b.integers([m.tokens, m.k], &rows)?;
        Ok(GatherRows { input, rows, output: b.output_in_part([m.rows(), m.hidden], DType::F8E5M2)? })
    });
}

fn all(m: Mixture, dtype: DType, to: &mut Trials) {
    if dtype == DType::F32 {
        routers(m, to);
        loads(m, to);
        limits(m, to);
        to.add("sort_by_expert", move |b| {
            let chosen = b.integers([m.tokens, m.k], &m.kept())?;
            let offsets = b.output([m.experts + 1], DType::I32)?;
            let pairs = b.output([m.rows()], DType::I32)?;
            let rows = b.output([m.tokens, m.k], DType::I32)?;
            Ok(SortByExpert { chosen, first: 0, order: ExpertRows { offsets, pairs, rows } })
        });
        for (label, room) in [("", 16), (", too little room", 5)] {
            to.add(&format!("place_rows{label}"), move |b| {
                // Three experts a rank: of the second rank's 12 rows 4 come from the first rank.
                let all = b.integers([2, 7], &[0, 2, 2, 5, 6, 6, 9, 0, 1, 4, 4, 4, 7, 12])?;
                let (places, offsets) = (b.output([3, 2], DType::I32)?, b.output([4], DType::I32)?);
                let (pairs, beyond) = (b.output([room], DType::I32)?, Some(b.output([1], DType::F32)?));
                Ok(PlaceRows { all, rank: 1, places, offsets, pairs, beyond })
            });
        }
    }
    slots(m, to);
    rows(m, dtype, to);
    units(m, dtype, to);
    biases(m, dtype, to);
    products(m, dtype, to);
}

fn routers(m: Mixture, to: &mut Trials) {
    let Mixture { sequences, tokens, experts, k, .. } = m;
    let softmax = Router { score: Score::Softmax, groups: None, normalise: false, scale: 1.0, forces_balance: false };
    let sigmoid = Router { score: Score::Sigmoid, normalise: true, scale: 2.5, ..softmax };
    let two = |score| Some(ExpertGroups { count: 2, per_token: 1, score });
    let even = Mixture { experts: 4 * k, ..m };
    for (label, router, biased, m) in [
        ("softmax", softmax, false, m),
        ("softmax, normalised", Router { normalise: true, ..softmax }, false, m),
        ("sigmoid with a bias", sigmoid, true, m),
        ("sigmoid with groups and a bias", Router { groups: two(GroupScore::TwoHighest), ..sigmoid }, true, even),
        ("softmax with groups and a bias", Router { groups: two(GroupScore::Highest), ..softmax }, true, even),
        ("in turn", Router { forces_balance: true, ..softmax }, false, m),
    ] {
        let (experts, groups) = (m.experts, router.groups);
        to.add(&format!("route, {label}"), move |b| {
            let logits = b.output([tokens, experts], DType::F32)?;
            b.device.upload(&logits, &m.logits())?;
            let bias = if biased { Some(b.output([experts], DType::F32)?) } else { None };
            if let Some(bias) = &bias {
                // The second group is ahead of the first, so that their scores are far from each other too.
                let ahead = |expert: usize| if groups.is_some() && 2 * expert >= experts { 0.17 } else { 0.0 };
                let value = |expert: usize| [2.0, 0.0, 0.0][expert % 3] + ahead(expert);
                let values: Vec<f32> = (0..experts).map(value).collect();
                b.device.upload(bias, &values)?;
            }
            let (chosen, weights) = (b.output([tokens, k], DType::I32)?, b.output([tokens, k], DType::F32)?);
            let tokens = SampleTokens::whole(sequences);
            Ok(Route { router, logits, bias, tokens, chosen, weights })
        });
    }
    for (label, router, groups, z_loss, trains) in [
        ("softmax", softmax, None, false, false),
        ("softmax, losses by microbatch", Router { normalise: true, ..softmax }, Some(1), true, true),
        ("sigmoid, losses by sequence", sigmoid, Some(sequences), true, true),
        ("sigmoid, losses by document", sigmoid, Some(tokens), true, true),
        (
            "sigmoid, losses without gradients",
            Router { normalise: false, groups: two(GroupScore::TwoHighest), ..sigmoid },
            Some(1),
            true,
            false,
        ),
    ] {
        to.add(&format!("route backward, {label}"), move |b| {
            let balance = match groups {
                Some(groups) => {
                    let load = b.between([groups, experts], 0.0, 9.0)?;
                    let position_ids =
                        (groups == tokens).then(|| b.integers([tokens], &m.position_ids())).transpose()?;
                    let losses = b.output([tokens], DType::F32)?;
                    let loads = if trains { CountedLoads::OfGroups } else { CountedLoads::OfStep };
                    Some(Balance { load, loads, position_ids, multiplier: 0.5, losses })
                }
                None => None,
            };
            let losses = b.output([tokens], DType::F32)?;
            let real = (z_loss && trains).then(|| b.integers([sequences], &m.real())).transpose()?;
            Ok(RouteBackward {
                router,
                logits: b.scaled([tokens, experts], DType::F32, 2.0)?,
                chosen: b.integers([tokens, k], &m.chosen())?,
                grad_weights: b.input([tokens, k], DType::F32)?,
                balance,
                z_loss: z_loss.then_some(ZLoss { multiplier: 1e-2, losses }),
                tokens: SampleTokens::whole(sequences),
                real,
                control: b.block(&CONTROL)?,
                adds_gradient: trains,
                grad_logits: b.output([tokens, experts], DType::F32)?,
            })
        });
    }
}

fn limits(m: Mixture, to: &mut Trials) {
    for (label, by_weight, capacity) in [
        ("highest weights", true, m.tokens / 8 + 1),
        ("first tokens", false, m.tokens / 8 + 1),
        ("all", true, m.rows()),
    ] {
        to.add(&format!("limit_load, {label}"), move |b| {
            let chosen = b.integers([m.tokens, m.k], &m.chosen())?;
            let weights = by_weight.then(|| b.between([m.tokens, m.k], 0.0, 1.0)).transpose()?;
            let real = by_weight.then(|| b.integers([m.sequences], &m.real())).transpose()?;
            let kept = b.output([m.tokens, m.k], DType::I32)?;
            Ok(LimitLoad { chosen, weights, real, experts: m.experts, capacity, kept })
        });
    }
}

fn loads(m: Mixture, to: &mut Trials) {
    for (label, groups, accumulate) in
        [("", 1, false), (" of sequences, accumulated", m.sequences, true), (" of documents", m.tokens, false)]
    {
        to.add(&format!("count_load{label}"), move |b| {
            let chosen = b.integers([m.tokens, m.k], &if accumulate { m.chosen() } else { m.kept() })?;
            // A column for dropped pairs, where there are any.
            let columns = m.experts + usize::from(!accumulate);
            let load = b.output([groups, columns], DType::F32)?;
            if accumulate {
                b.device.upload(&load, &vec![3.0f32; groups * columns])?;
            }
            let real = accumulate.then(|| b.integers([m.sequences], &m.real())).transpose()?;
            let of_documents = groups == m.tokens;
            let position_ids = of_documents.then(|| b.integers([m.tokens], &m.position_ids())).transpose()?;
            let tokens = SampleTokens::whole(m.sequences);
            Ok(CountLoad { chosen, tokens, real, position_ids, load, accumulate })
        });
    }
    for applies in [1, 0] {
        to.add(if applies == 1 { "update_selection_bias" } else { "update_selection_bias, no update" }, move |b| {
            let load = b.output([3, m.experts], DType::F32)?;
            let counts: Vec<f32> = (0..3 * m.experts).map(|at| (at * at % 11) as f32).collect();
            b.device.upload(&load, &counts)?;
            let bias = b.input([3, m.experts], DType::F32)?;
            let status = b.block(&Status { applies, ..Status::default() })?;
            Ok(UpdateSelectionBias { load, rate: 1e-3, bias, status })
        });
    }
}

/// The slots of rows for three ranks, with room for some of them, and the experts of such slots.
fn slots(m: Mixture, to: &mut Trials) {
    let (ranks, own, room) = (3, m.experts, m.rows() / 4 + 1);
    let experts = ranks * own;
    to.add("slots_of_pairs", move |b| {
        let of_all: Vec<i32> = (0..m.rows()).map(|pair| ((pair * pair) % (experts + 1)) as i32).collect();
        let mut sorted: Vec<usize> = (0..m.rows()).collect();
        sorted.sort_by_key(|pair| of_all[*pair]);
        let mut rows = vec![-1; m.rows()];
        let kept = |pair: &&usize| (of_all[**pair] as usize) < experts;
        sorted.iter().filter(kept).enumerate().for_each(|(row, pair)| rows[*pair] = row as i32);
        let before = |end: usize| of_all.iter().filter(|expert| (**expert as usize) < end).count() as i32;
        let pairs: Vec<i32> = sorted.iter().map(|pair| *pair as i32).collect();
        let order = ExpertRows {
            offsets: b.integers([experts + 1], &(0..=experts).map(before).collect::<Vec<_>>())?,
            pairs: b.integers([m.rows()], &pairs)?,
            rows: b.integers([m.tokens, m.k], &rows)?,
        };
        let chosen = b.integers([m.tokens, m.k], &of_all)?;
        let (slots, beyond) = (b.output([m.tokens, m.k], DType::I32)?, Some(b.output([1], DType::F32)?));
        Ok(SlotsOfPairs { chosen, order, ranks, room, slots, beyond })
    });
    to.add("experts_of_slots", move |b| {
        let of_rank = |rank: usize| (0..=experts).map(move |expert| (expert * (rank + 1) * room / own / 2) as i32);
        let offsets: Vec<i32> = (0..ranks).flat_map(of_rank).collect();
        let offsets = b.integers([ranks, experts + 1], &offsets)?;
        Ok(ExpertsOfSlots { offsets, rank: 1, chosen: b.output([ranks * room, 1], DType::I32)? })
    });
}

fn rows(m: Mixture, dtype: DType, to: &mut Trials) {
    to.add("gather_rows", move |b| {
        let [_, _, rows] = m.order();
        let input = b.input([m.tokens, m.hidden], dtype)?;
        let rows = b.integers([m.tokens, m.k], &rows)?;
        Ok(GatherRows { input, rows, output: b.output_in_part([m.rows(), m.hidden], dtype)? })
    });
    for with in [false, true] {
        to.add(if with { "combine_rows and another" } else { "combine_rows" }, move |b| {
            let [_, _, rows] = m.order();
            let input = b.input([m.rows(), m.hidden], dtype)?;
            let rows = b.integers([m.tokens, m.k], &rows)?;
            let also = if with { Some(b.input([m.tokens, m.hidden], DType::F32)?) } else { None };
            Ok(CombineRows { input, rows, also, output: b.output([m.tokens, m.hidden], dtype)? })
        });
    }
}

fn units(m: Mixture, dtype: DType, to: &mut Trials) {
    let (narrow, wide) = ([m.rows(), m.ffn], [m.rows(), 2 * m.ffn]);
    for (gate, name) in [(Gate::Silu, "swiglu"), (Gate::Gelu, "geglu"), (Gate::ClampedSilu, "clamped_swiglu")] {
        let inputs = move |b: &mut Workbench| -> Result<[Tensor; 3]> {
            let [_, pairs, _] = m.order();
            let input = b.scaled(wide, dtype, 3.0)?;
            Ok([input, b.input([m.tokens, m.k], DType::F32)?, b.integers([m.rows()], &pairs)?])
        };
        to.add(&format!("{name} of experts"), move |b| {
            let [input, weights, pairs] = inputs(b)?;
            Ok(ExpertGlu { gate, input, weights, pairs, output: b.output(narrow, dtype)? })
        });
        to.add(&format!("{name} of experts backward"), move |b| {
            let [input, weights, pairs] = inputs(b)?;
            Ok(ExpertGluBackward {
                gate,
                input,
                weights,
                pairs,
                grad_output: b.input(narrow, dtype)?,
                grad_input: b.output(wide, dtype)?,
                output: b.output(narrow, dtype)?,
                grad_weights: b.output([m.tokens, m.k], DType::F32)?,
            })
        });
    }
}

/// Biases of experts, of rows with a few behind those of experts.
fn biases(m: Mixture, dtype: DType, to: &mut Trials) {
    let (rows, bias) = ([m.rows(), m.ffn], [m.experts * m.ffn]);
    let offsets = move |b: &mut Workbench| b.integers([m.experts + 1], &m.order()[0]);
    let weights = move |b: &mut Workbench| -> Result<RowWeights> {
        let [_, pairs, _] = m.order();
        Ok(RowWeights { weights: b.input([m.tokens, m.k], DType::F32)?, pairs: b.integers([m.rows()], &pairs)? })
    };
    for weighted in [false, true] {
        let label = if weighted { ", weighted" } else { "" };
        to.add(&format!("add_expert_bias{label}"), move |b| {
            let (rows, bias, offsets) = (b.input(rows, dtype)?, b.input(bias, dtype)?, offsets(b)?);
            let weights = weighted.then(|| weights(b)).transpose()?;
            Ok(AddExpertBias { rows, bias, offsets, weights })
        });
        to.add(&format!("expert_bias_gradient{label}"), move |b| {
            let (rows, offsets) = (b.input(rows, dtype)?, offsets(b)?);
            let weights = weighted.then(|| weights(b)).transpose()?;
            let grad = if weighted { b.input(bias, DType::F32)? } else { b.output(bias, DType::F32)? };
            Ok(ExpertBiasGradient { rows, offsets, weights, grad, accumulate: weighted })
        });
    }
    to.add("expert_bias_dots", move |b| {
        let (rows, bias, offsets) = (b.input(rows, dtype)?, b.input(bias, dtype)?, offsets(b)?);
        let RowWeights { weights: grad_weights, pairs } = weights(b)?;
        Ok(ExpertBiasDots { rows, bias, offsets, pairs, grad_weights })
    });
}

/// Products of rows with a few behind those of experts.
fn products(m: Mixture, dtype: DType, to: &mut Trials) {
    use GroupedProduct::{Forward, InputGradient, WeightGradient};
    let (rows, n, k) = (m.rows() + 5, m.ffn, m.hidden);
    let scale = 1.0 / (k as f32).sqrt();
    // The last ones of an adapter's rank.
    for (name, product, accumulate, n) in [
        ("forward", Forward, false, n),
        ("dgrad", InputGradient, false, n),
        ("wgrad", WeightGradient, false, n),
        ("wgrad accumulated", WeightGradient, true, n),
        ("forward to 16 columns", Forward, false, 16),
        ("dgrad of 24 columns", InputGradient, true, 24),
        ("wgrad of 16 columns", WeightGradient, true, 16),
    ] {
        to.add(&format!("grouped_gemm, {name}"), move |bench| {
            let offsets = bench.integers([m.experts + 1], &m.order()[0])?;
            let a = bench.input([rows, if product == Forward { k } else { n }], dtype)?;
            let matrices = [m.experts * n, k];
            let (b, out) = match product {
                Forward => (bench.scaled(matrices, dtype, scale)?, bench.output_in_part([rows, n], dtype)?),
                InputGradient if accumulate => (bench.scaled(matrices, dtype, scale)?, bench.input([rows, k], dtype)?),
                InputGradient => (bench.scaled(matrices, dtype, scale)?, bench.output_in_part([rows, k], dtype)?),
                WeightGradient if accumulate => (bench.input([rows, k], dtype)?, bench.input(matrices, DType::F32)?),
                WeightGradient => (bench.input([rows, k], dtype)?, bench.output(matrices, DType::F32)?),
            };
            Ok(GroupedGemm { accumulate, ..GroupedGemm::new(product, offsets, [a, b], out) })
        });
    }
    // As adapters do it: from some columns of rows, to some columns.
    for (name, product) in [("added", Forward), ("dgrad", InputGradient), ("wgrad", WeightGradient)] {
        to.add(&format!("grouped_gemm, columns, {name}"), move |bench| {
            let offsets = bench.integers([m.experts + 1], &m.order()[0])?;
            let columns = |first| Some(Columns { first, count: 16 });
            let (low, wide) = (bench.input([rows, 48], dtype)?, bench.input([rows, n + 16], dtype)?);
            let of_low = if product == Forward { columns(32) } else { columns(16) };
            let of_wide = Some(Columns { first: 8, count: n });
            let matrices = [m.experts * n, 16];
            let (factors, out, columns) = match product {
                Forward => {
                    let columns = GemmColumns { a: of_low, out: of_wide, ..GemmColumns::ALL };
                    ([low, bench.scaled(matrices, dtype, scale)?], wide, columns)
                }
                InputGradient => {
                    let columns = GemmColumns { a: of_wide, out: of_low, ..GemmColumns::ALL };
                    let out = bench.output_in_part([rows, 48], dtype)?;
                    ([wide, bench.scaled(matrices, dtype, scale)?], out, columns)
                }
                WeightGradient => {
                    let columns = GemmColumns { a: of_wide, b: of_low, out: None };
                    ([wide, low], bench.output(matrices, DType::F32)?, columns)
                }
            };
            let accumulate = product == Forward;
            let whole = GroupedGemm::new(product, offsets, factors, out);
            Ok(GroupedGemm { alpha: 0.5, accumulate, columns, ..whole })
        });
    }
}
