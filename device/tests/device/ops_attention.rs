//! Attention against a naive f64 reference and finite differences.

use crate::common::{Bench, FLOATS, assert_close, bench, finite_differences, numbers};
use crate::ops_dropout::{PLACE, Place};
use device::DType;
use device::DType::{Bf16, F32};
use device::ops::*;
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
    let op = Attention { qkv: qkv_t, output, stats, heads, kv_heads, scores, mask, documents, dropout: site };
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

#[test]
fn bits_do_not_depend_on_the_number_of_threads() {
    let run = |threads: usize| -> Vec<Vec<f64>> {
        let t = bench(threads);
        let mask = Mask { window: Some(20) };
        let scores = SCORES[3];
        let h = Heads { batch: 3, seq: 70, heads: 4, kv_heads: 2, dim: 8, mask, scores, documents: &[30, 7] };
        let qkv = t.put(&[3, 70, h.width()], F32, &numbers(1, 3 * 70 * h.width(), F32));
        let dy = t.put(&[3, 70, 32], F32, &numbers(2, 3 * 70 * 32, F32));
        let (output, stats) = (t.empty(&[3, 70, 32], F32), t.empty(&[3, 4, 70], F32));
        let grad_qkv = t.empty(&[3, 70, h.width()], F32);
        let (dropout, documents) = (Some(PLACE.on(&t)), Some(h.documents(&t)));
        let (heads, kv_heads, grad_output) = (4, 2, dy);
        let op = Attention { qkv, output, stats, heads, kv_heads, scores, mask, documents, dropout };
        t.run(op.clone());
        t.run(op.backward(grad_output, grad_qkv));
        let tokens: Vec<i32> = (0..210).map(|i| i * 7 % 100).collect();
        let grad_table = t.put(&[100, 32], F32, &vec![0.0; 3200]);
        let tokens = t.ints(&[3, 70], &tokens);
        t.run(EmbeddingBackward {
            tokens,
            grad_output,
            grad_table: Some(grad_table),
            first_token: 0,
            scale: 1.0,
            grad_positions: None,
        });
        let big = t.put(&[200_003], F32, &numbers(3, 200_003, F32));
        let total = t.empty(&[1], F32);
        t.run(SquareSum { inputs: [big, dy].into(), total });
        [output, stats, grad_qkv, grad_table, total].iter().map(|tensor| t.get(tensor)).collect()
    };
    let one = run(1);
    assert!(one.iter().flatten().all(|x| x.is_finite()));
    assert_eq!(one, run(2));
    assert_eq!(one, run(3));
}
