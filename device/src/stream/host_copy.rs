//! Copies of device memory on the host that are under way while other work goes on.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::cuda::RawEvent;
use crate::dispatch::StreamBackend;
use crate::host_memory::BorrowedMemory;
use crate::{DType, Error, Result, Shape, Staging, Tensor};

/// Copies go to blocks of host memory of so many bytes, the last one shorter. A driver takes about a thousand copies of a
/// stream at once, and lets the host wait with more: `bench/results/2026-11-27-saves-and-starts-on-a-gpu.md`. The state of a
/// large model in such blocks is below that.
pub const COPY_BLOCK: usize = 256 << 20;

/// Tensors of a buffer that lie so many bytes apart are copied with what is between them.
const GAP: u64 = 4096;

/// Where a range begins in the copy: a multiple of any element's size.
const ALIGNMENT: usize = 16;

/// A copy of tensors in host memory. It may still be under way. Any thread may read it.
#[derive(Clone)]
pub struct HostCopy {
    copied: Arc<Copied>,
}

/// Bytes of a tensor that have arrived. They are there as long as this value.
pub struct CopiedBytes {
    copied: Arc<Copied>,
    block: usize,
    range: Range<usize>,
}

struct Copied {
    ranges: Vec<CopiedRange>,
    blocks: Vec<CopiedBlock>,
    staging: Staging,
}

/// Memory that is copied as one.
#[derive(Clone, Debug, PartialEq)]
struct CopiedRange {
    /// A tensor of bytes.
    from: Tensor,
    /// The range's first byte in the copy, whose blocks follow one another.
    at: usize,
}

/// Fields drop in order: the event before the memory.
struct CopiedBlock {
    /// The event after the block's copies; `None` on the host device.
    done: Option<RawEvent>,
    arrived: AtomicBool,
    memory: BorrowedMemory,
    bytes: usize,
}

/// The sizes of the blocks that a copy of `tensors` takes.
pub fn copy_blocks(tensors: &[Tensor]) -> Vec<usize> {
    blocks_of(&ranges_of(tensors))
}

fn blocks_of(ranges: &[CopiedRange]) -> Vec<usize> {
    let all = ranges.last().map_or(0, |last| last.at + last.from.bytes());
    (0..all.div_ceil(COPY_BLOCK)).map(|block| (all - block * COPY_BLOCK).min(COPY_BLOCK)).collect()
}

/// The memory of `tensors`, in the order of addresses.
fn ranges_of(tensors: &[Tensor]) -> Vec<CopiedRange> {
    let mut sorted: Vec<&Tensor> = tensors.iter().filter(|tensor| tensor.bytes() > 0).collect();
    sorted.sort_by_key(|tensor| tensor.address);
    let mut merged: Vec<(&Tensor, Range<u64>)> = Vec::new();
    for tensor in sorted {
        let range = tensor.range();
        match merged.last_mut().filter(|(last, all)| last.buffer == tensor.buffer && range.start <= all.end + GAP) {
            Some((_, all)) => all.end = all.end.max(range.end),
            None => merged.push((tensor, range)),
        }
    }
    let mut at = 0;
    let place = |(tensor, range): (&Tensor, Range<u64>)| {
        let bytes = (range.end - range.start) as usize;
        let from = Tensor { address: range.start, shape: Shape::new(&[bytes]), dtype: DType::U8, ..*tensor };
        let placed = CopiedRange { from, at };
        at = (at + bytes).next_multiple_of(ALIGNMENT);
        placed
    };
    merged.into_iter().map(place).collect()
}

impl HostCopy {
    /// A copy of nothing.
    pub(crate) fn empty() -> HostCopy {
        HostCopy { copied: Arc::new(Copied { ranges: Vec::new(), blocks: Vec::new(), staging: Staging::default() }) }
    }

    /// Begins to copy tensors on a stream.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn begin(tensors: &[Tensor], staging: &Staging, stream: &mut StreamBackend) -> Result<HostCopy> {
        let ranges = ranges_of(tensors);
        let sizes = blocks_of(&ranges);
        let block = |bytes| {
            let memory = staging.block(bytes);
            CopiedBlock { done: None, arrived: AtomicBool::new(false), memory, bytes }
        };
        // Blocks that copies go to are waited for when this is dropped, also after an error.
        let mut copied = Copied { ranges, blocks: sizes.into_iter().map(block).collect(), staging: staging.clone() };
        let Copied { ranges, blocks, .. } = &mut copied;
        let mut under_way = 0;
        let submitted = ranges.iter().try_for_each(|CopiedRange { from, at }| {
            pieces(*at..*at + from.bytes()).try_for_each(|(number, part)| {
                if number > under_way {
                    blocks[under_way].done = stream.mark()?;
                    under_way = number;
                }
                let first = number * COPY_BLOCK + part.start - at;
                stream.copy_out(&from.view(first, [part.len()]), blocks[number].memory.block_mut(), part.start)
            })
        });
        // Also after an error: the copies before it are under way.
        let marked = stream.mark().map(|done| {
            if let Some(last) = blocks.get_mut(under_way) {
                last.done = done;
            }
        });
        submitted.and(marked)?;
        Ok(HostCopy { copied: Arc::new(copied) })
    }

    /// A tensor's bytes, in one or more pieces. Each is waited for when it is taken.
    ///
    /// # Errors
    /// The tensor is not in the copy.
    pub fn pieces(&self, tensor: &Tensor) -> Result<impl Iterator<Item = Result<CopiedBytes>>> {
        let (wanted, copied) = (tensor.range(), self.copied.clone());
        let holds = |range: &&CopiedRange| {
            let has = range.from.range();
            range.from.buffer == tensor.buffer && has.start <= wanted.start && wanted.end <= has.end
        };
        let first = match copied.ranges.iter().find(holds) {
            Some(range) => range.at + (wanted.start - range.from.address) as usize,
            None if wanted.is_empty() => 0,
            None => return Err(Error::operation("copy_out", "the copy does not have this tensor")),
        };
        Ok(pieces(first..first + tensor.bytes()).map(move |(block, range)| {
            copied.blocks[block].wait(&copied.staging)?;
            Ok(CopiedBytes { copied: copied.clone(), block, range })
        }))
    }
}

/// Bytes of a copy by its blocks: each block's number, and bytes in it.
fn pieces(bytes: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
    let blocks = if bytes.is_empty() { 0..0 } else { bytes.start / COPY_BLOCK..bytes.end.div_ceil(COPY_BLOCK) };
    blocks.map(move |block| {
        let start = block * COPY_BLOCK;
        (block, bytes.start.max(start) - start..bytes.end.min(start + COPY_BLOCK) - start)
    })
}

impl AsRef<[u8]> for CopiedBytes {
    fn as_ref(&self) -> &[u8] {
        let block = &self.copied.blocks[self.block];
        &block.memory.bytes(block.bytes)[self.range.clone()]
    }
}

impl CopiedBlock {
    fn wait(&self, staging: &Staging) -> Result<()> {
        let Some(done) = self.done.as_ref().filter(|_| !self.arrived.load(Ordering::Acquire)) else { return Ok(()) };
        staging.enter()?;
        done.await_asleep()?;
        self.arrived.store(true, Ordering::Release);
        Ok(())
    }
}

impl Drop for Copied {
    /// The device must not copy to memory that others have.
    fn drop(&mut self) {
        for block in &self.blocks {
            if let Err(error) = block.wait(&self.staging) {
                tracing::debug!("{error}"); // the step that failed says more
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BufferId;

    fn tensor(buffer: usize, address: u64, bytes: usize) -> Tensor {
        Tensor { address, shape: Shape::new(&[bytes]), dtype: DType::U8, buffer: BufferId::new(0, buffer) }
    }

    #[test]
    fn neighbours_of_a_buffer_are_one_range() {
        let (a, b) = (tensor(1, 4096, 1000), tensor(1, 4096 + 1000 + GAP, 7));
        let (far, other) = (tensor(1, 1 << 40, 5), tensor(2, 4096 - 9, 9));
        let ranges = ranges_of(&[b, a, far, other, tensor(3, 8, 0)]);
        let all = 1000 + GAP as usize + 7;
        let expected = [(other, 0), (tensor(1, 4096, all), 16), (far, 16 + all.next_multiple_of(16))];
        assert_eq!(ranges, expected.map(|(from, at)| CopiedRange { from, at }));
        assert_eq!(copy_blocks(&[a, b, far]), [all.next_multiple_of(16) + 5]);
        assert_eq!(copy_blocks(&[]), [0; 0]);
        assert_eq!(copy_blocks(&[tensor(1, 0, COPY_BLOCK + 3)]), [COPY_BLOCK, 3]);
    }

    #[test]
    fn pieces_cover_bytes_of_all_their_blocks() {
        let found: Vec<_> = pieces(COPY_BLOCK - 1..2 * COPY_BLOCK + 2).collect();
        assert_eq!(found, [(0, COPY_BLOCK - 1..COPY_BLOCK), (1, 0..COPY_BLOCK), (2, 0..2)]);
        assert_eq!(pieces(5..5).count(), 0);
    }
}
