//! From a request to an exit code.

use std::ffi::OsString;
use std::time::Instant;

use common::terminal::{print, warn};
use common::{Mistakes, UserError};
use launch::RankEnv;
use launch::watch::WatchSettings;

use super::cli::{Request, command, read};
use super::launch::LaunchRequest;
use super::{
    batches, chat, convert, doctor, eval, import, inspect, manual, plan, report, sample, tokenize, tokenizer, top,
    train, verify,
};
use trainer::checkpoint;
use trainer::config::DeviceChoice;
use trainer::config::plan::watch_settings;
use trainer::error::{RunError, file_error};
use trainer::run::ranks::{fail, refuse};

/// The request of a command line, for this process. `arguments` begin with the program's name.
///
/// # Errors
/// Everything that is wrong with it; then also everything that is wrong with the run that it asks for, with its files and
/// ranks.
pub fn request(arguments: impl IntoIterator<Item = OsString>, env: &RankEnv) -> Result<Request, UserError> {
    let mut mistakes = Mistakes::default();
    let request = read(arguments, &mut mistakes);
    if !mistakes.is_empty() {
        match &request {
            Some(Request::Train(run)) => drop(train::check(run, false, env, &mut mistakes)),
            Some(Request::Bench(bench)) => drop(train::check(&bench.run, true, env, &mut mistakes)),
            Some(Request::Profile(profile)) => drop(train::check(&profile.run, true, env, &mut mistakes)),
            Some(Request::Sample(request)) => drop(sample::check(request, env, &mut mistakes)),
            Some(Request::Chat(request)) => drop(chat::check(request, env, &mut mistakes)),
            Some(Request::Tokenize(request)) => {
                request.check(&mut mistakes);
            }
            Some(Request::Convert(request)) => request.check(&mut mistakes),
            Some(Request::Launch(launch, request)) => drop(check_launch(launch, request, env, &mut mistakes)),
            _ => {}
        }
    }
    mistakes.end()?;
    request.ok_or_else(|| UserError::new("the command line", "it asks for a command", "see `trainer --help`"))
}

/// Checks the run of ranks that are to be started; returns the number of ranks.
fn check_launch(launch: &LaunchRequest, request: &Request, env: &RankEnv, mistakes: &mut Mistakes) -> usize {
    let (config, device) = match request {
        Request::Train(run) => (Some(&run.config), run.config.train.device),
        Request::Bench(bench) => (Some(&bench.run.config), bench.run.config.train.device),
        Request::Profile(profile) => (Some(&profile.run.config), profile.run.config.train.device),
        Request::Evaluate(eval) => (Some(&eval.run.config), eval.run.config.train.device),
        Request::Doctor(doctor) => (None, doctor.device),
        _ => (None, DeviceChoice::Host),
    };
    let ranks = launch.check(config, device, env, mistakes);
    if let Request::Train(run) = request
        && !run.dry_run
    {
        train::check_files(&run.config, 0, mistakes);
    }
    ranks
}

/// Carries out the request; returns the exit code. The process started at `started`.
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
        Request::TrainTokenizer(request) => {
            refuse_ranks(
                "tokenizer",
                "one process makes a tokenizer, on all cores that it may use",
                "start it without mpirun",
            );
            finish(tokenizer::run(&request))
        }
        Request::Tokenize(request) => {
            refuse_ranks("tokenize", "one process tokenises, on all cores that it may use", "start it without mpirun");
            finish(tokenize::run(&request))
        }
        Request::Launch(launch, request) => {
            let config = match &*request {
                Request::Train(run) => Some(&run.config),
                Request::Bench(bench) => Some(&bench.run.config),
                Request::Profile(profile) => Some(&profile.run.config),
                Request::Evaluate(eval) => Some(&eval.run.config),
                _ => None,
            };
            let watch = config.map_or(Ok(WatchSettings::default()), |config| watch_settings(&config.parallel));
            let mut mistakes = Mistakes::default();
            let ranks = check_launch(&launch, &request, env, &mut mistakes);
            let code = mistakes.end().and_then(|()| match ranks {
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
        Request::VerifyLayout(request) => finish(verify::run(&request)),
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
        Request::Import(request) => finish(import::run(&request).map(|text| text.trim_end().into())),
        Request::Sample(request) => summarise(sample::run(&request, env)),
        Request::Chat(request) => summarise(chat::run(&request, env)),
    }
}

/// Shows the summary of a command that has printed the result, or fails with the command's error; returns the exit code.
fn summarise(result: Result<String, RunError>) -> i32 {
    finished(result.map(|summary| warn(&summary)))
}

/// Prints the result of a command, or fails with the command's error; returns the exit code.
fn finish(result: Result<String, RunError>) -> i32 {
    finished(result.and_then(|text| print(&text).map_err(file_error("standard output".into()))))
}

fn finished(result: Result<(), RunError>) -> i32 {
    match result {
        Ok(()) => 0,
        Err(error) => fail(true, error.exit_code(), &error.to_string()),
    }
}
