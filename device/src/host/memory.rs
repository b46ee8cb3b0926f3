//! Memory of the host device.

/// 64 bytes, the alignment every buffer has.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([u8; 64]);

/// A zeroed block of host memory at a fixed address.
pub(crate) struct Block {
    lines: Vec<Line>,
}

impl Block {
    /// `None` when the system has not that much.
    pub(crate) fn new(bytes: usize) -> Option<Block> {
        let count = bytes.div_ceil(64);
        let mut lines = Vec::new();
        lines.try_reserve_exact(count).ok()?;
        lines.resize(count, Line([0; 64]));
        Some(Block { lines })
    }

    /// The address; it stays the same for as long as the block lives, and kernels may write through it.
    pub(crate) fn address(&mut self) -> u64 {
        self.lines.as_mut_ptr().expose_provenance() as u64
    }
}
