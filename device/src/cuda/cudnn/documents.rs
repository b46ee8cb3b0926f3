//! The documents of samples, as cuDNN's ragged tensors take them.

use super::attention_graph::{GraphSizes, number};
use crate::Result;
use crate::cuda::{Grid, Queue};

/// `Documents` of `kernels/attention/documents.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct DocumentsArgs {
    position_ids: u64,
    lengths: u64,
    packed: u64,
    output: u64,
    stats: u64,
    seq: u32,
    most: u32,
    packed_width: u32,
    output_width: u32,
    heads: u32,
    wide: u32,
}

/// Bytes of one of the four lists that [`write`] writes: lengths of 32 bits, or offsets.
fn list_bytes(sizes: &GraphSizes) -> usize {
    let bytes = if sizes.has_wide_offsets() { size_of::<i64>() } else { size_of::<i32>() };
    ((sizes.items() as usize + 1) * bytes).next_multiple_of(256)
}

/// Bytes that [`write`] needs; 0 if a sample is one document.
pub(super) fn scratch_bytes(sizes: &GraphSizes) -> usize {
    sizes.documents.map_or(0, |_| 4 * list_bytes(sizes))
}

/// Writes the lengths and the offsets of all documents into `scratch`, from the position of each token in its document. Returns
/// their numbers and addresses for the variant pack.
///
/// # Errors
/// The driver's.
pub(super) fn write(
    sizes: &GraphSizes,
    most: i64,
    position_ids: u64,
    scratch: u64,
    queue: &Queue<'_>,
) -> Result<Vec<(i64, u64)>> {
    let list = |at: u64| scratch + at * list_bytes(sizes) as u64;
    let [lengths, packed, output, stats] = [0, 1, 2, 3].map(list);
    let block = DocumentsArgs {
        position_ids,
        lengths,
        packed,
        output,
        stats,
        seq: sizes.seq as u32,
        most: most as u32,
        packed_width: sizes.packed_width() as u32,
        output_width: (sizes.heads * sizes.dim) as u32,
        heads: sizes.heads as u32,
        wide: sizes.has_wide_offsets().into(),
    };
    queue.launch_block("ragged_documents", Grid::line(sizes.batch as usize, 256), &block)?;
    let lengths = number::LENGTHS.map(|number| (number, lengths));
    let packed = number::PACKED_OFFSETS.map(|number| (number, packed));
    let others = [(number::OUTPUT_OFFSETS, output), (number::STATS_OFFSETS, stats)];
    Ok(lengths.into_iter().chain(packed).chain(others).collect())
}
