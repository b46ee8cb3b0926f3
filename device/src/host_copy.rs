//! Copies of device memory on the host that are under way while other work goes on.

use crate::array::BorrowedMemory;
use crate::backend::StreamBackend;
use crate::cuda::RawEvent;
use crate::{Result, Staging, Tensor};

/// Copies go to blocks of host memory of so many bytes.
pub const COPY_BLOCK: usize = 32 << 20;

/// A copy of tensors in host memory: their bytes one after the other, in blocks of [`COPY_BLOCK`] bytes, the last one
/// shorter. The copy may still be under way. As an iterator it waits for each block in turn. Any thread may do that.
pub struct HostCopy {
    blocks: std::vec::IntoIter<CopiedBlock>,
}

/// A block of a [`HostCopy`] that has arrived.
pub struct CopiedBytes(CopiedBlock);

/// Fields drop in order: the event and the memory before the context, which the staging memory holds.
struct CopiedBlock {
    /// The event after its copy. `None` if that has arrived.
    done: Option<RawEvent>,
    memory: BorrowedMemory,
    /// Bytes in use.
    bytes: usize,
    staging: Staging,
}

/// A copy to which tensors are added.
pub(crate) struct CopyBuilder<'s> {
    staging: &'s Staging,
    blocks: Vec<CopiedBlock>,
    /// Bytes still to come.
    left: usize,
}

impl CopyBuilder<'_> {
    pub(crate) fn new(bytes: usize, staging: &Staging) -> CopyBuilder<'_> {
        CopyBuilder { staging, blocks: Vec::new(), left: bytes }
    }

    /// Copies a tensor's bytes behind those before. An event is recorded when a block is full or everything is copied.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn add(&mut self, tensor: &Tensor, stream: &mut StreamBackend) -> Result<()> {
        let (all, mut copied) = (tensor.as_bytes(), 0);
        while copied < all.elements() {
            if self.blocks.last().is_none_or(|block| block.bytes == COPY_BLOCK) {
                let (memory, staging) = (self.staging.block(self.left.min(COPY_BLOCK)), self.staging.clone());
                self.blocks.push(CopiedBlock { done: None, memory, bytes: 0, staging });
            }
            let Some(block) = self.blocks.last_mut() else { unreachable!("one was added") };
            let bytes = (all.elements() - copied).min(COPY_BLOCK - block.bytes);
            stream.copy_out(&all.view(copied, [bytes]), block.memory.block_mut(), block.bytes)?;
            block.bytes += bytes;
            (self.left, copied) = (self.left - bytes, copied + bytes);
            if block.bytes == COPY_BLOCK || self.left == 0 {
                block.done = stream.mark()?;
            }
        }
        Ok(())
    }

    pub(crate) fn finish(self) -> HostCopy {
        HostCopy { blocks: self.blocks.into_iter() }
    }
}

impl Iterator for HostCopy {
    type Item = Result<CopiedBytes>;

    fn next(&mut self) -> Option<Result<CopiedBytes>> {
        let mut block = self.blocks.next()?;
        Some(block.wait().map(|()| CopiedBytes(block)))
    }
}

impl AsRef<[u8]> for CopiedBytes {
    fn as_ref(&self) -> &[u8] {
        self.0.memory.bytes(self.0.bytes)
    }
}

impl CopiedBlock {
    fn wait(&mut self) -> Result<()> {
        let Some(done) = self.done.take() else { return Ok(()) };
        self.staging.enter()?;
        done.synchronize()
    }
}

impl Drop for CopiedBlock {
    /// The device must not copy to memory that others have.
    fn drop(&mut self) {
        if let Err(error) = self.wait() {
            tracing::debug!("{error}"); // the step that failed says more
        }
    }
}
