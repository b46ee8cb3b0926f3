//! Rows that go straight to their places on the ranks of their experts, and back.

use crate::communicator::CollectiveKind;
use crate::host::view;
use crate::ops::{Collective, RowsOfRanks, RowsWay};
use crate::{BufferId, Request, Result, Shape, Tensor};

/// Where rows between this rank and the others lie.
struct Lists {
    /// By rank: the rows of this rank's pairs for that rank.
    of_pairs: Vec<Vec<usize>>,
    /// By rank: the rows of this rank's experts for that rank's pairs, in the same order.
    of_experts: Vec<Vec<usize>>,
    /// The most rows between any two ranks.
    most: usize,
}

fn lists(rows: &RowsOfRanks, rank: usize, ranks: usize) -> Lists {
    let (all, places) = (view::read::<i32>(&rows.offsets), view::read::<i32>(&rows.places));
    let experts = rows.experts();
    let of = |from: usize, to: usize| &all[from * (ranks * experts + 1) + to * experts..][..=experts];
    let count = |from: usize, to: usize| (of(from, to)[experts] - of(from, to)[0]) as usize;
    let own = |to: usize| (of(rank, to)[0] as usize..of(rank, to)[experts] as usize).collect();
    let placed = |from: usize| {
        let of_expert = |expert: usize| {
            let offsets = &of(from, rank)[expert..];
            (places[expert * ranks + from]..).take((offsets[1] - offsets[0]) as usize).map(|row| row as usize)
        };
        (0..experts).flat_map(of_expert).collect()
    };
    let between = (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to)));
    Lists {
        of_pairs: (0..ranks).map(own).collect(),
        of_experts: (0..ranks).map(placed).collect(),
        most: between.map(|(from, to)| count(from, to)).max().unwrap_or(0),
    }
}

/// The rows of each rank, as `of` has them.
fn each(lists: &[Vec<usize>], of: impl Fn(usize) -> Option<usize>) -> Vec<Vec<Option<usize>>> {
    lists.iter().map(|rows| rows.iter().map(|row| of(*row)).collect()).collect()
}

/// A tensor of values of the host, for a transfer.
fn tensor_of(values: &mut [u32], like: &Tensor) -> Tensor {
    let elements = size_of_val(values) / like.dtype.size();
    let address = values.as_mut_ptr() as u64;
    Tensor { address, shape: Shape::from([elements]), dtype: like.dtype, buffer: BufferId::NOTHING }
}

/// Starts the transfer of rows: every rank sends each other a block of as many.
///
/// # Errors
/// The communicator's.
pub(crate) fn start_rows(op: &Collective, rows: &RowsOfRanks) -> Result<Box<dyn Request>> {
    let (rank, ranks) = (op.communicator.rank(), op.communicator.size());
    let Lists { of_pairs, of_experts, most } = lists(rows, rank, ranks);
    let (line, bound) = (RowsOfRanks::line(&op.input), rows.bound(&op.input, &op.output));
    let block = most * line;
    // The last rows are left out if they are too many.
    let of_experts = each(&of_experts, |row| (row < bound).then_some(row));
    let (taken, put) = match rows.way {
        RowsWay::ToExperts => {
            let (k, pairs) = (rows.pairs.elements() / op.input.shape.rows(), view::read::<i32>(&rows.pairs));
            (each(&of_pairs, |row| Some(pairs[row] as usize / k)), of_experts)
        }
        RowsWay::ToTokens => (of_experts, each(&of_pairs, Some)),
    };
    let mut sent = vec![0; ranks * block / size_of::<u32>()];
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut sent);
    let input = view::read::<u8>(&op.input.as_bytes());
    for (block, rows) in bytes.chunks_mut(block.max(1)).zip(taken) {
        for (to, row) in block.chunks_mut(line).zip(rows) {
            if let Some(row) = row {
                to.copy_from_slice(&input[row * line..][..line]);
            }
        }
    }
    let mut received = vec![0; sent.len()];
    let [from, to] = [&mut sent, &mut received].map(|values| tensor_of(values, &op.input));
    let request = match block {
        0 => None,
        _ => Some(op.communicator.start(CollectiveKind::AllToAll, &from, &to)?),
    };
    Ok(Box::new(RowsUnderWay { request, _sent: sent, received, put, block, line, output: op.output }))
}

/// A transfer of rows.
struct RowsUnderWay {
    request: Option<Box<dyn Request>>,
    /// The rows sent, which the transfer reads until it is done.
    _sent: Vec<u32>,
    received: Vec<u32>,
    /// By rank: where its rows go.
    put: Vec<Vec<Option<usize>>>,
    /// Bytes of a rank's rows.
    block: usize,
    /// Bytes of a row.
    line: usize,
    output: Tensor,
}

impl Request for RowsUnderWay {
    fn wait(self: Box<Self>) -> Result<()> {
        let RowsUnderWay { request, received, put, block, line, output, .. } = *self;
        let Some(request) = request else { return Ok(()) };
        request.wait()?;
        let (received, output): (&[u8], _) = (bytemuck::cast_slice(&received), view::write::<u8>(&output.as_bytes()));
        for (block, rows) in received.chunks(block).zip(put) {
            for (from, row) in block.chunks(line).zip(rows) {
                if let Some(row) = row {
                    output[row * line..][..line].copy_from_slice(from);
                }
            }
        }
        Ok(())
    }
}
