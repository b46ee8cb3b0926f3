//! The load of experts and the bias that follows from it, on the host or with `TEST_DEVICE=cuda` on a GPU.

use crate::common::{checked_bench, numbers};
use device::DType::{self, F32};
use device::ops::*;

#[test]
fn loads_count_the_pairs_of_each_group_and_are_added_or_overwritten() {
    let t = checked_bench();
    // A block of a GPU counts 4096 pairs.
    for (groups, tokens, k, experts) in [(1, 1, 1, 1), (1, 50, 2, 8), (3, 7, 4, 60), (2, 2500, 8, 512), (5, 4096, 1, 3)]
    {
        let chosen: Vec<i32> = numbers(1, groups * tokens * k, F32)
            .iter()
            .map(|x| ((x * x).abs() * experts as f64) as i32 % experts as i32)
            .collect();
        let mut truth = vec![0.0; groups * experts];
        for (pair, expert) in chosen.iter().enumerate() {
            truth[pair / (tokens * k) * experts + *expert as usize] += 1.0;
        }
        let chosen = t.ints(&[groups * tokens, k], &chosen);
        let load = t.empty(&[groups, experts], F32);
        for (accumulate, times) in [(false, 1.0), (true, 2.0), (true, 3.0), (false, 1.0)] {
            let of = SampleTokens::whole(groups);
            t.run(CountLoad { chosen, tokens: of, real: None, position_ids: None, load, accumulate });
            let times: Vec<f64> = truth.iter().map(|count| times * count).collect();
            assert_eq!(t.get(&load), times, "{groups} groups of {tokens} tokens, {k} of {experts} experts");
        }
    }
}

#[test]
fn padding_at_the_end_of_sequences_has_no_load() {
    let t = checked_bench();
    let (sequences, length, k, experts) = (3, 5, 2, 4);
    let chosen: Vec<i32> = (0..sequences * length * k).map(|pair| (pair * pair % experts) as i32).collect();
    let real = [5, 0, 2];
    for groups in [1, sequences] {
        let mut truth = vec![0.0; groups * experts];
        for (pair, expert) in chosen.iter().enumerate() {
            let (sequence, at) = (pair / k / length, pair / k % length);
            truth[sequence * groups / sequences * experts + *expert as usize] +=
                if at < real[sequence] { 1.0 } else { 0.0 };
        }
        let load = t.empty(&[groups, experts], F32);
        let (chosen, real) =
            (t.ints(&[sequences * length, k], &chosen), Some(t.ints(&[sequences], &real.map(|n| n as i32))));
        let tokens = SampleTokens::whole(sequences);
        t.run(CountLoad { chosen, tokens, real, position_ids: None, load, accumulate: false });
        assert_eq!(t.get(&load), truth, "{groups} groups");
    }
}

#[test]
fn biases_move_towards_an_equal_load_in_steps_unless_the_step_updates_nothing() {
    let t = checked_bench();
    let (layers, experts, rate) = (3, 70, 0.25);
    let mut load: Vec<f64> = (0..layers * experts).map(|at| (at * at % 11) as f64).collect();
    // All experts of a layer have the same; in another layer one has the mean.
    load[experts..2 * experts].fill(5.0);
    load[2 * experts..].fill(0.0);
    (load[2 * experts], load[2 * experts + 1], load[2 * experts + 2]) = (1.0, experts as f64 - 1.0, 0.0);
    let before = numbers(1, layers * experts, F32);
    for applies in [0, 1] {
        let bias = t.put(&[layers, experts], F32, &before);
        let status = t.block(&Status { applies, ..Status::default() });
        t.run(UpdateSelectionBias { load: t.put(&[layers, experts], F32, &load), rate, bias, status });
        let moved = |at: usize| {
            let of_layer = &load[at / experts * experts..][..experts];
            let mean = of_layer.iter().sum::<f64>() / experts as f64;
            let sign = if load[at] == mean { 0.0 } else { (mean - load[at]).signum() };
            f64::from((before[at] + f64::from(rate) * sign * f64::from(applies)) as f32)
        };
        assert_eq!(t.get(&bias), (0..layers * experts).map(moved).collect::<Vec<_>>(), "applies: {applies}");
    }
}

#[test]
fn shapes_and_types_that_do_not_fit_are_refused() {
    let t = checked_bench();
    let count = |load: [usize; 2], dtype: DType| {
        t.refusal(CountLoad {
            chosen: t.empty_ints(&[6, 2]),
            tokens: SampleTokens::whole(1),
            real: None,
            position_ids: None,
            load: t.empty(&load, dtype),
            accumulate: false,
        })
    };
    let of_documents = |load: [usize; 2], accumulate: bool| {
        let position_ids = Some(t.empty_ints(&[6]));
        t.refusal(CountLoad {
            chosen: t.empty_ints(&[6, 2]),
            tokens: SampleTokens::whole(1),
            real: None,
            position_ids,
            load: t.empty(&load, F32),
            accumulate,
        })
    };
    let update = |bias: [usize; 2]| {
        t.refusal(UpdateSelectionBias {
            load: t.empty(&[2, 4], F32),
            rate: 1.0,
            bias: t.empty(&bias, F32),
            status: t.block(&0u64),
        })
    };
    for (error, words) in [
        (count([4, 8], F32), "count_load: 6 tokens cannot be in 4 groups of equal size"),
        (count([2, 8], DType::Bf16), "count_load: `load` is bf16, needs f32"),
        (of_documents([3, 8], false), "count_load: 3 groups for documents, needs a row for each of 6 tokens"),
        (of_documents([6, 8], true), "count_load: loads of documents are not added to others"),
        (update([2, 5]), "update_selection_bias: `bias` has shape (2, 5), needs (2, 4)"),
        (update([2, 4]), "update_selection_bias: `status` of shape (8) has 8 elements, needs 32"),
    ] {
        assert!(error.contains(words), "{error}");
    }
}
