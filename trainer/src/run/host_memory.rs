//! Whether a run fits the machine's memory, where the device is the CPU.

use common::UserError;
use common::format::bytes;
use device::Device;

use crate::ranks::Ranks;

/// What a rank takes of the machine's memory beside its device's: program, libraries, data under way.
const HEADROOM: usize = 64 << 20;

/// Fails where this machine's ranks need more memory than it has: its kernel would end one of them without a word.
pub(crate) fn fits_host(needed: usize, device: &Device, ranks: &Ranks) -> Result<(), UserError> {
    let scratch = device.host_scratch_bytes();
    let most = (ranks.max)((needed + scratch + HEADROOM) as u64) as usize;
    let free = device.free_host_memory();
    (ranks.barrier)(); // what another rank takes from here on is counted already
    match free {
        Some(free) if most.saturating_mul(ranks.local) > free => Err(UserError::new(
            format!(
                "a rank needs {} of memory ({} planned, {} while an operation runs, {} for all else), {} are free{}",
                bytes(most),
                bytes(needed),
                bytes(scratch),
                bytes(HEADROOM),
                bytes(free),
                if ranks.local > 1 { format!(" for {} ranks", ranks.local) } else { String::new() }
            ),
            "weights, optimizer state, activations and what operations need fit the machine's memory",
            "set a smaller train.micro_batch_size, recompute.granularity, fewer train.threads or ranks, or a smaller model; \
             `--dry-run` shows what takes how much",
        )),
        _ => Ok(()),
    }
}
