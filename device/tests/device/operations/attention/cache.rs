//! Attention over a cache against a naive f64 reference, and rows at a position in device memory.

use crate::common::{FLOATS, assert_close, bench, numbers};
use device::DType::{Bf16, F32};
use device::ops::*;
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
struct Sizes {
    batch: usize,
    /// Tokens of each call, one call after the other.
    calls: [usize; 3],
    heads: usize,
    kv_heads: usize,
    dim: usize,
    mask: Mask,
    scores: Scores,
    sinks: bool,
}

impl Sizes {
    fn width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.dim
    }

    /// The score of each head that has no value.
    fn sinks(&self) -> Option<Vec<f64>> {
        self.sinks.then(|| numbers(9, self.heads, F32))
    }

    fn tokens(&self) -> usize {
        self.calls.iter().sum()
    }
}

/// Output `(batch, tokens, heads * dim)` of the whole sequence at once.
fn attention(s: Sizes, qkv: &[f64]) -> Vec<f64> {
    let (tokens, dim) = (s.tokens(), s.dim);
    let at = |b: usize, token: usize, group: usize, c: usize| qkv[(b * tokens + token) * s.width() + group * dim + c];
    let mut output = Vec::new();
    for (b, query) in (0..s.batch).flat_map(|b| (0..tokens).map(move |query| (b, query))) {
        for head in 0..s.heads {
            let kv = head / (s.heads / s.kv_heads);
            let score = |key: usize| {
                let dot: f64 = (0..dim).map(|c| at(b, query, head, c) * at(b, key, s.heads + kv, c)).sum();
                let score = dot * s.scores.scale.map_or(1.0 / (dim as f64).sqrt(), f64::from);
                s.scores.soft_cap.map(f64::from).map_or(score, |cap| cap * (score / cap).tanh()).exp()
            };
            let first = s.mask.window.map_or(0, |window| (query + 1).saturating_sub(window));
            let weights: Vec<f64> = (first..=query).map(score).collect();
            let total = weights.iter().sum::<f64>() + s.sinks().map_or(0.0, |sinks| sinks[head].exp());
            for c in 0..dim {
                let values = weights.iter().enumerate();
                output.push(values.map(|(i, w)| w / total * at(b, first + i, s.heads + s.kv_heads + kv, c)).sum());
            }
        }
    }
    output
}

/// Tokens `from .. from + count` of every sequence of `(batch, tokens, width)`.
fn part(values: &[f64], tokens: usize, width: usize, from: usize, count: usize) -> Vec<f64> {
    values.chunks(tokens * width).flat_map(|sequence| sequence[from * width..(from + count) * width].to_vec()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a_sequence_taken_in_pieces_through_the_cache_has_the_attention_of_the_whole(
        batch in 1..3usize,
        calls in [1..90usize, 1..70usize, 1..3usize],
        kv_heads in 1..3usize,
        group in 1..4usize,
        dim in 1..40usize,
        spare in 0..5usize,
        window in prop::option::of(1..100usize),
        scale in prop::option::of(Just(0.5f32)),
        soft_cap in prop::option::of(Just(0.75f32)),
        half in any::<bool>(),
        sinks in any::<bool>(),
        threads in 1..3usize,
    ) {
        let (heads, mask, scores) = (kv_heads * group, Mask { window }, Scores { scale, soft_cap });
        let s = Sizes { batch, calls, heads, kv_heads, dim, mask, scores, sinks };
        let dtype = if half { Bf16 } else { F32 };
        let t = bench(threads);
        let qkv = numbers(3, batch * s.tokens() * s.width(), dtype);
        let truth = attention(s, &qkv);
        // Earlier content of the cache must not matter: it is NaN.
        let cache = t.empty(&[batch, s.tokens() + spare, 2 * kv_heads * dim], dtype);
        let sinks = s.sinks().map(|sinks| t.put(&[heads], F32, &sinks));
        let (mut from, out_width) = (0, s.heads * dim);
        for rows in s.calls {
            let new = t.put(&[batch, rows, s.width()], dtype, &part(&qkv, s.tokens(), s.width(), from, rows));
            let output = t.empty(&[batch, rows, out_width], dtype);
            let start = t.ints(&[1], &[from as i32]);
            t.run(CachedAttention { qkv: new, cache, start, output, heads, kv_heads, scores, mask, sinks });
            let wanted = part(&truth, s.tokens(), out_width, from, rows);
            assert_close(&format!("{s:?} from {from}"), dtype, &t.get(&output), &wanted);
            from += rows;
        }
    }
}

#[test]
fn rows_are_taken_from_the_position_on_the_device_and_never_from_outside_the_table() {
    for dtype in FLOATS {
        let t = bench(1);
        let values = numbers(5, 7 * 6, dtype);
        let table = t.put(&[7, 3, 2], dtype, &values);
        for (start, first) in [(0, 0), (3, 3), (5, 5), (6, 5), (99, 5), (-4, 0)] {
            let output = t.empty(&[2, 3, 2], dtype);
            t.run(TakeRows { table, start: t.ints(&[1], &[start]), output });
            assert_eq!(t.get(&output), values[first * 6..(first + 2) * 6], "{start}");
        }
    }
}

#[test]
fn one_graph_serves_every_position() {
    let t = bench(1);
    let values = numbers(5, 20, F32);
    let (table, start) = (t.put(&[10, 2], F32, &values), t.ints(&[1], &[0]));
    let output = t.empty(&[1, 2], F32);
    t.stream.begin_capture().unwrap();
    t.run(TakeRows { table, start, output });
    let graph = t.stream.end_capture("take").unwrap();
    for position in [4, 0, 9] {
        t.stream.write(&start, &[position]).unwrap();
        graph.launch(&t.stream).unwrap();
        let from = position as usize * 2;
        assert_eq!(t.get(&output), values[from..from + 2]);
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused_with_both_sides() {
    let t = bench(1);
    let start = t.ints(&[1], &[0]);
    let (qkv, output) = (t.empty(&[1, 4, 12], F32), t.empty(&[1, 4, 4], F32));
    let scores = Scores::default();
    let refused = |cache: &[usize], heads, kv_heads| {
        let cache = t.empty(cache, F32);
        let (mask, sinks) = (Mask::CAUSAL, None);
        let op = CachedAttention { qkv, cache, start, output, heads, kv_heads, scores, mask, sinks };
        t.stream.submit(op).unwrap_err().to_string()
    };
    for (error, needle) in [
        (refused(&[1, 3, 8], 2, 2), "`cache` is (1, 3, 8), needs (1, 4 or more, 8)"),
        (refused(&[2, 9, 8], 2, 2), "`cache` is (2, 9, 8)"),
        (refused(&[1, 9, 4], 2, 2), "`cache` is (1, 9, 4)"),
        (refused(&[1, 9, 8], 3, 2), "3 heads cannot share 2"),
        (refused(&[1, 9, 8], 3, 1), "`qkv` is (1, 4, 12), needs (batch, rows, 5 * head_dim)"),
    ] {
        assert!(error.contains(needle), "{error}");
    }
    let take = TakeRows { table: t.empty(&[3, 2], F32), start, output: t.empty(&[4, 2], F32) };
    assert!(t.stream.submit(take).unwrap_err().to_string().contains("more rows than `table` of (3, 2)"));
}
