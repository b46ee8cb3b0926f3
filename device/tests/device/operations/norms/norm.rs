//! Norms against naive f64 references and finite differences, over odd shapes.

use crate::common::{Bench, FLOATS, assert_close, bench, finite_differences, numbers};
use device::DType::F32;
use device::ops::*;
use device::{DType, Tensor};
use proptest::prelude::*;

const EPS: f64 = 1e-5;

fn norm(x: &[f64], weight: &[f64], bias: &[f64], kind: NormKind) -> Vec<f64> {
    let (hidden, layer, offset) = (weight.len(), kind == NormKind::Layer, f64::from(kind.weight_offset()));
    let row = |x: &[f64]| {
        let n = hidden as f64;
        let mean = if layer { x.iter().sum::<f64>() / n } else { 0.0 };
        let rstd = 1.0 / (x.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n + EPS).sqrt();
        (0..hidden).map(|c| (x[c] - mean) * rstd * (offset + weight[c]) + bias[c]).collect::<Vec<f64>>()
    };
    x.chunks(hidden).flat_map(row).collect()
}

fn check_norm(t: &Bench, rows: usize, hidden: usize, kind: NormKind, with_residual: bool, dtype: DType) {
    let (n, layer) = (rows * hidden, kind == NormKind::Layer);
    let (input, residual) = (numbers(1, n, dtype), numbers(2, n, dtype));
    let weight = numbers(3, hidden, dtype);
    let bias = if layer { numbers(4, hidden, dtype) } else { vec![0.0; hidden] };
    let shape = [rows, hidden];
    let (weight_t, bias_t) = (t.put(&[hidden], dtype, &weight), t.put(&[hidden], dtype, &bias));
    let input_t = t.put(&shape, dtype, &input);
    let (output, rstd) = (t.empty(&shape, dtype), t.empty(&[rows], F32));
    let mean = layer.then(|| t.empty(&[rows], F32));
    let sum = with_residual.then(|| t.empty(&shape, dtype));
    let forward = Norm {
        kind,
        input: input_t,
        residual: with_residual.then(|| t.put(&shape, dtype, &residual)),
        sum,
        weight: weight_t,
        bias: layer.then_some(bias_t),
        output: Some(output),
        mean,
        rstd,
        eps: EPS as f32,
    };
    t.run(forward.clone());
    // Without the normed values, the rest has the same bits.
    let again = |tensor: Option<Tensor>| tensor.map(|tensor| t.empty(tensor.shape.sizes(), tensor.dtype));
    let (sum_again, mean_again, rstd_again) = (again(sum), again(mean), t.empty(&[rows], F32));
    t.run(Norm { output: None, sum: sum_again, mean: mean_again, rstd: rstd_again, ..forward });
    let both = sum.zip(sum_again).into_iter().chain(mean.zip(mean_again)).chain([(rstd, rstd_again)]);
    both.for_each(|(with, without)| assert_eq!(t.get(&with), t.get(&without)));
    let mut x = input;
    if let Some(sum) = sum {
        let truth: Vec<f64> = x.iter().zip(&residual).map(|(a, b)| a + b).collect();
        x = t.get(&sum);
        assert_close("sum", dtype, &x, &truth);
    }
    assert_close("normed", dtype, &t.get(&output), &norm(&x, &weight, &bias, kind));

    // Backward: with a gradient along the residual stream, added to parameter gradients that hold something.
    let (dy, past) = (numbers(5, n, dtype), numbers(6, n, dtype));
    let before = numbers(7, hidden, F32);
    let input = sum.unwrap_or(input_t);
    for (accumulate, in_place, parts) in
        [(false, false, t.device.norm_parts(&input, RowSums::ParametersAndResidual)), (true, true, 1), (true, false, 5)]
    {
        let past_t = t.put(&shape, dtype, &past);
        let grad_input = if in_place { past_t } else { t.empty(&shape, dtype) };
        let parameter = || t.parts(parts, t.put(&[hidden], F32, &before));
        let (of_weight, of_bias, of_residual) = (parameter(), layer.then(parameter), parameter());
        t.run(NormBackward {
            kind,
            input,
            weight: weight_t,
            mean,
            rstd,
            grad_output: t.put(&shape, dtype, &dy),
            grad_residual: Some(past_t),
            grad_input,
            weight_parts: Some(of_weight.partial),
            bias_parts: of_bias.map(|bias| bias.partial),
            residual_parts: Some(of_residual.partial),
        });
        let sums = [of_weight, of_residual].into_iter().chain(of_bias).collect();
        t.run(AddPartialColumns { sums, accumulate });
        let offset = |gradient: Vec<f64>| -> Vec<f64> {
            gradient.iter().zip(&before).map(|(g, b)| if accumulate { g + b } else { *g }).collect()
        };
        let through: Vec<f64> = x
            .chunks(hidden)
            .zip(dy.chunks(hidden))
            .flat_map(|(x, dy)| finite_differences(x, dy, |x| norm(x, &weight, &bias, kind)))
            .collect();
        let truth: Vec<f64> = through.iter().zip(&past).map(|(a, b)| a + b).collect();
        assert_close("input gradient", dtype, &t.get(&grad_input), &truth);
        let columns = (0..hidden).map(|c| past.iter().skip(c).step_by(hidden).sum());
        assert_close("sums of the residual gradient", F32, &t.get(&of_residual.output), &offset(columns.collect()));
        let truth = offset(finite_differences(&weight, &dy, |weight| norm(&x, weight, &bias, kind)));
        assert_close("weight gradient", dtype, &t.get(&of_weight.output), &truth);
        if let Some(of_bias) = of_bias {
            let truth = offset(finite_differences(&bias, &dy, |bias| norm(&x, &weight, bias, kind)));
            assert_close("bias gradient", dtype, &t.get(&of_bias.output), &truth);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn norms_and_their_gradients_agree_with_f64(
        rows in prop_oneof![Just(1usize), Just(3), Just(65), Just(130)],
        hidden in prop_oneof![Just(5usize), Just(7), Just(16), Just(33), Just(50)],
        kind in prop::sample::select(vec![NormKind::Layer, NormKind::Rms, NormKind::Rms1p]),
        with_residual: bool, pick in 0..2usize,
    ) {
        check_norm(&bench(2), rows, hidden, kind, with_residual, FLOATS[pick]);
    }
}
