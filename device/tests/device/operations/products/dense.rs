//! Products and activations against naive f64 references and finite differences, over odd shapes.

use crate::common::{Bench, FLOATS, assert_close, assert_sums_close, bench, finite_differences, numbers, rounded};
use crate::operations::functions::{capped, dimension, gelu, silu, slope};
use device::DType::{Bf16, F32};
use device::ops::*;
use device::{DType, Tensor, bf16};
use proptest::prelude::*;

fn matmul(a: &[f64], b: &[f64], (m, n, k): (usize, usize, usize), ta: bool, tb: bool) -> Vec<f64> {
    let at = |i: usize, p: usize| if ta { a[p * m + i] } else { a[i * k + p] };
    let bt = |p: usize, j: usize| if tb { b[j * k + p] } else { b[p * n + j] };
    (0..m * n).map(|ij| (0..k).map(|p| at(ij / n, p) * bt(p, ij % n)).sum()).collect()
}

fn check_gemm(t: &Bench, dims: (usize, usize, usize), ta: bool, tb: bool, factors: DType, out: DType) {
    let (m, n, k) = dims;
    let (a, b) = (numbers(1, m * k, factors), numbers(2, k * n, factors));
    let shape = |rows, columns, transposed| if transposed { [columns, rows] } else { [rows, columns] };
    let (ta_, tb_) = (t.put(&shape(m, k, ta), factors, &a), t.put(&shape(k, n, tb), factors, &b));
    let gemm = |out, accumulate, epilogue| Gemm {
        transpose_a: ta,
        transpose_b: tb,
        accumulate,
        epilogue,
        ..Gemm::plain(ta_, tb_, out)
    };
    let absolute = |values: &[f64]| -> Vec<f64> { values.iter().map(|x| x.abs()).collect() };
    let product = matmul(&a, &b, dims, ta, tb);
    // The magnitudes of the products, and of the numbers added to them. Those are below 1.
    let magnitudes: Vec<f64> = matmul(&absolute(&a), &absolute(&b), dims, ta, tb).iter().map(|x| x + 1.0).collect();
    let close = |what: &str, ours: &Tensor, truth: &[f64]| {
        assert_sums_close(what, out, &t.get(ours), truth, &magnitudes);
    };
    let plain = t.empty(&[m, n], out);
    t.run(gemm(plain, false, Epilogue::None));
    close("product", &plain, &product);

    let before = numbers(3, m * n, out);
    let added = t.put(&[m, n], out, &before);
    t.run(gemm(added, true, Epilogue::None));
    let sum: Vec<f64> = before.iter().zip(&product).map(|(x, y)| x + y).collect();
    close("accumulated product", &added, &sum);

    check_columns(t, dims, (&a, ta), (&b, tb), (factors, out));

    let bias = numbers(4, n, out);
    let with_bias: Vec<f64> = product.iter().enumerate().map(|(ij, x)| x + bias[ij % n]).collect();
    let (bias_tensor, biased) = (t.put(&[n], out, &bias), t.empty(&[m, n], out));
    t.run(gemm(biased, false, Epilogue::Bias(bias_tensor)));
    close("product with bias", &biased, &with_bias);

    let (pre, activated) = (t.empty(&[m, n], out), t.empty(&[m, n], out));
    t.run(gemm(activated, false, Epilogue::BiasGelu { bias: bias_tensor, pre }));
    close("pre-activation", &pre, &with_bias);
    let truth: Vec<f64> = t.get(&pre).into_iter().map(gelu).collect();
    assert_close("activated product", out, &t.get(&activated), &truth);

    let through = t.empty(&[m, n], out);
    t.run(gemm(through, false, Epilogue::GeluBackward { pre, activated: None }));
    let truth: Vec<f64> = product.iter().zip(t.get(&pre)).map(|(dy, x)| dy * slope(gelu, x)).collect();
    close("product through GELU's gradient", &through, &truth);

    let (beside, again) = (t.empty(&[m, n], out), t.empty(&[m, n], out));
    t.run(gemm(beside, false, Epilogue::GeluBackward { pre, activated: Some(again) }));
    assert_eq!(t.get(&beside), t.get(&through), "the gradient, with the GELU beside it");
    assert_eq!(t.get(&again), t.get(&activated), "the GELU beside its gradient");
}

/// Twice the product of matrices that lie in wider tensors. The other columns of `out` keep their values.
fn check_columns(
    t: &Bench,
    dims: (usize, usize, usize),
    (a, ta): (&[f64], bool),
    (b, tb): (&[f64], bool),
    (factors, out): (DType, DType),
) {
    let (m, n, k) = dims;
    let wide = |values: &[f64], rows: usize, columns: usize, first: usize, beside: f64| -> Vec<f64> {
        let mut wide = vec![beside; rows * (columns + 5)];
        for row in 0..rows {
            wide[row * (columns + 5) + first..][..columns].copy_from_slice(&values[row * columns..][..columns]);
        }
        wide
    };
    let ((rows_a, columns_a), (rows_b, columns_b)) =
        (if ta { (k, m) } else { (m, k) }, if tb { (n, k) } else { (k, n) });
    let before = numbers(5, m * n, out);
    let sizes = |rows, columns| [rows, columns + 5];
    let wide_a = t.put(&sizes(rows_a, columns_a), factors, &wide(a, rows_a, columns_a, 3, f64::NAN));
    let wide_b = t.put(&sizes(rows_b, columns_b), factors, &wide(b, rows_b, columns_b, 0, f64::NAN));
    let columns = |first, count| Some(Columns { first, count });
    let product = matmul(a, b, dims, ta, tb);
    let absolute = |values: &[f64]| -> Vec<f64> { values.iter().map(|x| x.abs()).collect() };
    let magnitudes = matmul(&absolute(a), &absolute(b), dims, ta, tb);
    for accumulate in [false, true] {
        let wide_out = t.put(&sizes(m, n), out, &wide(&before, m, n, 5, 7.0));
        t.run(Gemm {
            transpose_a: ta,
            transpose_b: tb,
            alpha: 2.0,
            accumulate,
            columns: GemmColumns { a: columns(3, columns_a), b: columns(0, columns_b), out: columns(5, n) },
            ..Gemm::plain(wide_a, wide_b, wide_out)
        });
        let kept = if accumulate { 1.0 } else { 0.0 };
        let truth: Vec<f64> = product.iter().zip(&before).map(|(x, before)| 2.0 * x + kept * before).collect();
        let magnitudes: Vec<f64> = magnitudes.iter().map(|x| 2.0 * x + 1.0).collect();
        let truth = wide(&truth, m, n, 5, 7.0);
        let magnitudes = wide(&magnitudes, m, n, 5, 0.0);
        assert_sums_close("product of columns", out, &t.get(&wide_out), &truth, &magnitudes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn gemm_agrees_with_a_naive_product_for_all_transposes_and_epilogues(
        m in dimension(), n in dimension(), k in dimension(), ta: bool, tb: bool, pick in 0..3usize,
    ) {
        let (factors, out) = [(F32, F32), (Bf16, Bf16), (Bf16, F32)][pick];
        check_gemm(&bench(1), (m, n, k), ta, tb, factors, out);
    }

    #[test]
    fn elementwise_operations_agree_with_f64(n in dimension(), width in dimension(), pick in 0..2usize) {
        check_elementwise(&bench(1), n, width, FLOATS[pick]);
    }
}

#[test]
fn gemm_accepts_bf16_factors_with_an_f32_result_beyond_one_tile() {
    check_gemm(&bench(2), (300, 65, 40), true, false, Bf16, F32);
}

fn check_elementwise(t: &Bench, n: usize, width: usize, dtype: DType) {
    let size = n * width;
    let shape = [n, width];
    let (a, b) = (numbers(1, size, dtype), numbers(2, size, dtype));
    let (a_t, b_t) = (t.put(&shape, dtype, &a), t.put(&shape, dtype, &b));
    let out = t.empty(&shape, dtype);
    let sum: Vec<f64> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
    t.run(Add { a: a_t, b: b_t, output: out });
    assert_close("sum", dtype, &t.get(&out), &sum);
    let own = t.put(&shape, dtype, &a);
    t.run(Add { a: own, b: b_t, output: own });
    assert_eq!(t.get(&own), t.get(&out), "in place");

    for to in FLOATS {
        let converted = t.empty(&shape, to);
        t.run(Copy { input: a_t, output: converted });
        assert_eq!(t.get(&converted), a.iter().map(|x| rounded(*x, to)).collect::<Vec<_>>());
    }
    t.run(Fill { output: out, value: 1.5 });
    assert_eq!(t.get(&out), vec![1.5; size]);

    for (kind, f) in [(ActivationKind::Gelu, gelu as fn(f64) -> f64), (ActivationKind::Relu, |x| x.max(0.0))] {
        t.run(Activation { kind, input: a_t, output: out });
        assert_close("activation", dtype, &t.get(&out), &a.iter().map(|x| f(*x)).collect::<Vec<_>>());
        t.run(ActivationBackward { kind, input: a_t, grad_output: b_t, grad_input: out });
        let truth: Vec<f64> = a.iter().zip(&b).map(|(x, dy)| dy * slope(f, *x)).collect();
        assert_close("activation's gradient", dtype, &t.get(&out), &truth);
    }

    let wide = numbers(3, 2 * size, dtype);
    let wide_t = t.put(&[n, 2 * width], dtype, &wide);
    for (gate, f) in [(Gate::Silu, silu as fn(f64) -> f64), (Gate::Gelu, gelu)] {
        let glu = |row: &[f64]| -> Vec<f64> { (0..width).map(|c| f(row[c]) * row[width + c]).collect() };
        t.run(Glu { gate, input: wide_t, output: out });
        let truth: Vec<f64> = wide.chunks(2 * width).flat_map(glu).collect();
        assert_close("gated values", dtype, &t.get(&out), &truth);
        let grad = t.empty(&[n, 2 * width], dtype);
        t.run(GluBackward { gate, input: wide_t, grad_output: b_t, grad_input: grad, output: None });
        let rows = wide.chunks(2 * width).zip(b.chunks(width));
        let truth: Vec<f64> = rows.flat_map(|(row, dy)| finite_differences(row, dy, glu)).collect();
        assert_close("their gradient", dtype, &t.get(&grad), &truth);
        let (beside, again) = (t.empty(&[n, 2 * width], dtype), t.empty(&shape, dtype));
        t.run(GluBackward { gate, input: wide_t, grad_output: b_t, grad_input: beside, output: Some(again) });
        assert_eq!(t.get(&beside), t.get(&grad), "the gradient, with the values beside it");
        assert_eq!(t.get(&again), t.get(&out), "the values beside their gradient");
    }

    // The factor is in device memory, and the gradient is the same product.
    for by in [0.75, -3.0] {
        let factor = t.put(&[1], F32, &[by]);
        let truth: Vec<f64> = a.iter().map(|x| by * x).collect();
        t.run(Multiply { input: a_t, factor, output: out });
        assert_close("product with a number", dtype, &t.get(&out), &truth);
        let values = t.put(&shape, dtype, &a);
        t.run(Multiply { input: values, factor, output: values });
        assert_eq!(t.get(&values), t.get(&out), "in place");
        t.run(Multiply { input: b_t, factor, output: out });
        let gradient = finite_differences(&a, &b, |x| x.iter().map(|x| by * x).collect());
        assert_close("its gradient", dtype, &t.get(&out), &gradient);
    }

    let values = t.put(&shape, dtype, &a);
    t.run(SoftCap { values, cap: 0.5 });
    assert_close("bounded values", dtype, &t.get(&values), &capped(&a, Some(0.5)));

    let columns: Vec<f64> = (0..width).map(|c| (0..n).map(|r| a[r * width + c]).sum()).collect();
    let bias = t.put(&[width], F32, &vec![2.0; width]);
    t.run(BiasGrad { grad_output: a_t, grad_bias: bias, accumulate: true });
    assert_close("added column sums", F32, &t.get(&bias), &columns.iter().map(|x| x + 2.0).collect::<Vec<_>>());
    t.run(BiasGrad { grad_output: a_t, grad_bias: bias, accumulate: false });
    assert_close("column sums", F32, &t.get(&bias), &columns);

    let (losses, grad) = (t.empty(&[n], F32), t.empty(&shape, dtype));
    let control = t.block(&Control { grad_scale: 0.5, ..Control::default() });
    t.run(Mse { prediction: a_t, target: b_t, losses, grad: Some((grad, control)) });
    let mse = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| (x - y) * (x - y)).sum::<f64>() / width as f64;
    let truth: Vec<f64> = a.chunks(width).zip(b.chunks(width)).map(|(a, b)| mse(a, b)).collect();
    assert_close("squared errors", F32, &t.get(&losses), &truth);
    let rows = a.chunks(width).zip(b.chunks(width));
    let truth: Vec<f64> = rows.flat_map(|(a, b)| finite_differences(a, &[0.5], |a| vec![mse(a, b)])).collect();
    assert_close("gradient of squared errors", dtype, &t.get(&grad), &truth);

    let total = t.put(&[1], F32, &[3.0]);
    t.run(SumInto { input: losses, total, accumulate: true });
    assert_close("sum", F32, &t.get(&total), &[3.0 + t.get(&losses).iter().sum::<f64>()]);
}

#[test]
fn columns_of_a_matrix_are_copied_in_overlapping_ranges_and_converted_as_a_copy_would() {
    let t = bench(2);
    for (rows, width, first, second) in
        [(3, 9, 0..8, 1..9), (1, 2, 0..1, 1..2), (7, 131, 0..100, 100..131), (5, 6, 2..3, 0..6), (2, 4, 1..1, 3..4)]
    {
        let picked = |range: &std::ops::Range<usize>| -> Vec<usize> {
            (0..rows * width).filter(|at| range.contains(&(at % width))).collect()
        };
        // Ids from 40 on, and ids below 0.
        let ids: Vec<i32> = (0..(rows * width) as i32).map(|at| if at % 5 == 4 { -1 } else { 40 + at }).collect();
        let input = t.ints(&[rows, width], &ids);
        let (a, b) = (
            t.ints(&[rows, first.len()], &vec![-7; rows * first.len()]),
            t.ints(&[rows, second.len()], &vec![-7; rows * second.len()]),
        );
        let part = |range: &std::ops::Range<usize>, output| {
            Some(ColumnRange { first: range.start, share: SequenceShare::WHOLE, output })
        };
        t.run(CopyColumns { input, parts: [part(&first, a), part(&second, b)] });
        for (range, output) in [(&first, a), (&second, b)] {
            let wanted: Vec<i32> = picked(range).into_iter().map(|at| ids[at]).collect();
            assert_eq!(t.device.download::<i32>(&output).unwrap(), wanted, "{range:?} of ({rows}, {width})");
        }

        let values = numbers(1, rows * width, F32);
        let input = t.put(&[rows, width], F32, &values);
        for to in FLOATS {
            let (a, b) = (t.empty(&[rows, first.len()], to), t.empty(&[rows, second.len()], to));
            t.run(CopyColumns { input, parts: [None, part(&first, a)] });
            t.run(CopyColumns { input, parts: [part(&second, b), None] });
            for (range, output) in [(&first, a), (&second, b)] {
                let wanted: Vec<f64> = picked(range).into_iter().map(|at| rounded(values[at], to)).collect();
                assert_eq!(t.get(&output), wanted, "{range:?} of ({rows}, {width}) to {to}");
            }
        }
    }
}

#[test]
fn columns_of_a_share_are_a_part_of_the_range_and_its_mirror() {
    let t = bench(1);
    let (rows, width) = (3, 20);
    let ids: Vec<i32> = (0..rows * width).collect();
    let input = t.ints(&[rows as usize, width as usize], &ids);
    for (rank, wanted) in [(0, [2, 3, 12, 13]), (1, [4, 5, 10, 11]), (2, [6, 7, 8, 9])] {
        let output = t.ints(&[rows as usize, 4], &[-7; 12]);
        let part = ColumnRange { first: 2, share: SequenceShare { rank, ranks: 3 }, output };
        t.run(CopyColumns { input, parts: [None, Some(part)] });
        let wanted: Vec<i32> = (0..rows).flat_map(|row| wanted.map(|column| row * width + column)).collect();
        assert_eq!(t.get_ints(&output), wanted, "rank {rank}");
    }
}

#[test]
fn rotary_turns_queries_and_keys_and_its_inverse_turns_them_back() {
    let (batch, seq, heads, kv_heads, dim) = (2, 5, 4, 2, 6);
    let width = (heads + 2 * kv_heads) * dim;
    let angle = |s: usize, i: usize| s as f64 / 10000f64.powf(2.0 * i as f64 / dim as f64);
    let table: Vec<f64> = (0..seq * dim / 2)
        .flat_map(|si| [angle(si / (dim / 2), si % (dim / 2)).cos(), angle(si / (dim / 2), si % (dim / 2)).sin()])
        .collect();
    for dtype in FLOATS {
        let t = bench(2);
        let values = numbers(1, batch * seq * width, dtype);
        let qkv = t.put(&[batch, seq, width], dtype, &values);
        let table = t.put(&[seq, dim / 2, 2], F32, &table);
        t.run(Rotary { qkv, table, heads, kv_heads, inverse: false });
        let truth: Vec<f64> = (0..values.len())
            .map(|at| {
                let (row, column) = (at / width, at % width);
                let (head, i) = (column / dim, column % dim);
                if head >= heads + kv_heads {
                    return values[at];
                }
                let pair = i % (dim / 2);
                let (a, b) = (values[at - i + pair], values[at - i + pair + dim / 2]);
                let (sin, cos) = angle(row % seq, pair).sin_cos();
                if i < dim / 2 { a * cos - b * sin } else { a * sin + b * cos }
            })
            .collect();
        assert_close("rotated", dtype, &t.get(&qkv), &truth);
        t.run(Rotary { qkv, table, heads, kv_heads, inverse: true });
        assert_close("turned back", dtype, &t.get(&qkv), &values);
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused_with_both_shapes() {
    let t = bench(1);
    let tensor = |rows: usize, columns: usize| t.put(&[rows, columns], F32, &vec![0.0; rows * columns]);
    let gemm = Gemm::linear(tensor(4, 3), tensor(5, 2), tensor(4, 5), Epilogue::None);
    let message = t.stream.submit(gemm).unwrap_err().to_string();
    assert!(message.starts_with("gemm:") && message.contains("(4, 3)") && message.contains("(5, 2)"), "{message}");
    let wrong = Add { a: tensor(2, 2), b: t.put(&[2, 2], Bf16, &[0.0; 4]), output: tensor(2, 2) };
    let message = t.stream.submit(wrong).unwrap_err().to_string();
    assert!(message.contains("`b` is bf16, needs f32 like `a`"), "{message}");
    let tokens = t.ints(&[2, 3], &[0; 6]);
    for (first, output, needle) in [
        (2, t.ints(&[2, 2], &[0; 4]), "`output` is (2, 2), columns 2 to 4 of an `input` of (2, 3)"),
        (0, t.ints(&[3, 2], &[0; 6]), "`output` is (3, 2)"),
        (0, tensor(2, 2), "not i32 to f32"),
    ] {
        let copy = CopyColumns {
            input: tokens,
            parts: [Some(ColumnRange { first, share: SequenceShare::WHOLE, output }), None],
        };
        let message = t.stream.submit(copy).unwrap_err().to_string();
        assert!(message.starts_with("copy_columns:") && message.contains(needle), "{message}");
    }
}

#[test]
fn columns_that_a_product_leaves_out_keep_their_bits() {
    let t = bench(1);
    // A NaN that a conversion to f32 and back would change.
    let (kept, rows) = (bf16::from_bits(0xff81), 3);
    let [a, b] = [t.put(&[rows, 2], Bf16, &[1.0; 6]), t.put(&[4, 2], Bf16, &[1.0; 8])];
    let out = t.empty(&[rows, 7], Bf16);
    t.device.upload(&out, &[kept; 21]).unwrap();
    let columns = GemmColumns { out: Some(Columns { first: 2, count: 4 }), ..GemmColumns::ALL };
    t.run(Gemm { columns, ..Gemm::linear(a, b, out, Epilogue::None) });
    let row = [0xff81, 0xff81, 0x4000, 0x4000, 0x4000, 0x4000, 0xff81];
    let bits: Vec<u16> = t.device.download::<bf16>(&out).unwrap().into_iter().map(bf16::to_bits).collect();
    assert_eq!(bits, row.repeat(rows));
}
