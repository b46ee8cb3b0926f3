//! `trainer doctor` on all ranks.

use launch::RankEnv;
use launch::watch::WatchSettings;
use parallel::Grid;

use super::{DoctorOptions, run};
use crate::run::accelerator::{Accelerator, Precision};
use crate::run::process_group::{Layout, on_all_ranks, refuse};

/// Examines the machine; the exit code.
pub fn examine(options: DoctorOptions, device: &str, env: &RankEnv) -> i32 {
    let accelerator = Accelerator::choose(device, env).unwrap_or_else(|error| refuse(env, &error.to_string()));
    let open = |threads| accelerator.open(Precision::default(), threads, false);
    let grid = Grid { tensor: 1, data: env.world_size, pipeline: 1 };
    let layout = Layout { grid, ring: false, shares_table: false };
    let told = format!("device = {}\n", accelerator.kind());
    on_all_ranks(env, layout, &told, None, &WatchSettings::default(), open, |ranks, device| {
        Ok(run(options, accelerator, device, ranks.group.as_ref()))
    })
}
