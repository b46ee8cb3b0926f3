//! Operations leave out the gradients that nobody wants, those of frozen parameters. All others have the same bits.

use device::ops::{AddPartialColumns, EmbeddingBackward, HeadNormBackward, NormBackward, NormKind};
use device::{DType, Tensor};

use crate::common::{FLOATS, bench, checked_bench, numbers, on_gpu};

const F32: DType = DType::F32;

/// Runs `backward` with every choice among so many gradients. It returns the input gradient, then one tensor for each
/// parameter. These hold 2 before.
fn check_choices(what: &str, parameters: usize, backward: impl Fn(&[bool]) -> Vec<Vec<f64>>) {
    let all = backward(&vec![true; parameters]);
    for choice in 0..1 << parameters {
        let wanted: Vec<bool> = (0..parameters).map(|parameter| choice >> parameter & 1 == 1).collect();
        let some = backward(&wanted);
        assert!(some[0] == all[0], "{what}: the input gradient, {wanted:?}");
        for (parameter, wanted_here) in wanted.iter().enumerate() {
            let (here, whole) = (&some[1 + parameter], &all[1 + parameter]);
            match wanted_here {
                true => assert!(here == whole, "{what}: gradient {parameter}, {wanted:?}"),
                false => assert!(here.iter().all(|&x| x == 2.0), "{what}: gradient {parameter} was written"),
            }
        }
    }
}

fn check_norm(kind: NormKind, rows: usize, hidden: usize, dtype: DType, accumulate: bool) {
    let t = if on_gpu() { checked_bench() } else { bench(2) };
    let put = |seed, shape: &[usize], dtype| t.put(shape, dtype, &numbers(seed, shape.iter().product(), dtype));
    let layer = kind == NormKind::Layer;
    let backward = |wanted: &[bool]| {
        let sums = [0, 1, 2].map(|_| t.parts(3, t.put(&[hidden], F32, &vec![2.0; hidden])));
        let want = |parameter: usize| wanted.get(parameter).is_some_and(|wanted| *wanted).then_some(sums[parameter]);
        let grad_input = t.empty(&[rows, hidden], dtype);
        t.run(NormBackward {
            kind,
            input: put(1, &[rows, hidden], dtype),
            weight: put(2, &[hidden], dtype),
            mean: layer.then(|| put(3, &[rows], F32)),
            rstd: put(4, &[rows], F32),
            grad_output: put(5, &[rows, hidden], dtype),
            grad_residual: Some(put(6, &[rows, hidden], dtype)),
            grad_input,
            weight_parts: want(0).map(|sum| sum.partial),
            residual_parts: want(1).map(|sum| sum.partial),
            bias_parts: want(2).map(|sum| sum.partial),
        });
        t.run(AddPartialColumns { sums: (0..3).filter_map(want).collect(), accumulate });
        let outputs = sums.iter().take(wanted.len()).map(|sum| sum.output);
        [grad_input].into_iter().chain(outputs).map(|tensor| t.get(&tensor)).collect()
    };
    check_choices(&format!("{kind:?}, {rows} x {hidden}, {dtype}"), if layer { 3 } else { 2 }, backward);
}

#[test]
fn norms_leave_out_the_gradients_of_frozen_parameters() {
    for dtype in FLOATS {
        for kind in [NormKind::Layer, NormKind::Rms, NormKind::Rms1p] {
            // A row for a warp, for a block, and of any size.
            for hidden in [64, 768, 2048, 61] {
                check_norm(kind, 70, hidden, dtype, hidden == 64);
            }
        }
    }
}

#[test]
fn norms_of_heads_leave_out_the_gradients_of_frozen_weights() {
    let t = if on_gpu() { checked_bench() } else { bench(2) };
    for (dtype, dim) in FLOATS.into_iter().flat_map(|dtype| [(dtype, 64), (dtype, 6)]) {
        let (heads, kv_heads, shape) = (3, 1, [2, 35, 5 * dim]);
        let put = |seed, shape: &[usize]| t.put(shape, dtype, &numbers(seed, shape.iter().product(), dtype));
        let backward = |wanted: &[bool]| {
            let sums = [0, 1].map(|_| t.put(&[dim], F32, &vec![2.0; dim]));
            let grad = put(3, &shape);
            t.run(HeadNormBackward {
                input: put(1, &shape),
                grad,
                query_weight: put(4, &[dim]),
                key_weight: put(5, &[dim]),
                weight_offset: 0.0,
                table: None,
                grad_query_weight: wanted[0].then_some(sums[0]),
                grad_key_weight: wanted[1].then_some(sums[1]),
                heads,
                kv_heads,
                eps: 1e-5,
                accumulate: dim == 6,
            });
            [grad, sums[0], sums[1]].iter().map(|tensor| t.get(tensor)).collect()
        };
        check_choices(&format!("heads of {dim}, {dtype}"), 2, backward);
    }
}

#[test]
fn an_embedding_leaves_out_the_gradients_of_frozen_tables() {
    let t = if on_gpu() { checked_bench() } else { bench(2) };
    let (batch, seq, hidden, vocab) = (3, 20, 24, 50);
    let tokens = t.ints(&[batch, seq], &(0..batch * seq).map(|at| (at * 7 % vocab) as i32).collect::<Vec<_>>());
    for dtype in FLOATS {
        let grad_output = t.put(&[batch, seq, hidden], dtype, &numbers(3, batch * seq * hidden, dtype));
        let backward = |wanted: &[bool]| {
            let sums: [Tensor; 2] = [vocab, seq].map(|rows| t.put(&[rows, hidden], F32, &vec![2.0; rows * hidden]));
            t.run(EmbeddingBackward {
                tokens,
                grad_output,
                grad_table: wanted[0].then_some(sums[0]),
                first_token: 0,
                scale: 1.0,
                grad_positions: wanted[1].then_some(sums[1]),
            });
            [grad_output, sums[0], sums[1]].iter().map(|tensor| t.get(tensor)).collect()
        };
        check_choices("embedding", 2, backward);
    }
}
