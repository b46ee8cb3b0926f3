//! Operations on the parts of a tensor give together the result of the operation on the whole tensor.

use crate::common::{Bench, FLOATS, assert_close, bench, numbers};
use device::DType::{self, F32};
use device::Tensor;
use device::ops::*;

/// Columns `start..start + width` of each row.
fn columns(values: &[f64], all: usize, start: usize, width: usize) -> Vec<f64> {
    values.chunks(all).flat_map(|row| row[start..start + width].to_vec()).collect()
}

fn check_cross_entropy(
    t: &Bench,
    [vocab, padded, ranks]: [usize; 3],
    dtype: DType,
    trains: bool,
    multiplier: Option<f32>,
    soft_cap: Option<f32>,
) {
    let rows = 7;
    let logits: Vec<f64> = numbers(1, rows * padded, dtype).into_iter().map(|x| x * 4.0).collect();
    // Among them are a target that does not count, one beyond the vocabulary, and the first and last tokens of ranks.
    let targets = [0, vocab as i32 - 1, -1, padded as i32 / ranks as i32, 1, vocab as i32, 5];
    let targets = t.ints(&[rows], &targets);
    let factors = numbers(3, rows, F32);
    let weights = trains.then(|| t.put(&[rows], F32, &factors));
    let control = trains.then(|| t.block(&Control { grad_scale: 0.25, ..Control::default() }));
    let (whole, losses) = (t.put(&[rows, padded], dtype, &logits), t.empty(&[rows], F32));
    let z_loss = |losses: Tensor| multiplier.map(|multiplier| ZLoss { multiplier, losses });
    let z_losses = t.put(&[rows], F32, &[0.0; 7]);
    t.run(CrossEntropy { logits: whole, targets, losses, vocab, soft_cap, z_loss: z_loss(z_losses), weights, control });

    let width = padded / ranks;
    let stats = t.empty(&[ranks, 3, rows], F32);
    let parts: Vec<(Tensor, VocabPart)> = (0..ranks)
        .map(|rank| {
            let mine = t.put(&[rows, width], dtype, &columns(&logits, padded, rank * width, width));
            let part = VocabPart { first_token: rank * width, vocab };
            t.run(CrossEntropyPart { logits: mine, targets, stats: stats.at(rank), part, soft_cap });
            (mine, part)
        })
        .collect();
    for (rank, (logits, part)) in parts.into_iter().enumerate() {
        let (mine, mine_z) = (t.empty(&[rows], F32), t.put(&[rows], F32, &[0.0; 7]));
        let z_loss = z_loss(mine_z);
        t.run(CrossEntropyJoin { logits, targets, stats, losses: mine, part, soft_cap, z_loss, weights, control });
        assert_close("losses", F32, &t.get(&mine), &t.get(&losses));
        assert_close("z-losses", F32, &t.get(&mine_z), &t.get(&z_losses));
        let expected = columns(&t.get(&whole), padded, rank * width, width);
        assert_close("logits or their gradient", dtype, &t.get(&logits), &expected);
    }
}

#[test]
fn cross_entropy_of_a_cut_vocabulary_is_that_of_the_whole() {
    let t = bench(2);
    for dtype in FLOATS {
        let plain = [(true, None, None), (true, Some(0.125), None), (false, None, None)];
        let capped = [(true, None, Some(2.0)), (true, Some(0.125), Some(2.0)), (false, None, Some(2.0))];
        for (trains, multiplier, cap) in plain.into_iter().chain(capped) {
            check_cross_entropy(&t, [97, 128, 1], dtype, trains, multiplier, cap);
            check_cross_entropy(&t, [97, 128, 2], dtype, trains, multiplier, cap);
            // The last rank has no real column at all.
            check_cross_entropy(&t, [33, 128, 4], dtype, trains, multiplier, cap);
        }
    }
}

#[test]
fn parts_of_an_embedding_table_add_up_to_the_whole_and_take_the_gradients_of_their_own_tokens() {
    let t = bench(1);
    let (vocab, ranks, hidden, seq) = (12, 3, 5, 4);
    let tokens = t.ints(&[2, seq], &[0, 3, 4, 7, 8, 11, 4, 0]);
    let table = numbers(1, vocab * hidden, F32);
    let positions = t.put(&[seq, hidden], F32, &numbers(2, seq * hidden, F32));
    let shape = [2, seq, hidden];
    let whole = t.empty(&shape, F32);
    let table_tensor = t.put(&[vocab, hidden], F32, &table);
    t.run(Embedding {
        tokens,
        table: table_tensor,
        first_token: 0,
        scale: 1.5,
        positions: Some(positions),
        position_ids: None,
        output: whole,
    });
    let grad_output = t.put(&shape, F32, &numbers(3, 2 * seq * hidden, F32));
    let zeros = vec![0.0; vocab * hidden];
    let grad_whole = t.put(&[vocab, hidden], F32, &zeros);
    t.run(EmbeddingBackward {
        tokens,
        grad_output,
        grad_table: Some(grad_whole),
        first_token: 0,
        scale: 1.5,
        grad_positions: None,
    });

    let (rows, mut sum, mut grads) = (vocab / ranks, vec![0.0; 2 * seq * hidden], Vec::new());
    for rank in 0..ranks {
        let first_token = rank * rows;
        let part = &table[first_token * hidden..(first_token + rows) * hidden];
        let (part, output) = (t.put(&[rows, hidden], F32, part), t.empty(&shape, F32));
        t.run(Embedding {
            tokens,
            table: part,
            first_token,
            scale: 1.5,
            positions: (rank == 0).then_some(positions),
            position_ids: None,
            output,
        });
        sum.iter_mut().zip(t.get(&output)).for_each(|(sum, x)| *sum += x);
        let grad_table = t.put(&[rows, hidden], F32, &zeros[..rows * hidden]);
        t.run(EmbeddingBackward {
            tokens,
            grad_output,
            grad_table: Some(grad_table),
            first_token,
            scale: 1.5,
            grad_positions: None,
        });
        grads.extend(t.get(&grad_table));
    }
    assert_close("sum of the parts", F32, &sum, &t.get(&whole));
    assert_eq!(grads, t.get(&grad_whole));
}

fn site(t: &Bench, part: DropoutPart) -> DropoutSite {
    let record = t.block(&SampleRecord { first_sample: 5, step: 3, reserved: 0 });
    DropoutSite { rate: 0.4, seed: 9, layer: 2, site: 1, record, part }
}

#[test]
fn dropout_of_a_part_of_the_rows_is_that_part_of_the_whole() {
    let t = bench(1);
    let (batch, seq, hidden) = (3, 4, 10);
    let values = numbers(1, batch * seq * hidden, F32);
    let whole = t.empty(&[batch, seq, hidden], F32);
    let input = t.put(&[batch, seq, hidden], F32, &values);
    t.run(Dropout { input, output: whole, site: site(&t, DropoutPart::default()) });
    let mut together = Vec::new();
    for rank in 0..2 {
        // Six rows: one sample and a half.
        let first_row = rank * 6;
        let input = t.put(&[6, hidden], F32, &values[first_row * hidden..(first_row + 6) * hidden]);
        let output = t.empty(&[6, hidden], F32);
        t.run(Dropout { input, output, site: site(&t, DropoutPart { first_row, tokens: seq, ..Default::default() }) });
        together.extend(t.get(&output));
    }
    assert_eq!(together, t.get(&whole));
}

#[test]
fn dropout_of_a_share_of_sequences_is_that_share_of_the_whole() {
    let t = bench(1);
    let (batch, seq, hidden, ranks) = (2, 8, 10, 2);
    let values = numbers(1, batch * seq * hidden, F32);
    let whole = t.empty(&[batch, seq, hidden], F32);
    let input = t.put(&[batch, seq, hidden], F32, &values);
    t.run(Dropout { input, output: whole, site: site(&t, DropoutPart::default()) });
    let whole = t.get(&whole);
    for rank in 0..ranks {
        let (share, tokens) = (SequenceShare { rank, ranks }, seq / ranks);
        let rows: Vec<usize> =
            (0..batch * tokens).map(|row| row / tokens * seq + share.position(row % tokens, tokens)).collect();
        let here = |values: &[f64]| -> Vec<f64> {
            rows.iter().flat_map(|row| values[row * hidden..(row + 1) * hidden].to_vec()).collect()
        };
        let input = t.put(&[batch, tokens, hidden], F32, &here(&values));
        let output = t.empty(&[batch, tokens, hidden], F32);
        t.run(Dropout { input, output, site: site(&t, DropoutPart { share, ..Default::default() }) });
        assert_eq!(t.get(&output), here(&whole), "rank {rank}");
    }
}

#[test]
fn rows_of_ranks_come_into_the_order_of_positions_and_back() {
    let t = bench(2);
    for (ranks, batch, tokens, width) in [(1, 2, 3, 4), (2, 1, 4, 8), (3, 2, 2, 5), (4, 3, 6, 16)] {
        let count = ranks * batch * tokens * width;
        for dtype in [F32, DType::Bf16] {
            let values: Vec<f64> = (0..count).map(|at| (at % 250) as f64).collect();
            let by_position = t.put(&[batch, ranks * tokens, width], dtype, &values);
            let by_rank = t.empty(&[ranks, batch, tokens, width], dtype);
            t.run(OrderRows { by_rank, by_position, to: RowOrder::ByRank });
            let wanted = (0..ranks * batch * tokens).flat_map(|row| {
                let (rank, sample) = (row / tokens / batch, row / tokens % batch);
                let position = SequenceShare { rank, ranks }.position(row % tokens, tokens);
                let first = (sample * ranks * tokens + position) * width;
                values[first..first + width].to_vec()
            });
            assert_eq!(t.get(&by_rank), wanted.collect::<Vec<f64>>(), "{ranks} ranks, {dtype}");
            let back = t.empty(&[batch, ranks * tokens, width], dtype);
            t.run(OrderRows { by_rank, by_position: back, to: RowOrder::ByPosition });
            assert_eq!(t.get(&back), values, "{ranks} ranks, {dtype}");
        }
    }
}

#[test]
fn dropout_of_a_part_of_the_channels_is_that_part_of_the_whole() {
    let t = bench(1);
    let (rows, channels) = (6, 48);
    let values = numbers(1, rows * channels, F32);
    let whole = t.empty(&[1, rows, channels], F32);
    let input = t.put(&[1, rows, channels], F32, &values);
    t.run(Dropout { input, output: whole, site: site(&t, DropoutPart::default()) });
    // Parts that begin and end within a block of random numbers, and parts that fit vectors.
    for (first_channel, count) in [(0, 16), (16, 32), (5, 7), (2, 16), (20, 28), (33, 15)] {
        let input = t.put(&[1, rows, count], F32, &columns(&values, channels, first_channel, count));
        let output = t.empty(&[1, rows, count], F32);
        let part = DropoutPart { first_channel, ..Default::default() };
        t.run(Dropout { input, output, site: site(&t, part) });
        assert_eq!(t.get(&output), columns(&t.get(&whole), channels, first_channel, count), "{first_channel} {count}");
    }
}

#[test]
fn attention_of_a_part_of_the_heads_drops_what_the_whole_drops_there() {
    let t = bench(1);
    let (seq, heads, dim) = (6, 4, 4);
    let qkv = numbers(1, seq * 3 * heads * dim, F32);
    // Columns of some heads' queries, keys and values.
    let of_heads = |first: usize, count: usize| {
        let row = |row: &[f64]| -> Vec<f64> {
            (0..3).flat_map(|part| row[(part * heads + first) * dim..][..count * dim].to_vec()).collect()
        };
        qkv.chunks(3 * heads * dim).flat_map(row).collect::<Vec<f64>>()
    };
    let attend = |first: usize, count: usize| {
        let shape = [1, seq, 3 * count * dim];
        let qkv = t.put(&shape, F32, &of_heads(first, count));
        let (output, stats) = (t.empty(&[1, seq, count * dim], F32), t.empty(&[1, count, seq], F32));
        let dropout = Some(site(&t, DropoutPart { first_head: first, ..Default::default() }));
        let (scores, mask) = (Scores::default(), Mask::CAUSAL);
        let op = Attention {
            qkv,
            keys: None,
            output,
            stats,
            heads: count,
            kv_heads: count,
            scores,
            mask,
            documents: None,
            dropout,
        };
        t.run(op.clone());
        let grad_output = t.put(&[1, seq, count * dim], F32, &vec![1.0; seq * count * dim]);
        let grad_qkv = t.empty(&shape, F32);
        t.run(op.backward(grad_output, grad_qkv));
        (t.get(&output), t.get(&grad_qkv))
    };
    let (output, grad) = attend(0, heads);
    let (half_output, half_grad) = attend(2, 2);
    assert_eq!(half_output, columns(&output, heads * dim, 2 * dim, 2 * dim));
    for part in 0..3 {
        let whole = columns(&grad, 3 * heads * dim, (part * heads + 2) * dim, 2 * dim);
        assert_eq!(columns(&half_grad, 6 * dim, part * 2 * dim, 2 * dim), whole);
    }
}
