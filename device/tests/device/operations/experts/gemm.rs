//! Products of each expert's rows against an f64 reference, on the host or with `TEST_DEVICE=cuda` on a GPU.

use crate::common::{Bench, FLOATS, assert_sums_close, checked_bench, numbers};
use device::DType::{self, Bf16, F32};
use device::Tensor;
use device::ops::*;

/// The value of rows that nothing may write.
const UNTOUCHED: f64 = 7.0;

/// Rows of each expert, rows behind them, and the sizes of a matrix.
struct Sizes<'a> {
    counts: &'a [usize],
    behind: usize,
    n: usize,
    k: usize,
}

impl Sizes<'_> {
    fn used(&self) -> usize {
        self.counts.iter().sum()
    }

    fn rows(&self) -> usize {
        self.used() + self.behind
    }

    /// The expert of each row that has one.
    fn experts(&self) -> Vec<usize> {
        self.counts.iter().enumerate().flat_map(|(expert, rows)| vec![expert; *rows]).collect()
    }

    fn offsets(&self, t: &Bench) -> Tensor {
        let mut offsets = vec![0];
        self.counts.iter().for_each(|rows| offsets.push(offsets[offsets.len() - 1] + *rows as i32));
        t.ints(&[offsets.len()], &offsets)
    }

    /// Values of rows, NaN behind those of experts.
    fn factor(&self, t: &Bench, seed: u64, columns: usize, dtype: DType) -> (Tensor, Vec<f64>) {
        let mut values = numbers(seed, self.rows() * columns, dtype);
        values[self.used() * columns..].fill(f64::NAN);
        (t.put(&[self.rows(), columns], dtype, &values), values)
    }
}

/// Fails unless a sum of terms, given for each element, is near. Elements behind keep their values.
fn check(what: &str, ours: &[f64], dtype: DType, sums: &[Vec<f64>]) {
    let add = |of: fn(f64) -> f64| sums.iter().map(|terms| terms.iter().map(|x| of(*x)).sum()).collect::<Vec<f64>>();
    assert_sums_close(what, dtype, &ours[..sums.len()], &add(|x| x), &add(f64::abs));
    assert!(ours[sums.len()..].iter().all(|x| *x == UNTOUCHED), "{what}: rows without an expert were written");
}

fn check_products(t: &Bench, s: &Sizes<'_>, dtype: DType) {
    let (n, k, rows, count) = (s.n, s.k, s.rows(), s.counts.len());
    let what = |name: &str| format!("{name} of rows {:?} + {}, ({n}, {k})", s.counts, s.behind);
    let offsets = s.offsets(t);
    let ((x, x_values), (dy, dy_values)) = (s.factor(t, 1, k, dtype), s.factor(t, 2, n, dtype));
    let w_values = numbers(3, count * n * k, dtype);
    let w = t.put(&[count * n, k], dtype, &w_values);
    let run = |product, a, b, out: Tensor, accumulate| {
        t.run(GroupedGemm { accumulate, ..GroupedGemm::new(product, offsets, [a, b], out) });
        t.get(&out)
    };
    let untouched = |columns: usize| t.put(&[rows, columns], dtype, &vec![UNTOUCHED; rows * columns]);

    let experts = s.experts();
    let forward = experts.iter().enumerate().flat_map(|(row, expert)| {
        let (x, w) = (&x_values[row * k..][..k], &w_values[expert * n * k..][..n * k]);
        (0..n).map(move |j| (0..k).map(|i| x[i] * w[j * k + i]).collect())
    });
    let y = run(GroupedProduct::Forward, x, w, untouched(n), false);
    check(&what("forward"), &y, dtype, &forward.collect::<Vec<_>>());

    let backward = experts.iter().enumerate().flat_map(|(row, expert)| {
        let (dy, w) = (&dy_values[row * n..][..n], &w_values[expert * n * k..][..n * k]);
        (0..k).map(move |i| (0..n).map(|j| dy[j] * w[j * k + i]).collect())
    });
    let dx = run(GroupedProduct::InputGradient, dy, w, untouched(k), false);
    check(&what("input gradient"), &dx, dtype, &backward.collect::<Vec<_>>());

    for accumulate in [false, true] {
        let before = numbers(4, count * n * k, F32);
        let mut sums: Vec<Vec<f64>> = before.iter().map(|x| if accumulate { vec![*x] } else { vec![] }).collect();
        for (row, expert) in experts.iter().enumerate() {
            for (at, terms) in sums[expert * n * k..][..n * k].iter_mut().enumerate() {
                terms.push(dy_values[row * n + at / k] * x_values[row * k + at % k]);
            }
        }
        // NaN shows an element that is not overwritten.
        let out = if accumulate { t.put(&[count * n, k], F32, &before) } else { t.empty(&[count * n, k], F32) };
        let dw = run(GroupedProduct::WeightGradient, dy, x, out, accumulate);
        check(&what("weight gradient"), &dw, F32, &sums);
        for (expert, _) in s.counts.iter().enumerate().filter(|(_, rows)| **rows == 0) {
            let own = expert * n * k..(expert + 1) * n * k;
            let kept = if accumulate { before[own.clone()].to_vec() } else { vec![0.0; n * k] };
            assert_eq!(dw[own], kept, "{}, expert {expert} without rows", what("weight gradient"));
        }
    }
}

#[test]
fn products_of_each_expert_s_rows_agree_with_f64_and_touch_no_other_rows() {
    let t = checked_bench();
    for dtype in FLOATS {
        for (counts, behind) in [
            (&[5, 0, 130, 1][..], 3),
            (&[0, 0, 0], 4),
            (&[0, 300, 0], 0),
            (&[128, 64, 0, 192], 1),
            (&[1], 0),
            (&[3, 2, 9, 0, 0, 17, 1, 33, 0], 40),
        ] {
            // A GPU's kernel loads 16 bytes at a time, or one value. Hopper's takes multiples of 64 in bf16.
            for (n, k) in [(24, 40), (23, 41), (136, 8), (1, 1), (64, 320)] {
                check_products(&t, &Sizes { counts, behind, n, k }, dtype);
            }
        }
        check_products(&t, &Sizes { counts: &[150, 10], behind: 7, n: 264, k: 136 }, dtype);
    }
}

#[test]
fn products_of_some_columns_agree_with_f64_and_touch_no_others() {
    let t = checked_bench();
    for dtype in FLOATS {
        // 16 bytes at a time, and one value.
        for (n, k, wide, first) in [(24, 16, 48, 8), (5, 3, 9, 2)] {
            let s = Sizes { counts: &[5, 0, 130, 1], behind: 3, n, k };
            let (rows, count, experts) = (s.rows(), s.counts.len(), s.experts());
            let what = |name: &str| format!("{name} of columns, {dtype}, ({n}, {k})");
            let (narrow, broad) = (Some(Columns { first, count: k }), Some(Columns { first, count: n }));
            let (low, low_values) = s.factor(&t, 1, k + first, dtype);
            let (dy, dy_values) = s.factor(&t, 2, wide, dtype);
            let w_values = numbers(3, count * n * k, dtype);
            let w = t.put(&[count * n, k], dtype, &w_values);
            let (of_low, of_dy) = (
                |row: usize, i: usize| low_values[row * (k + first) + first + i],
                |row, j| dy_values[row * wide + first + j],
            );
            let of_w = |row: usize, j: usize, i: usize| w_values[experts[row] * n * k + j * k + i];

            // Other columns, and rows without an expert, keep what they have.
            let check_rows =
                |name: &str, out: &Tensor, width: usize, before: &[f64], terms: &dyn Fn(usize, usize) -> Vec<f64>| {
                    let (stride, values) = (out.shape.last(), t.get(out));
                    let inside = |at: usize| at / stride < s.used() && (first..first + width).contains(&(at % stride));
                    let sums: Vec<_> = (0..rows * stride)
                        .filter(|at| inside(*at))
                        .map(|at| terms(at / stride, at % stride - first))
                        .collect();
                    let ours: Vec<_> = (0..rows * stride).filter(|at| inside(*at)).map(|at| values[at]).collect();
                    check(&what(name), &ours, dtype, &sums);
                    assert!((0..rows * stride).all(|at| inside(at) || values[at] == before[at]), "{}", what(name));
                };
            let before = numbers(5, rows * wide, dtype);
            let out = t.put(&[rows, wide], dtype, &before);
            let product = GroupedGemm::new(GroupedProduct::Forward, s.offsets(&t), [low, w], out);
            let columns = GemmColumns { a: narrow, out: broad, ..GemmColumns::ALL };
            t.run(GroupedGemm { alpha: 0.5, accumulate: true, columns, ..product });
            check_rows("forward", &out, n, &before, &|row, j| {
                let products = (0..k).map(|i| 0.5 * of_low(row, i) * of_w(row, j, i));
                [before[row * wide + first + j]].into_iter().chain(products).collect()
            });

            let before = vec![UNTOUCHED; rows * (k + first)];
            let out = t.put(&[rows, k + first], dtype, &before);
            let product = GroupedGemm::new(GroupedProduct::InputGradient, s.offsets(&t), [dy, w], out);
            t.run(GroupedGemm { columns: GemmColumns { a: broad, out: narrow, ..GemmColumns::ALL }, ..product });
            check_rows("input gradient", &out, k, &before, &|row, i| {
                (0..n).map(|j| of_dy(row, j) * of_w(row, j, i)).collect()
            });

            let out = t.empty(&[count * n, k], F32);
            let product = GroupedGemm::new(GroupedProduct::WeightGradient, s.offsets(&t), [dy, low], out);
            t.run(GroupedGemm { columns: GemmColumns { a: broad, b: narrow, out: None }, ..product });
            let mut sums = vec![vec![]; count * n * k];
            for (row, expert) in experts.iter().enumerate() {
                for (at, terms) in sums[expert * n * k..][..n * k].iter_mut().enumerate() {
                    terms.push(of_dy(row, at / k) * of_low(row, at % k));
                }
            }
            check(&what("weight gradient"), &t.get(&out), F32, &sums);
        }
    }
}

/// A factor in 8 bits, NaN behind the rows of experts, and its values.
fn of_8_bits(t: &Bench, seed: u64, [rows, columns]: [usize; 2], dtype: DType, used: usize) -> (Tensor, Vec<f64>) {
    let mut values = numbers(seed, rows * columns, dtype);
    values[used * columns..].fill(f64::NAN);
    (t.put(&[rows, columns], dtype, &values), values)
}

#[test]
fn products_of_8_bit_rows_agree_with_f64_and_touch_no_other_rows() {
    let t = checked_bench();
    let s = Sizes { counts: &[5, 0, 130, 1, 64], behind: 3, n: 48, k: 80 };
    let (n, k, rows, count) = (s.n, s.k, s.rows(), s.counts.len());
    let offsets = s.offsets(&t);
    let scales = [t.put(&[1], F32, &[0.5]), t.put(&[1], F32, &[0.25])];
    let (x, x_values) = of_8_bits(&t, 1, [rows, k], DType::F8E4M3, s.used());
    let (w, w_values) = of_8_bits(&t, 3, [count * n, k], DType::F8E4M3, count * n);
    let (w_t, w_t_values) = of_8_bits(&t, 4, [k, count * n], DType::F8E4M3, k);
    let run = |product, a, b, columns: usize| {
        let out = t.put(&[rows, columns], Bf16, &vec![UNTOUCHED; rows * columns]);
        t.run(GroupedGemm { scales: Some(scales), ..GroupedGemm::new(product, offsets, [a, b], out) });
        t.get(&out)
    };
    let experts = s.experts();
    let forward = experts.iter().enumerate().flat_map(|(row, expert)| {
        let (x, w) = (&x_values[row * k..][..k], &w_values[expert * n * k..][..n * k]);
        (0..n).map(move |j| (0..k).map(|i| 0.125 * x[i] * w[j * k + i]).collect())
    });
    check("forward", &run(GroupedProduct::Forward, x, w, n), Bf16, &forward.collect::<Vec<_>>());
    for dtype in [DType::F8E4M3, DType::F8E5M2] {
        let (dy, dy_values) = of_8_bits(&t, 2, [rows, n], dtype, s.used());
        let w_t_values = &w_t_values;
        let backward = experts.iter().enumerate().flat_map(|(row, expert)| {
            let dy = dy_values[row * n..][..n].to_vec();
            (0..k).map(move |i| (0..n).map(|j| 0.125 * dy[j] * w_t_values[i * count * n + expert * n + j]).collect())
        });
        let sums: Vec<_> = backward.collect();
        check("input gradient", &run(GroupedProduct::InputGradient, dy, w_t, k), Bf16, &sums);
    }
}

#[test]
fn products_of_8_bit_rows_that_do_not_fit_are_refused() {
    let t = checked_bench();
    let refused = |product, a: DType, b: DType, [n, k]: [usize; 2], out: DType| {
        let offsets = t.ints(&[3], &[0; 3]);
        let (a, b) = (t.empty(&[16, k], a), t.empty(&[2 * n, k], b));
        let scales = Some([t.empty(&[1], F32), t.empty(&[1], F32)]);
        t.refusal(GroupedGemm { scales, ..GroupedGemm::new(product, offsets, [a, b], t.empty(&[16, n], out)) })
    };
    let (e4m3, e5m2) = (DType::F8E4M3, DType::F8E5M2);
    use GroupedProduct::{Forward, WeightGradient};
    for (error, words) in [
        (refused(Forward, Bf16, e4m3, [16, 16], Bf16), "`a` is bf16, needs an 8-bit floating type"),
        (refused(Forward, e5m2, e5m2, [16, 16], Bf16), "`b` is fp8-e5m2, needs fp8-e4m3"),
        (refused(Forward, e4m3, e4m3, [16, 24], Bf16), "multiples of 16"),
        (refused(Forward, e4m3, e4m3, [16, 16], F32), "`out` is f32, needs bf16"),
        (refused(WeightGradient, e4m3, e4m3, [16, 16], F32), "a weight gradient has no 8-bit factors"),
    ] {
        assert!(error.contains(words), "{error}");
    }
    let (offsets, bytes) = (t.ints(&[2], &[0; 2]), t.empty(&[17 * 16], e4m3));
    let (a, b, out) = (bytes.view(8, [16, 16]), t.empty(&[16, 16], e4m3), t.empty(&[16, 16], Bf16));
    let scales = Some([t.empty(&[1], F32), t.empty(&[1], F32)]);
    let error = t.refusal(GroupedGemm { scales, ..GroupedGemm::new(Forward, offsets, [a, b], out) });
    assert!(error.contains("multiples of 16"), "{error}");
}

#[test]
fn shapes_and_types_that_do_not_fit_are_refused() {
    let t = checked_bench();
    let refused = |product, offsets: usize, a: [usize; 2], b: [usize; 2], out: ([usize; 2], DType), accumulate| {
        let (offsets, a, b) = (t.ints(&[offsets], &vec![0; offsets]), t.empty(&a, Bf16), t.empty(&b, Bf16));
        t.refusal(GroupedGemm { accumulate, ..GroupedGemm::new(product, offsets, [a, b], t.empty(&out.0, out.1)) })
    };
    use GroupedProduct::{Forward, InputGradient, WeightGradient};
    let (a, b) = (t.empty(&[6, 4], Bf16), t.empty(&[10, 4], F32));
    let other = t.refusal(GroupedGemm::new(Forward, t.ints(&[3], &[0; 3]), [a, b], t.empty(&[6, 5], Bf16)));
    let some = |first, count| Some(Columns { first, count });
    let columns = |columns| {
        let (a, b) = (t.empty(&[6, 8], Bf16), t.empty(&[10, 4], Bf16));
        let whole = GroupedGemm::new(Forward, t.ints(&[3], &[0; 3]), [a, b], t.empty(&[6, 5], Bf16));
        t.refusal(GroupedGemm { columns, ..whole })
    };
    for (error, words) in [
        (refused(Forward, 1, [6, 4], [10, 4], ([6, 5], Bf16), false), "grouped_gemm: there is no expert"),
        (
            refused(Forward, 4, [6, 4], [10, 4], ([6, 5], Bf16), false),
            "10 rows of weights cannot be divided by 3 experts",
        ),
        (refused(Forward, 3, [6, 3], [10, 4], ([6, 5], Bf16), false), "`a` of shape (6, 3) has 18 elements, needs 24"),
        (
            refused(Forward, 3, [6, 4], [10, 4], ([6, 4], Bf16), false),
            "`out` of shape (6, 4) has 24 elements, needs 30",
        ),
        (refused(Forward, 3, [6, 4], [10, 4], ([6, 5], F32), false), "`out` is f32, needs bf16"),
        (columns(GemmColumns { a: some(5, 4), ..GemmColumns::ALL }), "gives columns 5..9, needs 4 in 6 rows"),
        (columns(GemmColumns { a: some(2, 3), ..GemmColumns::ALL }), "gives columns 2..5, needs 4 in 6 rows"),
        (columns(GemmColumns { b: some(0, 2), ..GemmColumns::ALL }), "matrices of experts are whole"),
        (refused(InputGradient, 3, [6, 4], [10, 4], ([6, 4], Bf16), false), "`a` of shape (6, 4)"),
        (refused(WeightGradient, 3, [6, 5], [5, 4], ([10, 4], F32), false), "`b` of shape (5, 4)"),
        (refused(WeightGradient, 3, [6, 5], [6, 4], ([10, 4], Bf16), false), "`out` is bf16, needs f32"),
        (other, "grouped_gemm: `b` is f32, needs bf16 like `a`"),
    ] {
        assert!(error.contains(words), "{error}");
    }
}
