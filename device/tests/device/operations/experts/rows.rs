//! The order of pairs by expert, and the copies and sums of rows that follow it, against plain references; on the host or
//! with `TEST_DEVICE=cuda` on a GPU.

use crate::common::{Bench, FLOATS, assert_close, bench, checked_bench, numbers, on_gpu};
use device::DType::{self, Bf16, F32};
use device::Tensor;
use device::ops::*;
use proptest::prelude::*;

/// Sorts pairs. It returns the order, and its offsets, pairs and rows.
fn sort(t: &Bench, chosen: &[i32], k: usize, experts: usize) -> (ExpertRows, [Vec<i32>; 3]) {
    let tokens = chosen.len() / k;
    let order = ExpertRows {
        offsets: t.empty_ints(&[experts + 1]),
        pairs: t.empty_ints(&[tokens * k]),
        rows: t.empty_ints(&[tokens, k]),
    };
    t.run(SortByExpert { chosen: t.ints(&[tokens, k], chosen), first: 0, order });
    (order, [order.offsets, order.pairs, order.rows].map(|tensor| t.get_ints(&tensor)))
}

/// Fails unless the order is the stable one.
fn check_sort(t: &Bench, chosen: &[i32], k: usize, experts: usize) -> ExpertRows {
    let (order, [offsets, pairs, rows]) = sort(t, chosen, k, experts);
    let before = |expert: usize| chosen.iter().filter(|of| (**of as usize) < expert).count() as i32;
    assert_eq!(offsets, (0..=experts).map(before).collect::<Vec<_>>(), "{experts} experts");
    let mut truth: Vec<i32> = (0..chosen.len() as i32).collect();
    truth.sort_by_key(|pair| chosen[*pair as usize]);
    assert!(pairs == truth, "{} pairs of {experts} experts are not sorted", chosen.len());
    for (row, pair) in pairs.iter().enumerate() {
        assert_eq!(rows[*pair as usize], row as i32, "of pair {pair}");
    }
    order
}

/// Numbers below `experts`, some more frequent than others.
fn choices(seed: u64, count: usize, experts: usize) -> Vec<i32> {
    numbers(seed, count, F32).iter().map(|x| ((x * x * x).abs() * experts as f64) as i32 % experts as i32).collect()
}

#[test]
fn pairs_are_sorted_by_expert_and_those_of_one_keep_their_order() {
    let t = checked_bench();
    // A tile of a GPU's sort has 2048 pairs.
    for (tokens, k, experts) in [(1, 1, 1), (5, 2, 8), (40, 3, 64), (1024, 2, 7), (683, 3, 300), (9000, 8, 512)] {
        check_sort(&t, &choices(1, tokens * k, experts), k, experts);
    }
}

#[test]
fn all_pairs_may_have_one_expert_and_an_expert_may_have_none() {
    let t = checked_bench();
    for expert in [0, 3, 7] {
        check_sort(&t, &vec![expert; 5000], 2, 8);
        check_sort(&t, &[expert, 7 - expert, expert, expert], 1, 8);
    }
    // Every token passes all experts.
    let all: Vec<i32> = (0..6 * 50).map(|pair| pair % 6).collect();
    check_sort(&t, &all, 6, 6);
}

/// Copies rows to the order of experts and sums them up again.
fn check_rows(t: &Bench, [tokens, k, experts, width]: [usize; 4], dtype: DType, seed: u64) {
    let what = format!("{tokens} tokens of {width}, {k} of {experts} experts");
    let order = check_sort(t, &choices(seed, tokens * k, experts), k, experts);
    let pairs = t.get_ints(&order.pairs);
    let x = numbers(2, tokens * width, dtype);
    let gathered = t.empty(&[tokens * k, width], dtype);
    t.run(GatherRows { input: t.put(&[tokens, width], dtype, &x), rows: order.rows, output: gathered });
    let row_of = |pair: &i32| &x[*pair as usize / k * width..][..width];
    let truth: Vec<f64> = pairs.iter().flat_map(row_of).copied().collect();
    assert_eq!(t.get(&gathered), truth, "{what}: rows are copies");

    // Other values in each row.
    let values = numbers(3, tokens * k * width, dtype);
    let input = t.put(&[tokens * k, width], dtype, &values);
    let also = numbers(4, tokens * width, F32);
    let output = t.empty(&[tokens, width], dtype);
    let combine = |input: Tensor, also: Option<Tensor>| {
        t.run(CombineRows { input, rows: order.rows, also, output });
        t.get(&output)
    };
    let mut sums = vec![0.0; tokens * width];
    for (row, pair) in pairs.iter().enumerate() {
        for c in 0..width {
            sums[*pair as usize / k * width + c] += values[row * width + c];
        }
    }
    assert_close(&what, dtype, &combine(input, None), &sums);
    let with: Vec<f64> = sums.iter().zip(&also).map(|(x, y)| x + y).collect();
    assert_close(&what, dtype, &combine(input, Some(t.put(&[tokens, width], F32, &also))), &with);
    // There and back again every token is the sum of `k` copies of itself.
    let times: Vec<f64> = x.iter().map(|x| k as f64 * x).collect();
    assert_close(&format!("{what}, there and back"), dtype, &combine(gathered, None), &times);
}

#[test]
fn rows_are_copied_to_the_order_of_experts_and_summed_up_again() {
    let t = checked_bench();
    for dtype in FLOATS {
        for sizes in [[1, 1, 1, 1], [7, 2, 4, 24], [9, 8, 16, 64], [5, 3, 3, 13], [6, 9, 10, 2056], [300, 2, 64, 40]] {
            check_rows(&t, sizes, dtype, 5);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tokens_of_any_choice_are_sorted_gathered_and_combined(
        tokens in 1..60usize, k in 1..5usize, experts in 1..40usize, width in 1..40usize, seed: u64, pick in 0..2usize,
    ) {
        let t = if on_gpu() { checked_bench() } else { bench(2) };
        check_rows(&t, [tokens, k, experts, width], FLOATS[pick], seed);
    }
}

#[test]
fn sums_are_in_f32_in_the_order_of_choices_and_rounded_once() {
    let t = checked_bench();
    // 1e8 + 1 is 1e8 in f32; in bf16 1 + 1/256 is 1, but 1 + 1/256 + 1/256 is not.
    let sum = |dtype: DType, values: &[f64], rows: &[i32]| {
        let output = t.empty(&[1, 1], dtype);
        let input = t.put(&[values.len(), 1], dtype, values);
        t.run(CombineRows { input, rows: t.ints(&[1, rows.len()], rows), also: None, output });
        t.get(&output)[0]
    };
    assert_eq!(sum(F32, &[1.0, 1e8, -1e8], &[1, 2, 0]), 1.0);
    assert_eq!(sum(F32, &[1.0, 1e8, -1e8], &[0, 1, 2]), 0.0);
    assert_eq!(sum(Bf16, &[1.0, 1.0 / 256.0, 1.0 / 256.0], &[0, 1, 2]), 1.0 + 1.0 / 128.0);
}

/// Ranks exchange the rows of their pairs as a plain loop over pairs does.
#[test]
fn pairs_get_slots_in_the_order_of_experts_and_ranks_find_the_experts_of_slots() {
    let t = checked_bench();
    for [tokens, k, ranks, experts, room] in
        [[6, 2, 2, 4, 12], [50, 3, 4, 8, 20], [9, 1, 3, 3, 2], [700, 8, 8, 64, 700]]
    {
        // Of each rank the choices of its pairs, some of them dropped.
        let of_rank = |rank: usize| choices(rank as u64 + 1, tokens * k, experts + 1);
        let own = experts / ranks;
        let mut all_offsets = Vec::new();
        for rank in 0..ranks {
            let chosen = of_rank(rank);
            let (order, [offsets, ..]) = sort(&t, &chosen, k, experts);
            let (slots, beyond) = (t.empty_ints(&[tokens, k]), t.empty(&[1], F32));
            let chosen_here = t.ints(&[tokens, k], &chosen);
            t.run(SlotsOfPairs { chosen: chosen_here, order, ranks, room, slots, beyond: Some(beyond) });
            let mut next = vec![0; ranks];
            let mut truth = vec![-1; tokens * k];
            for expert in 0..experts {
                for pair in (0..tokens * k).filter(|pair| chosen[*pair] as usize == expert) {
                    let to = expert / own;
                    truth[pair] = if next[to] < room { (to * room + next[to]) as i32 } else { -1 };
                    next[to] += 1;
                }
            }
            assert_eq!(t.get_ints(&slots), truth, "{ranks} ranks with room for {room}");
            let lost: usize = next.iter().map(|rows: &usize| rows.saturating_sub(room)).sum();
            assert_eq!(t.get(&beyond), [lost as f64], "{ranks} ranks with room for {room}");
            all_offsets.extend(offsets);
        }
        for rank in 0..ranks {
            let chosen = t.empty_ints(&[ranks * room, 1]);
            t.run(ExpertsOfSlots { offsets: t.ints(&[ranks, experts + 1], &all_offsets), rank, chosen });
            let truth = (0..ranks).flat_map(|from| {
                let mut mine: Vec<i32> = of_rank(from).into_iter().map(|expert| expert - (rank * own) as i32).collect();
                mine.retain(|expert| (0..own as i32).contains(expert));
                mine.sort_unstable();
                mine.resize(mine.len().max(room), own as i32);
                mine.truncate(room);
                mine
            });
            assert_eq!(t.get_ints(&chosen), truth.collect::<Vec<_>>(), "rank {rank} of {ranks}");
        }
    }
}

#[test]
fn shapes_and_types_that_do_not_fit_are_refused() {
    let t = checked_bench();
    let sort = |offsets: usize, pairs: usize, rows: usize| {
        let order = ExpertRows {
            offsets: t.empty_ints(&[offsets]),
            pairs: t.empty_ints(&[pairs]),
            rows: t.empty_ints(&[rows, 2]),
        };
        t.refusal(SortByExpert { chosen: t.empty_ints(&[6, 2]), first: 0, order })
    };
    let gather = |pairs: usize, rows: usize, width: usize, dtype: DType| {
        let (input, output) = (t.empty(&[6, 4], F32), t.empty(&[rows, width], dtype));
        t.refusal(GatherRows { input, rows: t.empty_ints(&[pairs]), output })
    };
    let combine = |width: usize, rows: [usize; 2], also: usize| {
        t.refusal(CombineRows {
            input: t.empty(&[12, width], F32),
            rows: t.empty_ints(&rows),
            also: Some(t.empty(&[also, 4], F32)),
            output: t.empty(&[6, 4], F32),
        })
    };
    let slots = |ranks: usize, room: usize| {
        let order = ExpertRows { offsets: t.empty_ints(&[9]), pairs: t.empty_ints(&[12]), rows: t.empty_ints(&[6, 2]) };
        let (chosen, slots) = (t.empty_ints(&[6, 2]), t.empty_ints(&[6, 2]));
        t.refusal(SlotsOfPairs { chosen, order, ranks, room, slots, beyond: None })
    };
    let experts = |rank: usize, offsets: [usize; 2], slots: usize| {
        t.refusal(ExpertsOfSlots { offsets: t.empty_ints(&offsets), rank, chosen: t.empty_ints(&[slots, 1]) })
    };
    for (error, words) in [
        (slots(3, 4), "slots_of_pairs: 8 experts cannot be divided over 3 ranks"),
        (slots(2, 0), "slots_of_pairs: 2 x 0 slots"),
        (experts(2, [2, 9], 8), "experts_of_slots: there is no rank 2 of 2"),
        (experts(0, [3, 9], 9), "experts_of_slots: 8 experts cannot be divided over 3 ranks"),
        (experts(0, [2, 9], 9), "experts_of_slots: `chosen` has shape (9, 1), needs (8, 1)"),
        (sort(1, 12, 6), "sort_by_expert: there is no expert"),
        (sort(9, 11, 6), "sort_by_expert: `pairs` of shape (11) has 11 elements, needs 12"),
        (sort(9, 12, 5), "sort_by_expert: `rows` of shape (5, 2) has 10 elements, needs 12"),
        (gather(12, 12, 5, F32), "gather_rows: `output` of shape (12, 5)"),
        (gather(11, 12, 4, F32), "gather_rows: 6 tokens cannot have 11 rows"),
        (gather(12, 12, 4, Bf16), "gather_rows: `output` is bf16, needs f32"),
        (combine(4, [5, 2], 6), "combine_rows: `rows` has shape (5, 2), needs (6, 2)"),
        (combine(5, [6, 2], 6), "combine_rows: rows of `input` have 5 values, needs 4"),
        (combine(4, [6, 2], 5), "combine_rows: `also` of shape (5, 4)"),
    ] {
        assert!(error.contains(words), "{error}");
    }
}
