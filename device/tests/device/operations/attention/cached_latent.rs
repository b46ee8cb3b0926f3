//! Attention over a cache of latents against keys and values of heads, made in f64.

use crate::common::{assert_close, bench, numbers};
use crate::operations::functions::{dot, turned};
use device::DType::{Bf16, F32};
use device::ops::*;
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
struct Sizes {
    batch: usize,
    /// Tokens of each call, one call after the other.
    calls: [usize; 3],
    heads: usize,
    head: LatentHead,
    rank: usize,
    mask: Mask,
    scores: Scores,
}

impl Sizes {
    fn tokens(&self) -> usize {
        self.calls.iter().sum()
    }

    /// Columns of a row of queries and rotated channels, with others between.
    fn columns(&self) -> usize {
        self.heads * self.head.query() + 3 + self.head.rotated
    }
}

/// Output `(batch, tokens, heads * value)` of the whole sequence at once, through keys and values of every head.
fn attention(s: Sizes, projected: &[f64], latents: &[f64], weight: &[f64], table: &[f64]) -> Vec<f64> {
    let (tokens, LatentHead { plain, rotated, value }) = (s.tokens(), s.head);
    let row = |b: usize, token: usize| &projected[(b * tokens + token) * s.columns()..][..s.columns()];
    let latent = |b: usize, token: usize| &latents[(b * tokens + token) * s.rank..][..s.rank];
    let made = |b: usize, token: usize, head: usize, channel: usize| {
        dot(&weight[(head * (plain + value) + channel) * s.rank..][..s.rank], latent(b, token))
    };
    let turn = |values: &[f64], token: usize| turned(values, &table[token * rotated..][..rotated]);
    let mut output = Vec::new();
    for (b, at) in (0..s.batch).flat_map(|b| (0..tokens).map(move |at| (b, at))) {
        for head in 0..s.heads {
            let query = &row(b, at)[head * s.head.query()..][..s.head.query()];
            let score = |key: usize| {
                let of_plain: f64 = (0..plain).map(|channel| query[channel] * made(b, key, head, channel)).sum();
                let keys = turn(&row(b, key)[s.columns() - rotated..], key);
                let product = of_plain + dot(&turn(&query[plain..], at), &keys);
                let score = product * s.scores.scale.map_or(1.0 / (s.head.query() as f64).sqrt(), f64::from);
                s.scores.soft_cap.map(f64::from).map_or(score, |cap| cap * (score / cap).tanh()).exp()
            };
            let first = s.mask.first_key(at);
            let weights: Vec<f64> = (first..=at).map(score).collect();
            let total: f64 = weights.iter().sum();
            for channel in 0..value {
                let values = weights.iter().enumerate();
                output.push(values.map(|(i, w)| w / total * made(b, first + i, head, plain + channel)).sum());
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
    #![proptest_config(ProptestConfig::with_cases(30))]

    #[test]
    fn a_sequence_taken_in_pieces_through_the_cache_of_latents_has_the_attention_of_keys_and_values(
        batch in 1..3usize,
        calls in [1..40usize, 1..30usize, 1..3usize],
        heads in 1..4usize,
        (plain, pairs, value) in (1..20usize, 1..6usize, 1..20usize),
        rank in 1..30usize,
        spare in 0..5usize,
        window in prop::option::of(1..50usize),
        scale in prop::option::of(Just(0.5f32)),
        soft_cap in prop::option::of(Just(0.75f32)),
        (half, apart) in any::<(bool, bool)>(),
        threads in 1..3usize,
    ) {
        let head = LatentHead { plain, rotated: 2 * pairs, value };
        let (mask, scores) = (Mask { window }, Scores { scale, soft_cap });
        let s = Sizes { batch, calls, heads, head, rank, mask, scores };
        let dtype = if half { Bf16 } else { F32 };
        let (t, tokens) = (bench(threads), s.tokens());
        let projected = numbers(3, batch * tokens * s.columns(), dtype);
        let latents = numbers(4, batch * tokens * rank, dtype);
        let weight = numbers(5, heads * (plain + value) * rank, dtype);
        let angles: Vec<f64> = (0..tokens * pairs).flat_map(|at| [(at as f64).cos(), (at as f64).sin()]).collect();
        let angles: Vec<f64> = angles.into_iter().map(|x| f64::from(x as f32)).collect();
        let truth = attention(s, &projected, &latents, &weight, &angles);
        let weight = t.put(&[heads * (plain + value), rank], dtype, &weight);
        // Earlier content of the cache must not matter: it is NaN.
        let cache = t.empty(&[batch, tokens + spare, rank + head.rotated], dtype);
        let (mut from, out_width) = (0, heads * value);
        for rows in s.calls {
            let new = part(&projected, tokens, s.columns(), from, rows);
            let rotated = t.put(&[batch, rows, s.columns()], dtype, &new);
            let only_queries: Vec<f64> =
                new.chunks(s.columns()).flat_map(|row| row[..heads * head.query()].to_vec()).collect();
            let queries = match apart {
                true => t.put(&[batch, rows, heads * head.query()], dtype, &only_queries),
                false => rotated,
            };
            let latents = t.put(&[batch, rows, rank], dtype, &part(&latents, tokens, rank, from, rows));
            let table = &angles[from * head.rotated..][..rows * head.rotated];
            let table = t.put(&[rows, pairs, 2], F32, table);
            let output = t.empty(&[batch, rows, out_width], dtype);
            let start = t.ints(&[1], &[from as i32]);
            t.run(CachedLatentAttention {
                head, queries, latents, rotated, table, weight, cache, start, output, scores, mask,
            });
            let wanted = part(&truth, tokens, out_width, from, rows);
            assert_close(&format!("{s:?} from {from}"), dtype, &t.get(&output), &wanted);
            from += rows;
        }
    }
}

#[test]
fn shapes_that_do_not_fit_a_cache_of_latents_are_refused_with_both_sides() {
    let t = bench(1);
    let head = LatentHead { plain: 2, rotated: 2, value: 3 };
    let op = CachedLatentAttention {
        head,
        queries: t.empty(&[1, 4, 8], F32),
        latents: t.empty(&[1, 4, 5], F32),
        rotated: t.empty(&[1, 4, 2], F32),
        table: t.empty(&[4, 1, 2], F32),
        weight: t.empty(&[10, 5], F32),
        cache: t.empty(&[1, 6, 7], F32),
        start: t.ints(&[1], &[0]),
        output: t.empty(&[1, 4, 6], F32),
        scores: Scores::default(),
        mask: Mask::CAUSAL,
    };
    t.stream.submit(op.clone()).unwrap();
    let short = CachedLatentAttention { cache: t.empty(&[1, 3, 7], F32), ..op.clone() };
    let narrow = CachedLatentAttention { cache: t.empty(&[1, 6, 5], F32), ..op.clone() };
    let weight = CachedLatentAttention { weight: t.empty(&[11, 5], F32), ..op.clone() };
    let queries = CachedLatentAttention { queries: t.empty(&[1, 4, 7], F32), ..op.clone() };
    let odd = CachedLatentAttention { head: LatentHead { rotated: 3, ..head }, ..op };
    for (op, needle) in [
        (short, "`cache` is (1, 3, 7), needs (1, 4 or more, 7)"),
        (narrow, "`cache` is (1, 6, 5), needs (1, 4 or more, 7)"),
        (weight, "`weight` has shape (11, 5), needs (10, 5)"),
        (queries, "`queries` is (1, 4, 7)"),
        (odd, "an even number rotates"),
    ] {
        let error = t.stream.submit(op).unwrap_err().to_string();
        assert!(error.contains(needle), "{error}");
    }
}
