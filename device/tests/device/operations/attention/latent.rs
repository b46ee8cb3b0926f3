//! Heads of latent attention, packed and taken apart, against plain references.

use crate::common::{FLOATS, assert_close, bench, numbers, rounded};
use crate::operations::functions::{dot, turned};
use device::DType::F32;
use device::Tensor;
use device::ops::*;

#[test]
fn heads_are_packed_and_their_gradients_taken_apart() {
    let (batch, seq, heads) = (2, 3, 2);
    let heads_of = [LatentHead { plain: 6, rotated: 4, value: 8 }, LatentHead { plain: 2, rotated: 2, value: 7 }];
    for (head, dtype, apart) in heads_of.into_iter().flat_map(|h| FLOATS.map(|d| (h, d, h.plain == 2))) {
        let (t, rows, width, query) = (bench(2), batch * seq, head.packed(), head.query());
        let LatentHead { plain, rotated, value } = head;
        // Queries of their own, or in front of the rotated channels of keys, with others between.
        let columns = heads * query + 3 + rotated;
        let (own, first) = (numbers(1, rows * heads * query, dtype), numbers(2, rows * columns, dtype));
        let of_keys = numbers(3, rows * heads * (plain + value), dtype);
        let angles: Vec<f64> = numbers(4, seq * rotated, F32);
        let put = |width: usize, values: &[f64]| t.put(&[batch, seq, width], dtype, values);
        let projected = put(columns, &first);
        let tensors = LatentTensors {
            queries: if apart { put(heads * query, &own) } else { projected },
            keys_values: put(heads * (plain + value), &of_keys),
            rotated: projected,
            packed: t.empty(&[batch, seq, 3 * heads * width], dtype),
        };
        let table = t.put(&[seq, rotated / 2, 2], F32, &angles);
        t.run(PackLatent { head, tensors, table });
        let mut truth = Vec::new();
        for row in 0..rows {
            let angles = &angles[row % seq * rotated..][..rotated];
            let queries = if apart { &own[row * heads * query..] } else { &first[row * columns..] };
            let shared = turned(&first[(row + 1) * columns - rotated..][..rotated], angles);
            let keys = |head: usize| &of_keys[(row * heads + head) * (plain + value)..][..plain + value];
            let padded = |mut values: Vec<f64>| {
                values.resize(width, 0.0);
                values
            };
            for at in 0..heads {
                let query = &queries[at * query..][..query];
                truth.extend(padded([&query[..plain], &turned(&query[plain..], angles)].concat()));
            }
            (0..heads).for_each(|at| truth.extend(padded([&keys(at)[..plain], &shared].concat())));
            (0..heads).for_each(|at| truth.extend(padded(keys(at)[plain..].to_vec())));
        }
        assert_close("packed heads", dtype, &t.get(&tensors.packed), &truth);

        // The gradient is the transpose: its product with any values is that of the packed ones with the gradient of these.
        let dy = numbers(5, truth.len(), dtype);
        let empty = |tensor: Tensor| t.empty(tensor.shape.sizes(), dtype);
        let grad_projected = empty(projected);
        let grads = LatentTensors {
            queries: if apart { empty(tensors.queries) } else { grad_projected },
            keys_values: empty(tensors.keys_values),
            rotated: grad_projected,
            packed: put(3 * heads * width, &dy),
        };
        t.run(PackLatentBackward { head, tensors: grads, table });
        let mut of_inputs = dot(&t.get(&grads.keys_values), &of_keys) + dot(&t.get(&grads.rotated), &first);
        if apart {
            of_inputs += dot(&t.get(&grads.queries), &own);
        }
        let within = if dtype == F32 { 1e-5 } else { 3e-2 };
        assert!((of_inputs - dot(&truth, &dy)).abs() < within * dy.len() as f64, "{head:?}, {dtype:?}");
        let grad = t.get(&grad_projected);
        let between = if apart { 0 } else { heads * query };
        assert!(grad.chunks(columns).all(|row| row[between..columns - rotated].iter().all(|x| *x == 0.0)));

        for (from, to) in [(5, 3), (3, 5), (4, 4)] {
            let values = numbers(6, rows * heads * from, dtype);
            let (input, output) = (t.put(&[rows, heads * from], dtype, &values), t.empty(&[rows, heads * to], dtype));
            t.run(ResizeHeads { input, output, heads });
            let resized = values.chunks(from).flat_map(|head| (0..to).map(|at| head.get(at).copied().unwrap_or(0.0)));
            let truth: Vec<f64> = resized.map(|x| rounded(x, dtype)).collect();
            assert_eq!(t.get(&output), truth);
        }
    }
}
