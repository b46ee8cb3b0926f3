//! A bound of the load of experts, and the work on rows without the pairs that it drops, against plain references; on the
//! host or with `TEST_DEVICE=cuda` on a GPU.

use crate::common::{Bench, FLOATS, assert_close, checked_bench, numbers};
use device::DType::F32;
use device::ops::*;

/// Experts of pairs, those of a token different. Some experts have many.
fn choices(tokens: usize, k: usize, experts: usize) -> Vec<i32> {
    let first = |x: &f64| ((x * x * x).abs() * experts as f64) as usize;
    let firsts = numbers(1, tokens, F32);
    firsts.iter().flat_map(|x| (0..k).map(move |j| ((first(x) + j) % experts) as i32)).collect()
}

/// Weights of few values, so that many are equal; some are no numbers, or 0.
fn weights(count: usize) -> Vec<f64> {
    let value = |x: &f64| match (x.abs() * 12.0) as usize {
        0 => f64::NAN,
        1 => 0.0,
        2 => f64::from(f32::INFINITY),
        level => level as f64 / 8.0,
    };
    numbers(2, count, F32).iter().map(value).collect()
}

fn limit(t: &Bench, op: LimitLoad) -> Vec<i32> {
    t.run(op.clone());
    t.get_ints(&op.kept)
}

#[test]
fn each_expert_keeps_its_highest_weights_or_its_first_pairs() {
    let t = checked_bench();
    // A block of a GPU goes through 2048 pairs at a time.
    for (tokens, k, experts, capacity) in
        [(1, 1, 1, 1), (40, 2, 8, 3), (300, 3, 7, 60), (1500, 2, 5, 400), (900, 8, 512, 9), (70, 2, 4, 1000)]
    {
        let (chosen, values) = (choices(tokens, k, experts), weights(tokens * k));
        let with = |weights| {
            let (chosen, kept) = (t.ints(&[tokens, k], &chosen), t.empty_ints(&[tokens, k]));
            limit(&t, LimitLoad { chosen, weights, real: None, experts, capacity, kept })
        };
        let key = |pair: usize| if values[pair] > 0.0 { values[pair] } else { 0.0 };
        let truth = |beats: &dyn Fn(usize, usize) -> bool| -> Vec<i32> {
            let rivals = |pair: usize| (0..tokens * k).filter(move |&other| beats(other, pair));
            let is_kept = |pair| rivals(pair).filter(|&other| chosen[other] == chosen[pair]).count() < capacity;
            (0..tokens * k).map(|pair| if is_kept(pair) { chosen[pair] } else { experts as i32 }).collect()
        };
        let what = format!("{capacity} of {tokens} tokens, {k} of {experts} experts");
        assert_eq!(with(None), truth(&|other, pair| other < pair), "first, {what}");
        let higher = |other: usize, pair: usize| key(other) > key(pair) || (key(other) == key(pair) && other < pair);
        assert_eq!(with(Some(t.put(&[tokens, k], F32, &values))), truth(&higher), "highest, {what}");
    }
}

#[test]
fn weights_that_differ_in_any_bit_are_told_apart() {
    let t = checked_bench();
    let tokens = 600;
    // From the highest down to the lowest, and back: one more bit in turn.
    let values: Vec<f64> =
        (0..tokens).map(|at| f64::from(f32::from_bits(0x3f00_0000 + ((at * 7919) % tokens) as u32 * 0x101))).collect();
    let (chosen, weights) = (t.ints(&[tokens, 1], &vec![0; tokens]), Some(t.put(&[tokens, 1], F32, &values)));
    let mut order: Vec<usize> = (0..tokens).collect();
    order.sort_by(|a, b| values[*b].total_cmp(&values[*a]));
    for capacity in [1, 2, 255, 256, 257, 599] {
        let kept = t.empty_ints(&[tokens, 1]);
        let kept = limit(&t, LimitLoad { chosen, weights, real: None, experts: 1, capacity, kept });
        let mut truth = vec![1; tokens];
        order[..capacity].iter().for_each(|pair| truth[*pair] = 0);
        assert_eq!(kept, truth, "{capacity}");
    }
}

#[test]
fn padding_is_dropped_and_takes_no_ones_place() {
    let t = checked_bench();
    let (sequences, length) = (3, 4);
    let real = t.ints(&[sequences], &[2, 0, 4]);
    let chosen = t.ints(&[sequences * length, 1], &[0; 12]);
    // Padding has the highest weights.
    let values = [1.0, 2.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 3.0, 5.0, 4.0, 6.0];
    let with = |weights, capacity| {
        let kept = t.empty_ints(&[sequences * length, 1]);
        let kept = limit(&t, LimitLoad { chosen, weights, real: Some(real), experts: 1, capacity, kept });
        (0..12).filter(|pair| kept[*pair] == 0).collect::<Vec<_>>()
    };
    let weights = Some(t.put(&[12, 1], F32, &values));
    assert_eq!(with(None, 3), [0, 1, 8]);
    assert_eq!(with(weights, 3), [9, 10, 11]);
    assert_eq!(with(None, 100), [0, 1, 8, 9, 10, 11]);
    assert_eq!(with(weights, 100), [0, 1, 8, 9, 10, 11]);
}

/// Pairs of which some are dropped: the experts of all, then the order.
fn sorted(t: &Bench, tokens: usize, k: usize, experts: usize) -> (Vec<i32>, ExpertRows) {
    let drops = numbers(3, tokens * k, F32);
    let kept: Vec<i32> = choices(tokens, k, experts)
        .iter()
        .zip(&drops)
        .map(|(expert, x)| if *x > 0.3 { experts as i32 } else { *expert })
        .collect();
    let order = ExpertRows {
        offsets: t.empty_ints(&[experts + 1]),
        pairs: t.empty_ints(&[tokens * k]),
        rows: t.empty_ints(&[tokens, k]),
    };
    t.run(SortByExpert { chosen: t.ints(&[tokens, k], &kept), first: 0, order });
    (kept, order)
}

#[test]
fn dropped_pairs_come_after_all_others_and_have_no_row() {
    let t = checked_bench();
    for (tokens, k, experts) in [(1, 1, 1), (5, 2, 8), (683, 3, 300), (3000, 8, 512), (4096, 1, 2)] {
        let (kept, order) = sorted(&t, tokens, k, experts);
        let [offsets, pairs, rows] = [order.offsets, order.pairs, order.rows].map(|tensor| t.get_ints(&tensor));
        let before = |expert: usize| kept.iter().filter(|of| (**of as usize) < expert).count() as i32;
        assert_eq!(offsets, (0..=experts).map(before).collect::<Vec<_>>(), "{experts} experts");
        let mut truth: Vec<i32> = (0..kept.len() as i32).collect();
        truth.sort_by_key(|pair| kept[*pair as usize]);
        let end = offsets[experts] as usize;
        assert!(pairs[..end] == truth[..end], "{experts} experts");
        assert!(pairs[end..].iter().zip(&truth[end..]).all(|(pair, truth)| *pair == -1 - truth), "{experts} experts");
        for (row, pair) in truth.iter().enumerate() {
            assert_eq!(rows[*pair as usize], if row < end { row as i32 } else { -1 }, "of pair {pair}");
        }
    }
}

#[test]
fn rows_of_dropped_pairs_are_left_alone_and_add_nothing() {
    let t = checked_bench();
    let (tokens, k, experts) = (37, 3, 6);
    let (kept, order) = sorted(&t, tokens, k, experts);
    let (pairs, offsets) = (t.get_ints(&order.pairs), t.get_ints(&order.offsets));
    let end = offsets[experts] as usize;
    assert!((1..tokens * k).contains(&end));
    for (dtype, width) in FLOATS.into_iter().flat_map(|dtype| [24, 13].map(|width| (dtype, width))) {
        let x = numbers(4, tokens * width, dtype);
        let before = numbers(5, tokens * k * width, dtype);
        let gathered = t.put(&[tokens * k, width], dtype, &before);
        t.run(GatherRows { input: t.put(&[tokens, width], dtype, &x), rows: order.rows, output: gathered });
        let rows = t.get(&gathered);
        for row in 0..tokens * k {
            let from = if row < end { &x[pairs[row] as usize / k * width..] } else { &before[row * width..] };
            assert_eq!(rows[row * width..][..width], from[..width], "row {row}");
        }

        // Rows of dropped pairs are no numbers.
        let values: Vec<f64> =
            before.iter().enumerate().map(|(at, x)| if at < end * width { *x } else { f64::NAN }).collect();
        let output = t.empty(&[tokens, width], dtype);
        t.run(CombineRows { input: t.put(&[tokens * k, width], dtype, &values), rows: order.rows, also: None, output });
        let mut sums = vec![0.0; tokens * width];
        for (row, pair) in pairs[..end].iter().enumerate() {
            for c in 0..width {
                sums[*pair as usize / k * width + c] += values[row * width + c];
            }
        }
        assert_close(&format!("sums of {width}"), dtype, &t.get(&output), &sums);

        for gate in [Gate::Silu, Gate::Gelu] {
            // The unit of rows that are kept is that without dropped pairs: rows and pairs of the same numbers.
            let wide: Vec<f64> = values.iter().flat_map(|x| [*x, 0.5 * *x]).collect();
            let (input, weights) =
                (t.put(&[tokens * k, 2 * width], dtype, &wide), t.put(&[tokens, k], F32, &numbers(6, tokens * k, F32)));
            let all: Vec<i32> = pairs.iter().map(|pair| if *pair < 0 { -1 - pair } else { *pair }).collect();
            let all = t.ints(&[tokens * k], &all);
            let run = |pairs| {
                let output = t.put(&[tokens * k, width], dtype, &before);
                t.run(ExpertGlu { gate, input, weights, pairs, output });
                let grad_input = t.put(&[tokens * k, 2 * width], dtype, &wide);
                let (again, grad_weights) = (t.put(&[tokens * k, width], dtype, &before), t.empty(&[tokens, k], F32));
                let grad_output = t.put(&[tokens * k, width], dtype, &before);
                t.run(ExpertGluBackward {
                    gate,
                    input,
                    weights,
                    pairs,
                    grad_output,
                    grad_input,
                    output: again,
                    grad_weights,
                });
                [output, again, grad_input, grad_weights].map(|tensor| t.get(&tensor))
            };
            let (ours, whole) = (run(order.pairs), run(all));
            for (at, width) in [(0, width), (1, width), (2, 2 * width)] {
                assert_eq!(ours[at][..end * width], whole[at][..end * width], "{gate:?}, {dtype}");
            }
            for (at, width) in [(0, width), (1, width), (2, 2 * width)] {
                assert!(ours[at][end * width..].iter().all(|x| *x == 0.0), "{gate:?}, {dtype}: dropped rows are 0");
            }
            for (pair, expert) in kept.iter().enumerate() {
                let truth = if *expert < experts as i32 { whole[3][pair] } else { 0.0 };
                assert_eq!(ours[3][pair], truth, "{gate:?}: the weight of pair {pair}");
            }
        }
    }
}

#[test]
fn dropped_pairs_have_a_column_of_their_own_in_loads() {
    let t = checked_bench();
    for (tokens, k, experts) in [(40, 2, 8), (3000, 8, 512)] {
        let (kept, _) = sorted(&t, tokens, k, experts);
        let load = t.empty(&[1, experts + 1], F32);
        t.run(CountLoad {
            chosen: t.ints(&[tokens, k], &kept),
            tokens: SampleTokens::whole(1),
            real: None,
            position_ids: None,
            load,
            accumulate: false,
        });
        let count = |expert: usize| kept.iter().filter(|of| **of as usize == expert).count() as f64;
        assert_eq!(t.get(&load), (0..=experts).map(count).collect::<Vec<_>>());
    }
}

#[test]
fn bounds_that_do_not_fit_are_refused() {
    let t = checked_bench();
    let refusal = |weights: [usize; 2], kept: [usize; 2], experts: usize, capacity: usize| {
        t.refusal(LimitLoad {
            chosen: t.empty_ints(&[6, 2]),
            weights: Some(t.empty(&weights, F32)),
            real: None,
            experts,
            capacity,
            kept: t.empty_ints(&kept),
        })
    };
    for (error, words) in [
        (refusal([6, 2], [6, 2], 0, 1), "limit_load: there is no expert"),
        (refusal([6, 2], [6, 2], 4, 0), "limit_load: experts keep no pair: the capacity is 0"),
        (refusal([6, 1], [6, 2], 4, 1), "limit_load: `weights` has shape (6, 1), needs (6, 2)"),
        (refusal([6, 2], [5, 2], 4, 1), "limit_load: `kept` has shape (5, 2), needs (6, 2)"),
    ] {
        assert!(error.contains(words), "{error}");
    }
}
