//! From a request to an exit code.

use std::time::Instant;

use common::terminal::{print, warn};
use launch::RankEnv;
use launch::watch::WatchSettings;

use super::cli::{Request, command};
use super::{batches, chat, convert, doctor, eval, inspect, manual, plan, report, sample, tokenize, top, train};
use crate::checkpoint;
use crate::config::DeviceChoice;
use crate::config::watch::watch_settings;
use crate::error::{RunError, file_error};
use crate::run::ranks::{fail, refuse};

/// Does what was asked for; returns the exit code. The process started at `started`.
///
/// Some commands need only one process. Then rank 0 does the work, and the other ranks return at once.
pub fn execute(request: Request, env: &RankEnv, started: Instant) -> i32 {
    let refuse_ranks = |command: &str, rule: &str, fix: &str| {
        if env.world_size > 1 {
            refuse(env, &format!("{command} on {} ranks. Rule: {rule}. Fix: {fix}", env.world_size));
        }
    };
    match request {
        Request::Train(request) => train::train(&request, env),
        Request::Bench(request) => train::bench(&request, env, started),
        Request::Profile(request) => train::profile(&request, env),
        Request::Evaluate(request) => eval::run(&request, env),
        Request::Doctor(request) => doctor::run(&request, env),
        Request::Tokenize(request) => {
            refuse_ranks("tokenize", "one process tokenises, on all cores that it may use", "start it without mpirun");
            finish(tokenize::run(&request))
        }
        Request::Launch(launch, request) => {
            let (config, device) = match &*request {
                Request::Train(run) => (Some(&run.config), run.config.train.device),
                Request::Bench(bench) => (Some(&bench.run.config), bench.run.config.train.device),
                Request::Profile(profile) => (Some(&profile.run.config), profile.run.config.train.device),
                Request::Evaluate(eval) => (Some(&eval.run.config), eval.run.config.train.device),
                Request::Doctor(doctor) => (None, doctor.device),
                _ => (None, DeviceChoice::Host),
            };
            let watch = config.map_or(Ok(WatchSettings::default()), |config| watch_settings(&config.parallel));
            let code = launch.check(config, device, env).and_then(|ranks| match ranks {
                // A single rank is this process itself, and needs no mpirun.
                1 => Ok(execute(*request, &RankEnv::local(1), started)),
                _ => launch.run(ranks, &watch?),
            });
            code.unwrap_or_else(|error| fail(true, 2, &error.to_string()))
        }
        Request::Supervise(request) => {
            let fix = format!("trainer supervise -- trainer launch -n {} -- FLAGS", env.world_size);
            refuse_ranks("supervise", "one process starts the ranks", &fix);
            request.run().map_or_else(|error| fail(true, 2, &error.to_string()), |ending| ending.exit_code())
        }
        _ if env.rank > 0 => 0,
        Request::Batches(request) => finish(batches::write_batches(&request)),
        Request::Job(job) => {
            job.notices.iter().for_each(|notice| warn(&format!("notice: {notice}")));
            finish(Ok(job.text.trim_end().into()))
        }
        Request::Plan(request) => finish(plan::run(&request)),
        Request::Manual(folder) => finish(manual::write(command(), &folder)),
        Request::Print(text) => finish(Ok(text.trim_end().into())),
        Request::ListCheckpoints(dir) => match checkpoint::list(&dir) {
            Ok((text, complete)) => {
                let printed = finish(Ok(text.trim_end().into()));
                if complete { printed } else { 3 }
            }
            Err(error) => fail(true, 2, &error.to_string()),
        },
        Request::Inspect(request) => finish(inspect::run(&request)),
        Request::Report(request) => finish(report::run(&request)),
        Request::Top(folder) => finish(top::run(&folder)),
        Request::Convert(request) => finish(convert::run(&request)),
        Request::Sample(request) => sample::run(&request, env),
        Request::Chat(request) => chat::run(&request, env),
    }
}

/// Prints the result of a command, or fails with its error; returns the exit code.
fn finish(result: Result<String, RunError>) -> i32 {
    let printed = result.and_then(|text| print(&text).map_err(file_error("standard output".into())));
    match printed {
        Ok(()) => 0,
        Err(error) => fail(true, error.exit_code(), &error.to_string()),
    }
}
