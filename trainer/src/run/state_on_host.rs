//! `offload.optimizer` without a share: only as much of the optimizer's state lies on the host as the GPU has no room for.

use common::format::bytes;
use device::Device;

use crate::config::plan::{RunPlan, StateOnHost};
use crate::error::RunError;
use crate::process_group::ProcessGroup;
use crate::told::tell;

/// Shares are multiples of one over this.
const PARTS: usize = 64;

/// The least share of the state whose absence lets a rank fit into `room` bytes; 1 if nothing does. `needs` says what a rank
/// needs if a share lies on the host.
///
/// # Errors
/// The errors of `needs`.
pub fn least_share(room: usize, mut needs: impl FnMut(f64) -> Result<usize, RunError>) -> Result<f64, RunError> {
    let none = needs(0.0)?;
    if none <= room {
        return Ok(0.0);
    }
    let all = needs(1.0)?;
    if all > room || all >= none {
        return Ok(1.0);
    }
    // A straight line, but for whole parameters, and for parts that are on their way.
    let mut part = PARTS * (none - room) / (none - all) + 1;
    let mut more = 1;
    while part < PARTS {
        let share = part as f64 / PARTS as f64;
        if needs(share)? <= room {
            return Ok(share);
        }
        (part, more) = (part + more, 2 * more);
    }
    Ok(1.0)
}

/// The plan with the share of the state that leaves this GPU, the same on all ranks. A 32nd of the GPU's memory stays free,
/// for graphs and small errors. `needs` says what a rank needs. All ranks call it together.
pub(super) fn resolved(
    plan: &RunPlan,
    device: &Device,
    group: &ProcessGroup,
    needs: impl Fn(&RunPlan) -> Result<usize, RunError>,
) -> Result<RunPlan, RunError> {
    if plan.parallel.state_on_host != StateOnHost::AsNeeded {
        return Ok(plan.clone());
    }
    let say = |line: String| {
        if group.rank() == 0 {
            tell(&line);
        }
    };
    let Some((free, total)) = device.gpu_memory()? else {
        say("notice: offload.optimizer moves nothing, for the host device computes in the host's memory; \
             offload.optimizer_fraction = 1 moves all"
            .into());
        return Ok(plan.with_state_on_host(0.0));
    };
    let room = group.control.min(free.saturating_sub(total / 32) as u64) as usize;
    let mut at_home = 0;
    let share = least_share(room, |share| {
        let most = group.control.max(needs(&plan.with_state_on_host(share))? as u64) as usize;
        at_home = at_home.max(most);
        Ok(most)
    })?;
    let part = if share > 0.0 { format!("{:.1} %", share * 100.0) } else { "nothing".into() };
    say(format!(
        "offload.optimizer: {part} of the optimizer's state lies on the host: with all on the GPU a rank needs {}, and {} \
         are free beside a 32nd that stays so",
        bytes(at_home),
        bytes(room)
    ));
    Ok(plan.with_state_on_host(share))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_does_not_fit_leaves() {
        // 100 bytes, of which 64 can leave; small shares free less than they say.
        let share = |room: usize, lost: f64| {
            let mut tried = 0;
            let found = least_share(room, |share| {
                tried += 1;
                let freed = if share < 1.0 { (64.0 * share - lost).max(0.0) } else { 64.0 };
                Ok(100 - freed as usize)
            });
            (found.unwrap(), tried)
        };
        assert_eq!(share(100, 0.0), (0.0, 1));
        assert_eq!(share(90, 0.0), (11.0 / 64.0, 3));
        assert_eq!(share(90, 2.0), (12.0 / 64.0, 4));
        assert_eq!(share(36, 0.0), (1.0, 2));
        assert_eq!(share(35, 0.0).0, 1.0, "all of it leaves, and that is too little");
    }
}
