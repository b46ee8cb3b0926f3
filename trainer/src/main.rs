//! The trainer: one process per rank.

use std::path::Path;
use std::process::exit;

use launch::RankEnv;
use parallel::MpiWorld;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::prelude::*;
use trainer::cli::{Request, TrainRequest, parse};
use trainer::hf::convert;
use trainer::plan::RunPlan;
use trainer::run::{self, Ranks};

fn main() {
    let ranks = RankEnv::detect().unwrap_or_else(|error| fail(true, 2, &error.to_string()));
    let main = ranks.rank == 0;
    let request = match parse(std::env::args_os()) {
        Ok(Request::Train(request)) => request,
        Ok(Request::Print(text)) => {
            if main {
                println!("{}", text.trim_end());
            }
            return;
        }
        Ok(Request::Convert(request)) => {
            if main {
                match convert(&request.source, &request.target, request.direction) {
                    Ok(line) => println!("{line}"),
                    Err(error) => fail(true, 2, &error.to_string()),
                }
            }
            return;
        }
        Err(error) => fail(main, 2, &error.to_string()),
    };
    // All validation comes before MPI and the device are touched; only rank 0 speaks.
    let plan = RunPlan::new(request.config.clone(), ranks.world_size)
        .and_then(|plan| run::source(&plan).map(|_| plan))
        .unwrap_or_else(|error| fail(main, 2, &error.to_string()));
    if main {
        request.notices.iter().for_each(|notice| eprintln!("notice: {notice}"));
    }
    let filter = EnvFilter::try_new(&request.log).unwrap_or_else(|error| {
        let rule = "it is a level or target=level pairs";
        fail(main, 2, &format!("--log {}: {error}. Rule: {rule}. Fix: for example --log info", request.log))
    });
    log_to(filter, &request, ranks.rank);
    let code = train(&plan, &request, &ranks);
    exit(code);
}

/// Runs on all ranks; the exit code.
fn train(plan: &RunPlan, request: &TrainRequest, env: &RankEnv) -> i32 {
    let world = match MpiWorld::initialize() {
        Ok(world) if world.size() == env.world_size => world,
        Ok(world) => {
            let problem = format!(
                "MPI sees {} ranks, the launcher's environment {}. Rule: both are started together. \
                 Fix: use the mpirun that belongs to the MPI library this binary is linked with",
                world.size(),
                env.world_size
            );
            fail(true, 2, &problem)
        }
        Err(error) => fail(true, 3, &error.to_string()),
    };
    let threads = plan
        .config
        .train
        .threads
        .unwrap_or_else(|| launch::host_threads(launch::online_cores(), launch::allowed_cores(), env.local_size));
    let world = std::rc::Rc::new(world);
    let ranks = Ranks {
        rank: world.rank(),
        group: (world.size() > 1).then(|| world.communicator("data")),
        threads,
        barrier: std::rc::Rc::new({
            let world = world.clone();
            move || world.barrier()
        }),
    };
    match run::train(plan, request, &ranks) {
        Ok(_) => 0,
        Err(error) => {
            // Nothing is torn down on a fault: one line, then all ranks end.
            eprintln!("error on rank {}: {error}", ranks.rank);
            if world.size() > 1 {
                world.abort(error.exit_code());
            }
            error.exit_code()
        }
    }
}

/// Log messages: to the console on rank 0, as JSON to a file for each rank when the filter asks for more than warnings.
fn log_to(filter: EnvFilter, request: &TrainRequest, rank: usize) {
    let console = (rank == 0).then(|| tracing_subscriber::fmt::layer().with_writer(std::io::stderr));
    let folder = Path::new(&request.config.logging.dir);
    let wanted = request.log != "warn" && std::fs::create_dir_all(folder).is_ok();
    let file = wanted.then(|| std::fs::File::create(folder.join(format!("rank-{rank}.jsonl"))).ok()).flatten();
    let file = file.map(|file| tracing_subscriber::fmt::layer().json().with_writer(std::sync::Mutex::new(file)));
    tracing_subscriber::registry().with(filter).with(console).with(file).init();
}

fn fail(speak: bool, code: i32, message: &str) -> ! {
    if speak {
        eprintln!("error: {message}");
    }
    exit(code)
}
