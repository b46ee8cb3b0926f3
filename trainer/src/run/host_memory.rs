//! Whether a run on the host fits the machine's memory.

use common::UserError;
use common::format::bytes;
use device::Device;

use crate::ranks::Ranks;

/// The memory of a rank besides that of its device, bytes: program, libraries, data being read.
const HEADROOM: usize = 64 << 20;

/// Fails if the ranks of this machine need more memory than it has. The operating system would kill one of them without a
/// message.
pub(crate) fn fits_host(needed: usize, device: &Device, ranks: &Ranks) -> Result<(), UserError> {
    let scratch = device.host_scratch_bytes();
    let most = (ranks.max)((needed + scratch + HEADROOM) as u64) as usize;
    let free = device.free_host_memory();
    (ranks.barrier)(); // all ranks read the free memory before any rank takes some
    match free {
        Some(free) if most.saturating_mul(ranks.local) > free => Err(UserError::new(
            format!(
                "a rank needs {} of memory ({} planned, {} while an operation runs, {} for the rest), {} are free{}",
                bytes(most),
                bytes(needed),
                bytes(scratch),
                bytes(HEADROOM),
                bytes(free),
                if ranks.local > 1 { format!(" for {} ranks", ranks.local) } else { String::new() }
            ),
            "weights, optimizer state, activations and temporary buffers fit the machine's memory",
            "set a smaller train.micro_batch_size, recompute.granularity, fewer train.threads or ranks, or a smaller model; \
             `--dry-run` shows what needs how much",
        )),
        _ => Ok(()),
    }
}
