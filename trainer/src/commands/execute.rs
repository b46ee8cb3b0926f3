//! From a parsed command line to an exit code.

use std::io::stdout;
use std::time::Instant;

use common::terminal::{print, warn};
use data::{TokenizeError, tokenize};
use launch::RankEnv;

use super::batches::write_batches;
use super::cli::Request;
use super::doctor::examine;
use super::interruption;
use super::sample::{self, Loaded, SampleRequest};
use super::train::train_or_bench;
use crate::checkpoint;
use crate::error::{RunError, file_error};
use crate::hf::convert;
use crate::run::accelerator::{Accelerator, Precision};
use crate::run::process_group::{fail, refuse};

/// Does what was asked for, and returns the exit code. The process began at `began`.
///
/// Of the commands that one process is enough for, rank 0 does the work and the other ranks return at once.
pub fn execute(request: Request, ranks: &RankEnv, began: Instant) -> i32 {
    let alone = |command: &str, rule: &str, fix: &str| {
        if ranks.world_size > 1 {
            refuse(ranks, &format!("{command} on {} ranks. Rule: {rule}. Fix: {fix}", ranks.world_size));
        }
    };
    match request {
        Request::Train(request) => train_or_bench(&request, None, ranks, began),
        // A dry run has nothing to measure, and prints the plan of what would be.
        Request::Bench(request, _) if request.dry_run => train_or_bench(&request, None, ranks, began),
        Request::Bench(request, steps) => train_or_bench(&request, Some(steps), ranks, began),
        Request::Doctor { options, device } => examine(options, &device, ranks),
        Request::Tokenize(request) => {
            alone("tokenize", "one process tokenises, with all cores that it may use", "start it without mpirun");
            let stop = interruption().map_err(TokenizeError::from);
            told(stop.and_then(|stop| tokenize(&request, &stop)).map_err(RunError::from))
        }
        Request::Supervise(request) => {
            let fix = format!("trainer supervise -- mpirun -n {} trainer", ranks.world_size);
            alone("supervise", "one process starts the ranks", &fix);
            request.run().map_or_else(|error| fail(true, 2, &error.to_string()), |ending| ending.exit_code())
        }
        _ if ranks.rank > 0 => 0,
        Request::Batches(request) => told(write_batches(&request)),
        Request::Print(text) => told(Ok(text.trim_end().into())),
        Request::ListCheckpoints(dir) => match checkpoint::list(&dir) {
            Ok((text, complete)) => {
                let printed = told(Ok(text.trim_end().into()));
                if complete { printed } else { 3 }
            }
            Err(error) => fail(true, 2, &error.to_string()),
        },
        Request::Convert(request) => told(convert(&request.source, &request.target, request.direction)),
        Request::Sample(request) => continue_text(&request, ranks),
    }
}

/// Prints the result of a command; the exit code.
fn told(result: Result<String, RunError>) -> i32 {
    let printed = result.and_then(|text| print(&text).map_err(file_error("standard output".into())));
    match printed {
        Ok(()) => 0,
        Err(error) => fail(true, error.exit_code(), &error.to_string()),
    }
}

/// Continues a text; the exit code.
fn continue_text(request: &SampleRequest, env: &RankEnv) -> i32 {
    let threads =
        request.threads.unwrap_or_else(|| launch::host_threads(launch::online_cores(), launch::allowed_cores(), 1));
    let done = Loaded::open(request).map_err(RunError::from).and_then(|loaded| {
        let accelerator = Accelerator::choose(&request.device, env)?;
        let device = accelerator.open(Precision::default(), threads, false)?;
        sample::sample(request, &loaded, &device, &mut stdout())
    });
    match done {
        Ok(line) => {
            warn(&line);
            0
        }
        Err(error) => fail(true, error.exit_code(), &error.to_string()),
    }
}
