//! Norms over all query heads and all key heads against an f64 reference and finite differences, on one rank and with the heads
//! divided over two.

use crate::common::{Bench, FLOATS, assert_close, bench, finite_differences, numbers};
use device::DType::{self, F32};
use device::Tensor;
use device::ops::{HeadSums, JointNorm, JointNormBackward, WeightedGradient};

const EPS: f64 = 1e-3;

/// Sizes of a packed tensor, over all ranks.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    rows: usize,
    heads: usize,
    kv_heads: usize,
    dim: usize,
    ranks: usize,
}

impl Sizes {
    /// Channels of queries, of keys and of values of one rank.
    fn widths(&self) -> [usize; 3] {
        [self.heads, self.kv_heads, self.kv_heads].map(|heads| heads / self.ranks * self.dim)
    }

    fn width(&self) -> usize {
        self.widths().iter().sum()
    }
}

/// The tensors of one rank.
struct Rank {
    input: Tensor,
    grad: Tensor,
    weights: [Tensor; 2],
    values: Vec<f64>,
    dy: Vec<f64>,
    weight_values: [Vec<f64>; 2],
}

/// The norm of the channels that all ranks have of one kind in a row.
fn norm(x: &[f64], weight: &[f64]) -> Vec<f64> {
    let rms = (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + EPS).sqrt();
    x.iter().zip(weight).map(|(x, weight)| x / rms * weight).collect()
}

fn ranks(t: &Bench, s: Sizes, dtype: DType) -> Vec<Rank> {
    let one = |rank: usize| {
        let seed = 10 * rank as u64;
        let [queries, keys, _] = s.widths();
        let shape = [1, s.rows, s.width()];
        let values = numbers(seed + 1, s.rows * s.width(), dtype);
        let dy = numbers(seed + 2, s.rows * s.width(), dtype);
        let weights = [(3, queries), (4, keys)].map(|(at, width)| {
            let weight: Vec<f64> = numbers(seed + at, width, dtype).into_iter().map(|x| x + 1.0).collect();
            t.put(&[width], dtype, &weight)
        });
        let (input, grad) = (t.put(&shape, dtype, &values), t.put(&shape, dtype, &dy));
        Rank { input, grad, weights, values, dy, weight_values: weights.map(|weight| t.get(&weight)) }
    };
    (0..s.ranks).map(one).collect()
}

/// The sums of all ranks, as a collective would leave them.
fn sums(t: &Bench, s: Sizes, ranks: &[Rank], of_gradient: bool) -> Tensor {
    let sums = t.empty(&[s.rows, 2], F32);
    let mut total = vec![0.0; s.rows * 2];
    for rank in ranks {
        let [query_weight, key_weight] = rank.weights;
        let gradient = of_gradient.then_some(WeightedGradient { grad: rank.grad, query_weight, key_weight });
        let (heads, kv_heads) = (s.heads / s.ranks, s.kv_heads / s.ranks);
        t.run(HeadSums { input: rank.input, gradient, sums, heads, kv_heads });
        total.iter_mut().zip(t.get(&sums)).for_each(|(total, sum)| *total += sum);
    }
    t.put(&[s.rows, 2], F32, &total)
}

/// The channels of one kind (0 queries, 1 keys) of a row, of all ranks one after the other.
fn joined(s: Sizes, ranks: &[Rank], row: usize, kind: usize, of: fn(&Rank) -> &[f64]) -> Vec<f64> {
    let first: usize = s.widths()[..kind].iter().sum();
    ranks.iter().flat_map(|rank| of(rank)[row * s.width() + first..][..s.widths()[kind]].to_vec()).collect()
}

fn check(t: &Bench, s: Sizes, dtype: DType) {
    let what = |name: &str| format!("{name} of {s:?}, {dtype}");
    let all = ranks(t, s, dtype);
    let squares = sums(t, s, &all, false);
    let products = sums(t, s, &all, true);
    let (heads, kv_heads, eps) = (s.heads / s.ranks, s.kv_heads / s.ranks, EPS as f32);
    for (at, rank) in all.iter().enumerate() {
        let output = t.empty(&[1, s.rows, s.width()], dtype);
        let [query_weight, key_weight] = rank.weights;
        let (input, ranks) = (rank.input, s.ranks);
        t.run(JointNorm { input, output, query_weight, key_weight, squares, heads, kv_heads, ranks, eps });
        let (mut truth, mut grad_truth) = (rank.values.clone(), rank.dy.clone());
        let mut weight_truth = [0, 1].map(|kind| vec![2.0; s.widths()[kind]]);
        for (row, kind) in (0..s.rows).flat_map(|row| [(row, 0), (row, 1)]) {
            let x = joined(s, &all, row, kind, |rank| &rank.values);
            let dy = joined(s, &all, row, kind, |rank| &rank.dy);
            let weight: Vec<f64> = all.iter().flat_map(|rank| rank.weight_values[kind].clone()).collect();
            let own = at * s.widths()[kind]..(at + 1) * s.widths()[kind];
            let first = row * s.width() + s.widths()[..kind].iter().sum::<usize>();
            let grad_x = finite_differences(&x, &dy, |x| norm(x, &weight));
            let grad_weight = finite_differences(&weight, &dy, |weight| norm(&x, weight));
            truth[first..first + own.len()].copy_from_slice(&norm(&x, &weight)[own.clone()]);
            grad_truth[first..first + own.len()].copy_from_slice(&grad_x[own.clone()]);
            weight_truth[kind].iter_mut().zip(&grad_weight[own]).for_each(|(sum, x)| *sum += x);
        }
        assert_close(&what("output"), dtype, &t.get(&output), &truth);
        for accumulate in [true, false] {
            let grad = t.put(&[1, s.rows, s.width()], dtype, &rank.dy);
            let [grad_query_weight, grad_key_weight] =
                [0, 1].map(|kind| Some(t.put(&[s.widths()[kind]], F32, &vec![2.0; s.widths()[kind]])));
            t.run(JointNormBackward {
                input,
                grad,
                query_weight,
                key_weight,
                squares,
                products,
                grad_query_weight,
                grad_key_weight,
                heads,
                kv_heads,
                ranks,
                eps,
                accumulate,
            });
            assert_close(&what("gradient"), dtype, &t.get(&grad), &grad_truth);
            for (sums, truth) in [grad_query_weight, grad_key_weight].iter().flatten().zip(&weight_truth) {
                let truth: Vec<f64> = truth.iter().map(|x| if accumulate { *x } else { x - 2.0 }).collect();
                assert_close(&what("gradient of a weight"), F32, &t.get(sums), &truth);
            }
        }
    }
}

#[test]
fn all_heads_of_all_ranks_are_normalised_together_and_gradients_are_those_of_finite_differences() {
    for (threads, dtype) in [(1, FLOATS[0]), (2, FLOATS[1])] {
        for (rows, heads, kv_heads, dim, ranks) in
            [(5, 4, 2, 6, 1), (19, 3, 1, 5, 1), (4, 4, 2, 8, 2), (3, 2, 2, 1, 2), (2, 6, 3, 3, 3)]
        {
            check(&bench(threads), Sizes { rows, heads, kv_heads, dim, ranks }, dtype);
        }
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let t = bench(1);
    let (input, output) = (t.empty(&[1, 3, 12], F32), t.empty(&[1, 3, 12], F32));
    let refused = |queries: usize, keys: usize, rows: usize| {
        let (query_weight, key_weight) = (t.empty(&[queries], F32), t.empty(&[keys], F32));
        let squares = t.empty(&[rows, 2], F32);
        let op =
            JointNorm { input, output, query_weight, key_weight, squares, heads: 2, kv_heads: 2, ranks: 1, eps: 1.0 };
        t.stream.submit(op).unwrap_err().to_string()
    };
    for (error, needle) in
        [(refused(3, 4, 3), "query_weight"), (refused(4, 2, 3), "key_weight"), (refused(4, 4, 2), "sums")]
    {
        assert!(error.contains(needle), "{error}");
    }
}
