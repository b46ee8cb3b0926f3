//! The command line of `trainer doctor`, and its start on all ranks.

use clap::{Arg, ArgAction, ArgMatches, Command};
use launch::RankEnv;
use launch::watch::WatchSettings;

use super::{DoctorRequest, check};
use crate::commands::args::device_flag;
use crate::config::DeviceChoice;
use crate::run::accelerator::{Accelerator, Exactness};
use crate::run::ranks::{Topology, on_all_ranks, refuse};

pub(crate) fn command() -> Command {
    let switch =
        |name: &'static str, help: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue).help(help);
    Command::new("doctor")
        .about("Checks the machine: libraries, every operation against the host device, speed")
        .arg(switch("json", "Print JSON"))
        .arg(switch("quick", "Do not measure rates"))
        .arg(device_flag("Device to examine"))
}

pub(crate) fn request(matches: &ArgMatches) -> DoctorRequest {
    DoctorRequest {
        device: matches.get_one("device").copied().unwrap_or(DeviceChoice::Auto),
        quick: matches.get_flag("quick"),
        json: matches.get_flag("json"),
    }
}

/// Checks the machine on all ranks; returns the exit code.
pub(crate) fn run(request: DoctorRequest, env: &RankEnv) -> i32 {
    let accelerator = Accelerator::choose(request.device, env).unwrap_or_else(|error| refuse(env, &error.to_string()));
    let open = |threads| accelerator.open(Exactness::default(), threads, false);
    let topology = Topology::data_parallel(env.world_size);
    let settings = format!("device = {}\n", accelerator.kind());
    on_all_ranks(env, topology, &settings, None, &WatchSettings::default(), open, |group, device| {
        Ok(check(request, accelerator, device, group.data.as_ref()))
    })
}
