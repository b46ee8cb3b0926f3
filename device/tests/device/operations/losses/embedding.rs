//! The embedding against a naive f64 reference.

use crate::common::{Bench, FLOATS, assert_close, bench, numbers, rounded};
use device::DType;
use device::DType::F32;
use device::ops::*;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn embedding_and_its_gradient_agree_with_f64(
        batch in 1..4usize, seq in 1..9usize, hidden in 1..20usize, vocab in 1..150usize, positions: bool,
        scale in prop_oneof![Just(1.0f32), Just(3.75)], pick in 0..2usize,
    ) {
        check_embedding(&bench(2), [batch, seq, hidden, vocab], positions, scale, FLOATS[pick]);
    }
}

fn check_embedding(t: &Bench, [batch, seq, hidden, vocab]: [usize; 4], with_positions: bool, scale: f32, dtype: DType) {
    let tokens: Vec<i32> = (0..batch * seq).map(|i| (i * i * 31 % vocab) as i32).collect();
    let tokens_t = t.ints(&[batch, seq], &tokens);
    let (table, positions) = (numbers(1, vocab * hidden, dtype), numbers(2, (seq + 2) * hidden, dtype));
    let output = t.empty(&[batch, seq, hidden], dtype);
    t.run(Embedding {
        tokens: tokens_t,
        table: t.put(&[vocab, hidden], dtype, &table),
        first_token: 0,
        scale,
        positions: with_positions.then(|| t.put(&[seq + 2, hidden], dtype, &positions)),
        position_ids: None,
        output,
    });
    let row = |i: usize| i / hidden;
    let truth: Vec<f64> = (0..batch * seq * hidden)
        .map(|i| {
            let position = if with_positions { positions[row(i) % seq * hidden + i % hidden] } else { 0.0 };
            // The product with the scale is rounded to the table's type.
            let embedded = f64::from(scale) * table[tokens[row(i)] as usize * hidden + i % hidden];
            if scale == 1.0 { embedded + position } else { rounded(embedded, dtype) + position }
        })
        .collect();
    assert_close("embedded", dtype, &t.get(&output), &truth);

    let dy = numbers(3, batch * seq * hidden, dtype);
    let (mut table_truth, mut position_truth) = (numbers(4, vocab * hidden, F32), numbers(5, (seq + 2) * hidden, F32));
    let grad_table = t.put(&[vocab, hidden], F32, &table_truth);
    let grad_positions = t.put(&[seq + 2, hidden], F32, &position_truth);
    t.run(EmbeddingBackward {
        tokens: tokens_t,
        grad_output: t.put(&[batch, seq, hidden], dtype, &dy),
        grad_table: Some(grad_table),
        first_token: 0,
        scale,
        grad_positions: Some(grad_positions),
    });
    for (i, dy) in dy.iter().enumerate() {
        table_truth[tokens[row(i)] as usize * hidden + i % hidden] += f64::from(scale) * dy;
        position_truth[row(i) % seq * hidden + i % hidden] += dy;
    }
    assert_close("gradient added to the table", F32, &t.get(&grad_table), &table_truth);
    assert_close("gradient added to the positions", F32, &t.get(&grad_positions), &position_truth);
}

#[test]
fn learned_positions_are_those_in_the_document() {
    let t = bench(2);
    let ids = [0, 1, 2, 0, 1, 0, 1, 0, 1, 0, 1, 2, 0, 1];
    let (table, positions) = (numbers(1, 4 * 5, F32), numbers(2, 7 * 5, F32));
    let output = t.empty(&[2, 7, 5], F32);
    let position_ids = t.ints(&[2, 7], &ids);
    t.run(Embedding {
        tokens: t.ints(&[2, 7], &[2; 14]),
        table: t.put(&[4, 5], F32, &table),
        first_token: 0,
        scale: 1.0,
        positions: Some(t.put(&[7, 5], F32, &positions)),
        position_ids: Some(position_ids),
        output,
    });
    let truth: Vec<f64> = ids
        .iter()
        .flat_map(|id| (0..5).map(|c| (c, *id as usize)))
        .map(|(c, id)| table[10 + c] + positions[id * 5 + c])
        .collect();
    assert_close("embedded", F32, &t.get(&output), &truth);
}

/// Two samples of six inputs, six targets and a column that is neither. The second sample has documents of two, three and
/// one tokens.
#[test]
fn further_tokens_end_with_the_sample_and_with_the_document() {
    let t = bench(2);
    let samples: Vec<i32> = (0..26).collect();
    let samples = t.ints(&[2, 13], &samples);
    let ids = t.ints(&[2, 6], &[0, 1, 2, 3, 4, 5, 0, 1, 0, 1, 2, 0]);
    let whole = SequenceShare::WHOLE;
    let run = |ahead, position_ids, share: SequenceShare| {
        let columns = 6 / share.ranks;
        let [tokens, targets] = [(); 2].map(|()| t.ints(&[2, columns], &vec![-7; 2 * columns]));
        let (first_input, first_target) = (0, 6);
        t.run(FurtherTokens { samples, first_input, first_target, ahead, position_ids, share, tokens, targets });
        [tokens, targets].map(|output| t.get_ints(&output))
    };
    let [tokens, targets] = run(1, None, whole);
    assert_eq!(tokens, [1, 2, 3, 4, 5, 0, 14, 15, 16, 17, 18, 0]);
    assert_eq!(targets, [7, 8, 9, 10, 11, -1, 20, 21, 22, 23, 24, -1]);
    let [tokens, targets] = run(2, Some(ids), whole);
    assert_eq!(tokens, [2, 3, 4, 5, 0, 0, 15, 16, 17, 18, 0, 0]);
    assert_eq!(targets, [8, 9, 10, 11, -1, -1, -1, -1, 23, -1, -1, -1]);
    assert_eq!(run(7, Some(ids), whole), [vec![0; 12], vec![-1; 12]]);
    // The parts of a rank that has the first and the last of six parts.
    let ids = t.ints(&[2, 6], &[0, 1, 2, 3, 4, 5, 0, 0, 1, 2, 0, 1]);
    let [tokens, targets] = run(1, Some(ids), SequenceShare { rank: 0, ranks: 3 });
    assert_eq!((tokens, targets), (vec![1, 0, 14, 0], vec![7, -1, -1, -1]));
}
