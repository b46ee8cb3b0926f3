//! Whether a run on the host fits the machine's memory.

use common::UserError;
use common::format::bytes;
use device::Device;

use crate::process_group::ProcessGroup;

/// Bytes of memory that a rank needs.
#[derive(Clone, Copy)]
pub(crate) struct Needs {
    /// Memory of the rank's device.
    pub(crate) device: usize,
    /// Of the host beside a device, for tensors that wait there.
    pub(crate) on_host: usize,
    /// Memory for the rank's part of the states in shared memory that are to come.
    pub(crate) states: usize,
}

/// Bytes that a rank needs besides the device's memory: for the program, libraries and data.
const HEADROOM: usize = 64 << 20;

/// Fails if the ranks of this machine need more memory than the machine has, on the host device. The operating system
/// would kill one of them without a message. `cheaper` names settings that need less.
pub(crate) fn fits_host(
    needs: Needs,
    device: &Device,
    group: &ProcessGroup,
    cheaper: impl Fn() -> String,
) -> Result<(), UserError> {
    let Needs { device: needed, on_host, states } = needs;
    let needed = needed + on_host;
    let scratch = device.host_scratch_bytes();
    let most = group.control.max((needed + scratch + HEADROOM) as u64) as usize;
    // All ranks are on this machine if there are states.
    let states = group.control.sum(states as u64) as usize;
    let free = device.free_host_memory().filter(|_| device.gpu().is_none());
    group.control.barrier(); // all ranks read the free memory before any rank takes some
    match free {
        Some(free) if most.saturating_mul(group.local_size).saturating_add(states) > free => Err(UserError::new(
            format!(
                "a rank needs {} of memory ({} planned, {} while an operation runs, {} for the rest){}, {} are free{}",
                bytes(most),
                bytes(needed),
                bytes(scratch),
                bytes(HEADROOM),
                if states > 0 { format!(", states in shared memory {}", bytes(states)) } else { String::new() },
                bytes(free),
                if group.local_size > 1 { format!(" for {} ranks", group.local_size) } else { String::new() }
            ),
            "weights, optimizer state, activations and temporary buffers fit the machine's memory",
            format!(
                "set a smaller train.micro_batch_size, fewer train.threads or ranks, or a smaller model{}{}; `--dry-run` \
                 shows what needs how much",
                if states > 0 { ", or checkpoint.memory_interval = 0" } else { "" },
                cheaper()
            ),
        )),
        _ => Ok(()),
    }
}

/// Fails if the ranks of this machine need more page-locked memory beside the GPUs than the machine has.
pub(crate) fn fits_beside_gpus(needs: Needs, device: &Device, group: &ProcessGroup) -> Result<(), UserError> {
    let on_host = group.control.max(needs.on_host as u64) as usize;
    let free = device.free_host_memory();
    group.control.barrier(); // all ranks read the free memory before any rank takes some
    match free {
        Some(free) if on_host.saturating_mul(group.local_size) > free => Err(UserError::new(
            format!(
                "a rank needs {} of the machine's memory for what leaves its device, {} are free{}",
                bytes(on_host),
                bytes(free),
                if group.local_size > 1 { format!(" for {} ranks", group.local_size) } else { String::new() },
            ),
            "activations and state of the optimizer on the host are page-locked: they fit the machine's memory",
            "set a smaller offload.activation_layers, recompute.granularity = \"full\", which saves less, or a smaller \
             offload.optimizer_fraction",
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use device::HostOptions;

    use super::*;

    #[test]
    fn states_in_shared_memory_count() {
        let device = Device::host(HostOptions { threads: 1, check: false, dry: false }).unwrap();
        let group = ProcessGroup::single(1);
        let fits = |states| fits_host(Needs { device: 0, on_host: 0, states }, &device, &group, String::new);
        assert!(fits(0).is_ok());
        let error = fits(1 << 50).unwrap_err().to_string();
        assert!(error.contains("for the rest), states in shared memory 1024.00 TiB, "), "{error}");
    }
}
