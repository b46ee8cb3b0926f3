//! Attention against a naive f64 reference and finite differences.

use crate::common::{Bench, FLOATS, assert_close, bench, finite_differences, numbers};
use crate::operations::products::dropout::{PLACE, Place};
use device::DType::{Bf16, F32};
use device::ops::*;
use device::{DType, Tensor};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
struct Heads {
    batch: usize,
    seq: usize,
    heads: usize,
    kv_heads: usize,
    dim: usize,
    mask: Mask,
    scores: Scores,
    /// Lengths of the documents of a sample, again and again until it is full; the next sample begins with the next
    /// one. Empty: a sample is one document.
    documents: &'static [usize],
}

impl Heads {
    fn width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.dim
    }

    fn documents(&self, t: &Bench) -> Documents {
        Documents { position_ids: t.ints(&[self.batch, self.seq], &self.positions()), most: self.seq }
    }

    /// The position of each token in its document, `(batch, seq)`.
    fn positions(&self) -> Vec<i32> {
        let Heads { batch, seq, documents, .. } = *self;
        let whole = [seq];
        let lengths = if documents.is_empty() { &whole } else { documents };
        let of_sample = |b: usize| lengths.iter().cycle().skip(b).flat_map(|length| 0..*length as i32).take(seq);
        (0..batch).flat_map(of_sample).collect()
    }
}

/// The usual scores, a scale of its own, and caps that bend most scores.
const SCORES: [Scores; 4] = [
    Scores { scale: None, soft_cap: None },
    Scores { scale: Some(0.75), soft_cap: None },
    Scores { scale: None, soft_cap: Some(0.5) },
    Scores { scale: Some(1.25), soft_cap: Some(0.25) },
];

/// Output `(batch, seq, heads * dim)` and log-sum-exp `(batch, heads, seq)`.
fn attention(h: Heads, qkv: &[f64], dropout: Option<Place>) -> (Vec<f64>, Vec<f64>) {
    let Heads { batch, seq, heads, kv_heads, dim, mask, scores, .. } = h;
    let scale = scores.scale.map_or(1.0 / (dim as f64).sqrt(), f64::from);
    let positions = h.positions();
    let at = |b: usize, s: usize, group: usize, c: usize| qkv[(b * seq + s) * h.width() + group * dim + c];
    let mut output = vec![0.0; batch * seq * heads * dim];
    let mut stats = vec![0.0; batch * heads * seq];
    for b in 0..batch {
        for head in 0..heads {
            let kv = head / (heads / kv_heads);
            for q in 0..seq {
                let score = |k: usize| {
                    let dot: f64 = (0..dim).map(|c| at(b, q, head, c) * at(b, k, heads + kv, c)).sum();
                    scores.soft_cap.map(f64::from).map_or(dot * scale, |cap| cap * (dot * scale / cap).tanh())
                };
                let first = mask.window.map_or(0, |window| (q + 1).saturating_sub(window));
                let first = first.max(q - positions[b * seq + q] as usize);
                let lse = (first..=q).map(|k| score(k).exp()).sum::<f64>().ln();
                stats[(b * heads + head) * seq + q] = lse;
                for k in first..=q {
                    let factor = dropout.map_or(1.0, |place| place.factor(b, q, head * seq + k));
                    let p = (score(k) - lse).exp() * factor;
                    for c in 0..dim {
                        output[((b * seq + q) * heads + head) * dim + c] += p * at(b, k, heads + kv_heads + kv, c);
                    }
                }
            }
        }
    }
    (output, stats)
}

fn check_attention(t: &Bench, h: Heads, dropout: Option<Place>, dtype: DType) {
    let Heads { batch, seq, heads, kv_heads, dim, mask, scores, documents } = h;
    let documents = (!documents.is_empty()).then(|| h.documents(t));
    let qkv = numbers(1, batch * seq * h.width(), dtype);
    let qkv_t = t.put(&[batch, seq, h.width()], dtype, &qkv);
    let (output, stats) = (t.empty(&[batch, seq, heads * dim], dtype), t.empty(&[batch, heads, seq], F32));
    let site = dropout.map(|place| place.on(t));
    let op =
        Attention { qkv: qkv_t, keys: None, output, stats, heads, kv_heads, scores, mask, documents, dropout: site };
    t.run(op.clone());
    let (truth, lse) = attention(h, &qkv, dropout);
    assert_close("output", dtype, &t.get(&output), &truth);
    assert_close("log-sum-exp", F32, &t.get(&stats), &lse);

    let dy = numbers(2, truth.len(), dtype);
    let grad_qkv = t.empty(&[batch, seq, h.width()], dtype);
    t.run(op.backward(t.put(&[batch, seq, heads * dim], dtype, &dy), grad_qkv));
    if qkv.len() <= 1200 {
        let truth = finite_differences(&qkv, &dy, |qkv| attention(h, qkv, dropout).0);
        assert_close("gradient of qkv", dtype, &t.get(&grad_qkv), &truth);
    } else {
        // Too many elements for a difference in each: differences along a few directions.
        let gradient = t.get(&grad_qkv);
        for seed in 0..4 {
            let direction = numbers(100 + seed, qkv.len(), F32);
            let along = |step: f64| -> f64 {
                let moved: Vec<f64> = qkv.iter().zip(&direction).map(|(x, d)| x + step * d).collect();
                attention(h, &moved, dropout).0.iter().zip(&dy).map(|(y, w)| y * w).sum()
            };
            let truth = (along(1e-5) - along(-1e-5)) / 2e-5;
            let ours: f64 = gradient.iter().zip(&direction).map(|(g, d)| g * d).sum();
            let size = gradient.iter().map(|g| g * g).sum::<f64>().sqrt();
            let tolerance = if dtype == Bf16 { 6e-3 } else { 1e-5 };
            assert!((ours - truth).abs() < tolerance * size, "gradient along {seed}: {ours}, {truth}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn attention_and_its_gradient_agree_with_f64(
        batch in 1..3usize,
        seq in prop_oneof![Just(1usize), Just(2), Just(7), Just(13)],
        kv_heads in 1..3usize,
        group in 1..4usize,
        dim in prop_oneof![Just(1usize), Just(3), Just(8)],
        window in prop::option::of(1..9usize),
        scores in prop::sample::select(SCORES.to_vec()),
        documents in prop_oneof![Just(&[] as &[usize]), Just(&[1usize, 4, 2] as &[usize]), Just(&[5usize] as &[usize])],
        dropped: bool,
        pick in 0..2usize,
    ) {
        let (heads, mask) = (kv_heads * group, Mask { window });
        let h = Heads { batch, seq, heads, kv_heads, dim, mask, scores, documents };
        check_attention(&bench(2), h, dropped.then_some(PLACE), FLOATS[pick]);
    }
}

#[test]
fn attention_agrees_with_f64_at_the_borders_of_its_blocks() {
    let one: &[usize] = &[];
    let whole = [(63, None, one), (64, None, one), (65, None, one), (130, None, one)];
    let windows = [(130, Some(1), one), (130, Some(64), one), (130, Some(65), one), (200, Some(70), one)];
    let documents: [(_, _, &[usize]); 3] = [(200, None, &[64, 63, 3]), (200, Some(40), &[90, 1]), (130, None, &[1])];
    for (seq, window, documents) in whole.into_iter().chain(windows).chain(documents) {
        for scores in [SCORES[0], SCORES[3]] {
            let h = Heads { batch: 2, seq, heads: 2, kv_heads: 1, dim: 4, mask: Mask { window }, scores, documents };
            check_attention(&bench(2), h, Some(PLACE), F32);
            check_attention(&bench(1), h, None, Bf16);
        }
    }
}

/// The output of attention with sinks: each probability is `exp(score) / (sum of exp(score) + exp(sink))`.
fn attention_with_sinks(h: Heads, qkv: &[f64], sinks: &[f64], dropout: Option<Place>) -> Vec<f64> {
    let (output, lse) = attention(h, qkv, dropout);
    let share = |row: usize, head: usize| {
        let lse = lse[(row / h.seq * h.heads + head) * h.seq + row % h.seq];
        1.0 / (1.0 + (sinks[head] - lse).exp())
    };
    let at = |(at, x): (usize, &f64)| x * share(at / (h.heads * h.dim), at / h.dim % h.heads);
    output.iter().enumerate().map(at).collect()
}

#[test]
fn attention_with_sinks_and_its_gradients_agree_with_f64() {
    let base = Heads {
        batch: 2,
        seq: 9,
        heads: 4,
        kv_heads: 2,
        dim: 8,
        mask: Mask { window: Some(4) },
        scores: SCORES[3],
        documents: &[],
    };
    for (h, dropout) in [(base, Some(PLACE)), (Heads { dim: 3, heads: 2, documents: &[4, 3], ..base }, None)] {
        for dtype in FLOATS {
            let Heads { batch, seq, heads, kv_heads, dim, mask, scores, documents } = h;
            let (t, packed) = (bench(2), batch * seq * h.width());
            let documents = (!documents.is_empty()).then(|| h.documents(&t));
            // One sink is above all scores, and one far below.
            let mut sinks = numbers(4, heads, F32);
            (sinks[0], sinks[1]) = (2.0, -4.0);
            let (values, dy) = (numbers(1, packed, dtype), numbers(2, batch * seq * heads * dim, dtype));
            let qkv = t.put(&[batch, seq, h.width()], dtype, &values);
            let (output, stats) = (t.empty(&[batch, seq, heads * dim], dtype), t.empty(&[batch, heads, seq], F32));
            let keys = None;
            let site = dropout.map(|place| place.on(&t));
            let op = Attention { qkv, keys, output, stats, heads, kv_heads, scores, mask, documents, dropout: site };
            t.run(op.clone());
            let (attended, of_heads) = (KeyPart { output, stats }, t.put(&[heads], F32, &sinks));
            t.run(AddSinks { attended, sinks: of_heads });
            assert_close("output", dtype, &t.get(&output), &attention_with_sinks(h, &values, &sinks, dropout));

            let grad_output = t.put(&[batch, seq, heads * dim], dtype, &dy);
            let (grad_qkv, grad_bias) = (t.empty(&[batch, seq, h.width()], dtype), t.empty(&[heads], F32));
            t.run(op.backward(grad_output, grad_qkv));
            let summands = t.empty(&[batch, seq, heads], F32);
            t.run(SinkGradients { attended, grad_output, sinks: of_heads, summands });
            t.run(BiasGrad { grad_output: summands, grad_bias, accumulate: false });
            let truth = finite_differences(&[values, sinks].concat(), &dy, |all| {
                attention_with_sinks(h, &all[..packed], &all[packed..], dropout)
            });
            assert_close("gradient of qkv", dtype, &t.get(&grad_qkv), &truth[..packed]);
            assert_close("gradient of sinks", dtype, &t.get(&grad_bias), &truth[packed..]);
        }
    }
}

/// The rows `(batch, seq)` of a matrix that a rank has.
fn rows_of(values: &[f64], h: Heads, width: usize, share: SequenceShare) -> Vec<f64> {
    let tokens = h.seq / share.ranks;
    let rows = (0..h.batch * tokens).map(|row| row / tokens * h.seq + share.position(row % tokens, tokens));
    rows.flat_map(|row| values[row * width..(row + 1) * width].to_vec()).collect()
}

/// Columns of the rows of packed queries, keys and values.
fn columns(values: &[f64], h: Heads, range: std::ops::Range<usize>) -> Vec<f64> {
    values.chunks(h.width()).flat_map(|row| row[range.clone()].to_vec()).collect()
}

/// Fails unless results of ranks are those of one rank, but for roundings.
fn assert_near(what: &str, dtype: DType, ours: &[f64], truth: &[f64]) {
    let length = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let apart = length(&mut ours.iter().zip(truth).map(|(a, b)| a - b));
    let limit = if dtype == Bf16 { 1e-2 } else { 1e-6 } * length(&mut truth.iter().copied());
    assert!(ours.len() == truth.len() && apart <= limit, "{what}: {apart} above {limit}");
}

/// Queries, keys and values of whole sequences, and the gradient of the output.
fn packed_and_gradient(h: Heads, dtype: DType) -> [Vec<f64>; 2] {
    let tokens = h.batch * h.seq;
    [numbers(1, tokens * h.width(), dtype), numbers(2, tokens * h.heads * h.dim, dtype)]
}

/// The output, the statistics and the gradients of queries and of keys of a rank's queries, with `keys` of whole sequences.
fn with_whole_keys(t: &Bench, h: Heads, share: SequenceShare, keys: Option<Tensor>, dtype: DType) -> [Vec<f64>; 4] {
    let Heads { batch, seq, heads, kv_heads, dim, mask, scores, .. } = h;
    let (width, queries, tokens) = (h.width(), heads * dim, seq / share.ranks);
    let documents = (!h.documents.is_empty()).then(|| h.documents(t));
    let [qkv, dy] = packed_and_gradient(h, dtype);
    let mut here = rows_of(&qkv, h, width, share);
    if keys.is_some() {
        // They are in rows of their own.
        here.chunks_mut(width).for_each(|row| row[queries..].fill(f64::NAN));
    }
    let qkv = t.put(&[batch, tokens, width], dtype, &here);
    let (output, stats) = (t.empty(&[batch, tokens, queries], dtype), t.empty(&[batch, heads, tokens], F32));
    let keys = keys.map(|rows| RankKeys { rows, share, of: KeysOf::AllRanks });
    let op = Attention { qkv, keys, output, stats, heads, kv_heads, scores, mask, documents, dropout: None };
    t.run(op.clone());
    let grad_output = t.put(&[batch, tokens, queries], dtype, &rows_of(&dy, h, queries, share));
    let grad_qkv = t.put(&[batch, tokens, width], dtype, &vec![0.0; batch * tokens * width]);
    let keys = keys.map(|keys| RankKeysBackward { keys, grad: t.empty(keys.rows.shape.sizes(), dtype) });
    t.run(AttentionBackward { keys, ..op.backward(grad_output, grad_qkv) });
    let of_qkv = t.get(&grad_qkv);
    let of_keys = keys.map_or_else(|| columns(&of_qkv, h, queries..width), |keys| t.get(&keys.grad));
    [t.get(&output), t.get(&stats), columns(&of_qkv, h, 0..queries), of_keys]
}

/// The statistics `(batch, heads, seq)` of the queries that a rank has.
fn stats_of(stats: &[f64], h: Heads, share: SequenceShare) -> Vec<f64> {
    let tokens = h.seq / share.ranks;
    let at = |row: usize| row / tokens * h.seq + share.position(row % tokens, tokens);
    (0..h.batch * h.heads * tokens).map(|row| stats[at(row)]).collect()
}

/// Ranks that divide sequences have the results of one rank: of their own queries, and of keys together.
fn check_divided(t: &Bench, h: Heads, ranks: usize, dtype: DType) {
    let (width, queries) = (h.width(), h.heads * h.dim);
    let [qkv, _] = packed_and_gradient(h, dtype);
    // One rank's are compared with f64 elsewhere.
    let [output, stats, of_queries, of_keys] = with_whole_keys(t, h, SequenceShare::WHOLE, None, dtype);
    let near = |what: &str, ours: &[f64], truth: &[f64]| {
        assert_near(&format!("{what} of {ranks} ranks, {h:?}"), dtype, ours, truth);
    };
    let keys = t.put(&[h.batch, h.seq, width - queries], dtype, &columns(&qkv, h, queries..width));
    let mut sum = vec![0.0; of_keys.len()];
    for rank in 0..ranks {
        let share = SequenceShare { rank, ranks };
        let [own_output, own_stats, own_queries, own_keys] = with_whole_keys(t, h, share, Some(keys), dtype);
        near("output", &own_output, &rows_of(&output, h, queries, share));
        near("gradient of queries", &own_queries, &rows_of(&of_queries, h, queries, share));
        near("stats", &own_stats, &stats_of(&stats, h, share));
        sum.iter_mut().zip(&own_keys).for_each(|(sum, own)| *sum += own);
    }
    near("gradient of keys", &sum, &of_keys);
}

/// Attention over the keys of one rank after the other, merged, is that over all: of the queries of each rank, and with the
/// gradients of its keys from all ranks.
fn check_parts(t: &Bench, h: Heads, ranks: usize, dtype: DType) {
    let Heads { batch, seq, heads, kv_heads, dim, mask, scores, .. } = h;
    let (width, queries, tokens) = (h.width(), heads * dim, seq / ranks);
    let [qkv, dy] = packed_and_gradient(h, dtype);
    let [output, stats, of_queries, of_keys] = with_whole_keys(t, h, SequenceShare::WHOLE, None, dtype);
    let near = |what: &str, ours: &[f64], truth: &[f64]| {
        assert_near(&format!("{what} in parts of {ranks} ranks, {h:?}"), dtype, ours, truth);
    };
    let share_of = |rank: usize| SequenceShare { rank, ranks };
    let mut sums = vec![vec![0.0; batch * tokens * (width - queries)]; ranks];
    let mut add = |rank: usize, own: &[f64], rows: usize| {
        for (at, (sum, own)) in sums[rank].iter_mut().zip(own).enumerate() {
            *sum += if at / (width - queries) % tokens < rows { *own } else { 0.0 };
        }
    };
    for rank in 0..ranks {
        let share = share_of(rank);
        let packed = t.put(&[batch, tokens, width], dtype, &rows_of(&qkv, h, width, share));
        let part = |dtype| KeyPart {
            output: t.empty(&[batch, tokens, queries], dtype),
            stats: t.empty(&[batch, heads, tokens], F32),
        };
        let attention = |keys: Option<RankKeys>, KeyPart { output, stats }: KeyPart| {
            let (qkv, documents, dropout) = (packed, None, None);
            Attention { qkv, keys, output, stats, heads, kv_heads, scores, mask, documents, dropout }
        };
        let others = || (1..ranks).map(|step| (rank + ranks - step) % ranks);
        let keys_of = |other: usize| {
            let rows = columns(&rows_of(&qkv, h, width, share_of(other)), h, queries..width);
            let rows = t.put(&[batch, tokens, width - queries], dtype, &rows);
            RankKeys { rows, share, of: KeysOf::Rank(other) }
        };
        let (own, sum) = (part(dtype), part(F32));
        t.run(attention(None, own));
        let mut first = own;
        for (at, other) in others().enumerate() {
            let second = part(dtype);
            t.run(attention(Some(keys_of(other)), second));
            let merged = if at + 2 == ranks { own } else { sum };
            let first_query = share.sees_of(other, tokens).first_query;
            t.run(MergeAttention { first, second, first_query, merged });
            first = merged;
        }
        near("output", &t.get(&own.output), &rows_of(&output, h, queries, share));
        near("stats", &t.get(&own.stats), &stats_of(&stats, h, share));

        let grad_output = t.put(&[batch, tokens, queries], dtype, &rows_of(&dy, h, queries, share));
        let grad = || t.empty(&[batch, tokens, width], dtype);
        let (grad_qkv, sum) = (grad(), t.put(&[batch, tokens, queries], F32, &vec![0.0; batch * tokens * queries]));
        t.run(attention(None, own).backward(grad_output, grad_qkv));
        add(rank, &columns(&t.get(&grad_qkv), h, queries..width), tokens);
        let added = |a, b, to, added| {
            let [a, b, to] = [a, b, to].map(Corner::first);
            t.run(AddRows { a: Some(a), b, added, tokens, rows: batch * tokens, columns: queries, to });
        };
        for other in others() {
            let KeysOfRank { first_query, keys: seen } = share.sees_of(other, tokens);
            let (keys, of_part) = (keys_of(other), grad());
            let keys = RankKeysBackward { keys, grad: t.empty(&[batch, tokens, width - queries], dtype) };
            let op = attention(None, own).backward(grad_output, of_part);
            t.run(AttentionBackward { keys: Some(keys), ..op });
            added(sum, of_part, sum, first_query..tokens);
            add(other, &t.get(&keys.grad), seen);
        }
        added(grad_qkv, sum, grad_qkv, 0..tokens);
        let ours = columns(&t.get(&grad_qkv), h, 0..queries);
        near("gradient of queries", &ours, &rows_of(&of_queries, h, queries, share));
    }
    for (rank, sum) in sums.iter().enumerate() {
        near("gradient of keys", sum, &rows_of(&of_keys, h, width - queries, share_of(rank)));
    }
}

#[test]
fn attention_over_the_keys_of_each_rank_merges_to_that_over_all() {
    let base = Heads {
        batch: 2,
        seq: 24,
        heads: 4,
        kv_heads: 2,
        dim: 8,
        mask: Mask::CAUSAL,
        scores: SCORES[0],
        documents: &[],
    };
    // The last have parts that are no multiple of a tile, heads of an odd size, and heads that cuDNN takes.
    let odd = Heads { seq: 12, kv_heads: 4, dim: 3, ..base };
    for (h, ranks) in [(base, 2), (Heads { scores: SCORES[3], ..base }, 4), (Heads { seq: 280, ..base }, 2), (odd, 3)] {
        FLOATS.iter().for_each(|dtype| check_parts(&bench(1), h, ranks, *dtype));
    }
    check_parts(&bench(1), Heads { batch: 1, seq: 512, dim: 64, ..base }, 4, Bf16);
}

#[test]
fn ranks_that_divide_sequences_have_the_attention_of_one() {
    let base = |seq, mask, scores, documents| {
        let (batch, heads, kv_heads, dim) = (2, 4, 2, 8);
        Heads { batch, seq, heads, kv_heads, dim, mask, scores, documents }
    };
    let window = |window| Mask { window: Some(window) };
    for (seq, ranks, mask, scores, documents) in [
        (24, 2, Mask::CAUSAL, SCORES[0], &[] as &[usize]),
        (24, 4, Mask::CAUSAL, SCORES[1], &[]),
        (24, 3, window(5), SCORES[2], &[]),
        (32, 2, Mask::CAUSAL, SCORES[0], &[5, 9, 1]),
        (32, 8, window(6), SCORES[3], &[7, 20]),
        // Parts that are no multiple of a tile.
        (280, 2, Mask::CAUSAL, SCORES[0], &[]),
        (280, 2, window(75), SCORES[0], &[100, 3, 60]),
    ] {
        for dtype in FLOATS {
            check_divided(&bench(1), base(seq, mask, scores, documents), ranks, dtype);
        }
    }
    // Heads that cuDNN takes.
    let wide = Heads { batch: 1, dim: 64, ..base(512, Mask::CAUSAL, SCORES[0], &[]) };
    for mask in [Mask::CAUSAL, window(100)] {
        check_divided(&bench(1), Heads { mask, ..wide }, 2, Bf16);
    }
}
