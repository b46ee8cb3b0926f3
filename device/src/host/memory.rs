//! Memory of the host device.

/// Blocks up to this many bytes are asked for without a look at what is free.
const SMALL: usize = 1 << 20;

/// Bytes that processes can still take, by the system's own estimate; `None` where it makes none.
pub(crate) fn available() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}

/// 64 bytes, the alignment every buffer has.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([u8; 64]);

/// A zeroed block of host memory at a fixed address.
pub(crate) struct Block {
    lines: Vec<Line>,
}

impl Block {
    /// `None` when the system has not that much. It would promise more than it has, and end the process on use.
    pub(crate) fn new(bytes: usize) -> Option<Block> {
        if bytes > SMALL && available().is_some_and(|free| bytes > free) {
            return None;
        }
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
