//! Norms of query and key heads against an f64 reference and finite differences.

use crate::common::{Bench, FLOATS, assert_close, bench, checked_bench, finite_differences, numbers};
use device::DType;
use device::DType::F32;
use device::ops::{HeadNorm, HeadNormBackward};

const EPS: f64 = 1e-3;

/// Sizes of a packed tensor.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    batch: usize,
    seq: usize,
    heads: usize,
    kv_heads: usize,
    dim: usize,
}

impl Sizes {
    fn width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.dim
    }

    fn shape(&self) -> [usize; 3] {
        [self.batch, self.seq, self.width()]
    }

    fn angle(&self, position: usize, pair: usize) -> f64 {
        position as f64 / 100f64.powf(2.0 * pair as f64 / self.dim as f64)
    }

    fn table(&self) -> Vec<f64> {
        let pairs = (0..self.seq).flat_map(|position| (0..self.dim / 2).map(move |pair| (position, pair)));
        pairs
            .flat_map(|(position, pair)| [self.angle(position, pair).cos(), self.angle(position, pair).sin()])
            .collect()
    }

    /// The head of this number after its norm, and turned by its position.
    fn head(&self, x: &[f64], weight: &[f64], position: Option<usize>) -> Vec<f64> {
        let rms = (x.iter().map(|x| x * x).sum::<f64>() / self.dim as f64 + EPS).sqrt();
        let normed: Vec<f64> = x.iter().zip(weight).map(|(x, weight)| x / rms * weight).collect();
        let Some(position) = position else { return normed };
        let half = self.dim / 2;
        let turned = |i: usize| {
            let (sin, cos) = self.angle(position, i % half).sin_cos();
            let (a, b) = (normed[i % half], normed[i % half + half]);
            if i < half { a * cos - b * sin } else { a * sin + b * cos }
        };
        (0..self.dim).map(turned).collect()
    }

    /// The position of a head among all heads of all rows, and whether it is a query, a key or a value.
    fn place(&self, at: usize) -> (usize, Kind) {
        let of_row = self.heads + 2 * self.kv_heads;
        let kind = match at % of_row {
            head if head < self.heads => Kind::Query,
            head if head < self.heads + self.kv_heads => Kind::Key,
            _ => Kind::Value,
        };
        (at / of_row % self.seq, kind)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Query,
    Key,
    Value,
}

fn check(t: &Bench, s: Sizes, turns: bool, weight_offset: f32, dtype: DType) {
    let what = |name: &str| format!("{name} of {s:?}, turned: {turns}, weights + {weight_offset}, {dtype}");
    let values = numbers(1, s.batch * s.seq * s.width(), dtype);
    let weights = [2, 3].map(|seed| numbers(seed, s.dim, dtype).into_iter().map(|x| x + 1.0).collect::<Vec<f64>>());
    let weights_t = weights.clone().map(|weight| t.put(&[s.dim], dtype, &weight));
    // As the tensor holds them, with their offset.
    let weights = [0, 1].map(|kind: usize| -> Vec<f64> {
        t.get(&weights_t[kind]).iter().map(|weight| weight + f64::from(weight_offset)).collect()
    });
    let table = turns.then(|| t.put(&[s.seq, s.dim / 2, 2], F32, &s.table()));
    let (input, output) = (t.put(&s.shape(), dtype, &values), t.empty(&s.shape(), dtype));
    let [query_weight, key_weight] = weights_t;
    let (heads, kv_heads, eps) = (s.heads, s.kv_heads, EPS as f32);
    t.run(HeadNorm { input, output, query_weight, key_weight, weight_offset, table, heads, kv_heads, eps });
    let position = |at: usize| turns.then_some(s.place(at).0);
    let forward = |at: usize, x: &[f64]| match s.place(at).1 {
        Kind::Value => x.to_vec(),
        kind => s.head(x, &weights[usize::from(kind == Kind::Key)], position(at)),
    };
    let truth: Vec<f64> = values.chunks(s.dim).enumerate().flat_map(|(at, x)| forward(at, x)).collect();
    assert_close(&what("output"), dtype, &t.get(&output), &truth);
    assert_eq!(t.get(&input), values, "{}", what("input, left alone"));

    let dy = numbers(4, values.len(), dtype);
    let [grad_query_weight, grad_key_weight] = [0, 1].map(|_| t.put(&[s.dim], F32, &vec![2.0; s.dim]));
    for accumulate in [true, false] {
        let grad = t.put(&s.shape(), dtype, &dy);
        t.run(HeadNormBackward {
            input,
            grad,
            query_weight,
            key_weight,
            weight_offset,
            table,
            grad_query_weight: Some(grad_query_weight),
            grad_key_weight: Some(grad_key_weight),
            heads,
            kv_heads,
            eps,
            accumulate,
        });
        let heads = || values.chunks(s.dim).zip(dy.chunks(s.dim)).enumerate();
        let truth: Vec<f64> = heads().flat_map(|(at, (x, dy))| finite_differences(x, dy, |x| forward(at, x))).collect();
        assert_close(&what("gradient"), dtype, &t.get(&grad), &truth);
        for (kind, sums) in [(Kind::Query, grad_query_weight), (Kind::Key, grad_key_weight)] {
            let mut truth = vec![if accumulate { 2.0 } else { 0.0 }; s.dim];
            for (at, (x, dy)) in heads().filter(|(at, _)| s.place(*at).1 == kind) {
                let weight = &weights[usize::from(kind == Kind::Key)];
                let of_head = finite_differences(weight, dy, |weight| s.head(x, weight, position(at)));
                truth.iter_mut().zip(of_head).for_each(|(sum, x)| *sum += x);
            }
            assert_close(&what("gradient of a weight"), F32, &t.get(&sums), &truth);
        }
    }
}

#[test]
fn heads_are_normalised_and_turned_and_their_gradients_are_those_of_finite_differences() {
    let t = checked_bench();
    for dtype in FLOATS {
        // Sizes of models, and those that no vector of 16 bytes divides.
        for (batch, seq, heads, kv_heads, dim) in
            [(2, 5, 4, 2, 6), (1, 3, 3, 1, 10), (3, 7, 2, 2, 2), (2, 9, 4, 1, 64), (1, 5, 2, 1, 128), (1, 2, 2, 1, 160)]
        {
            for (turns, weight_offset) in [(true, 0.0), (false, 0.0), (true, 1.0), (false, 1.0)] {
                check(&t, Sizes { batch, seq, heads, kv_heads, dim }, turns, weight_offset, dtype);
            }
        }
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused_by_name() {
    let t = bench(1);
    let (input, output) = (t.empty(&[1, 2, 4 * 6], F32), t.empty(&[1, 2, 4 * 6], F32));
    let weight = |dim: usize| t.empty(&[dim], F32);
    let refusal = |query: usize, key: usize, heads: usize, table: Option<[usize; 3]>| {
        let table = table.map(|shape| t.empty(&shape, F32));
        let op = HeadNorm {
            input,
            output,
            query_weight: weight(query),
            key_weight: weight(key),
            weight_offset: 0.0,
            table,
            heads,
            kv_heads: 1,
            eps: 1e-6,
        };
        t.stream.submit(op).unwrap_err().to_string()
    };
    let says = |error: String, words: &str| assert!(error.contains(words), "{error}\nshould say: {words}");
    says(refusal(5, 6, 2, None), "`query_weight` has shape");
    says(refusal(6, 7, 2, None), "`key_weight` has shape");
    says(refusal(6, 6, 3, None), "an even head_dim");
    says(refusal(6, 6, 2, Some([3, 3, 2])), "`table` has shape");
}
