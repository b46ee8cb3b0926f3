//! The trainer: one process per rank.

use std::path::Path;
use std::process::exit;

use device::{Device, HostOptions};
use launch::RankEnv;
use parallel::{MpiWorld, nccl_communicator, set_nccl_defaults};
use tracing_subscriber::EnvFilter;
use trainer::accelerator::Accelerator;
use trainer::cli::{Request, TrainRequest, parse};
use trainer::logs;
use trainer::plan::RunPlan;
use trainer::run::{self, Ranks, RunError};

fn main() {
    set_nccl_defaults();
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
        Err(error) => fail(main, 2, &error.to_string()),
    };
    // All validation comes before MPI and the device are touched; only rank 0 speaks.
    let plan = RunPlan::new(request.config.clone(), ranks.world_size)
        .and_then(|plan| run::source(&plan).map(|_| plan))
        .unwrap_or_else(|error| fail(main, 2, &error.to_string()));
    let accelerator = Accelerator::choose(&plan.config.train.device, &ranks)
        .unwrap_or_else(|error| fail(main, 2, &error.to_string()));
    if main {
        request.notices.iter().for_each(|notice| eprintln!("notice: {notice}"));
    }
    let filter = EnvFilter::try_new(&request.log).unwrap_or_else(|error| {
        let rule = "it is a level or target=level pairs";
        fail(main, 2, &format!("--log {}: {error}. Rule: {rule}. Fix: for example --log info", request.log))
    });
    let folder = (!request.dry_run).then(|| Path::new(&request.config.logging.dir));
    logs::start(filter, folder, ranks.rank).unwrap_or_else(|error| fail(main, 2, &error.to_string()));
    let code = train(&plan, &request, &ranks, accelerator);
    exit(code);
}

/// Runs on all ranks; the exit code.
fn train(plan: &RunPlan, request: &TrainRequest, env: &RankEnv, accelerator: Accelerator) -> i32 {
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
    let fault = |error: &RunError| {
        // Nothing is torn down on a fault: one line, then all ranks end.
        eprintln!("error on rank {}: {error}", env.rank);
        if world.size() > 1 {
            world.abort(error.exit_code());
        }
        error.exit_code()
    };
    let opened = if request.dry_run {
        Device::host(HostOptions { threads, check: false, dry: true })
    } else {
        accelerator.open(plan, threads, request.check_graphs)
    };
    // The device outlives the communicators, which are made on it.
    let device = match opened {
        Ok(device) => device,
        Err(error) => return fault(&error.into()),
    };
    let group = match (world.size(), device.gpu()) {
        (1, _) => Ok(None),
        (_, Some(_)) => nccl_communicator(&world, "data").map(Some),
        (_, None) => Ok(Some(world.communicator("data"))),
    };
    let group = match group {
        Ok(group) => group,
        Err(error) => return fault(&error.into()),
    };
    let ranks = Ranks {
        rank: world.rank(),
        group,
        threads,
        barrier: std::rc::Rc::new({
            let world = world.clone();
            move || world.barrier()
        }),
    };
    match run::train(plan, request, &ranks, &device) {
        Ok(_) => 0,
        Err(error) => fault(&error),
    }
}

fn fail(speak: bool, code: i32, message: &str) -> ! {
    if speak {
        eprintln!("error: {message}");
    }
    exit(code)
}
