//! The trainer: one process per rank.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::exit;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use device::{Communicator, Device};
use launch::RankEnv;
use parallel::{Grid, MpiWorld, PipelineGroups, nccl_communicator, set_nccl_defaults};
use tracing_subscriber::EnvFilter;
use trainer::accelerator::{Accelerator, Precision};
use trainer::batches::write_batches;
use trainer::bench;
use trainer::checkpoint;
use trainer::cli::{Request, TrainRequest, parse};
use trainer::data::Source;
use trainer::doctor::{self, DoctorOptions};
use trainer::hf::convert;
use trainer::logs;
use trainer::plan::RunPlan;
use trainer::run::{self, Ranks, RunError};
use trainer::sample::{Loaded, SampleRequest};
use trainer::signals;
use trainer::terminal::{print, warn};
use trainer::watch::activity::Activity;
use trainer::watch::{Watch, WatchSettings};

fn main() {
    let began = Instant::now();
    set_nccl_defaults();
    let ranks = RankEnv::detect().unwrap_or_else(|error| fail(true, 2, &error.to_string()));
    let main = ranks.rank == 0;
    let (request, bench) = match parse(std::env::args_os()) {
        Ok(Request::Train(request)) => (request, None),
        Ok(Request::Bench(request, steps)) => (request, Some(steps)),
        Ok(Request::Doctor { options, device }) => exit(doctor(options, &device, &ranks)),
        Ok(Request::Tokenize(_)) if ranks.world_size > 1 => {
            let rule = "one process tokenises, with all cores that it may use";
            refuse(&ranks, &format!("tokenize on {} ranks. Rule: {rule}. Fix: start it without mpirun", ranks.world_size))
        }
        Ok(Request::Tokenize(request)) => match trainer::data::tokenize(&request) {
            Ok(report) => return print_or_fail(&report),
            Err(error) => fail(main, error.exit_code(), &error.to_string()),
        },
        Ok(Request::Batches(request)) => {
            if main {
                match write_batches(&request) {
                    Ok(report) => print_or_fail(&report),
                    Err(error) => fail(true, error.exit_code(), &error.to_string()),
                }
            }
            return;
        }
        Ok(Request::Print(text)) => {
            if main {
                print_or_fail(text.trim_end());
            }
            return;
        }
        Ok(Request::ListCheckpoints(dir)) => match checkpoint::list(&dir) {
            Ok(text) => {
                if main {
                    print_or_fail(text.trim_end());
                }
                return;
            }
            Err(error) => fail(main, 2, &error.to_string()),
        },
        Ok(Request::Convert(request)) => {
            if main {
                match convert(&request.source, &request.target, request.direction) {
                    Ok(line) => print_or_fail(&line),
                    Err(error) => fail(true, 2, &error.to_string()),
                }
            }
            return;
        }
        Ok(Request::Sample(request)) => {
            if main {
                exit(sample(&request, &ranks));
            }
            return;
        }
        Err(error) => refuse(&ranks, &error.to_string()),
    };
    // All validation comes before the device is touched; of the ranks that refuse, the first speaks.
    let (plan, source) = RunPlan::new(request.config.clone(), ranks.world_size)
        .and_then(|plan| run::source(&plan).map(|source| (plan, source)))
        .unwrap_or_else(|error| refuse(&ranks, &error.to_string()));
    let accelerator = Accelerator::choose(&plan.config.train.device, &ranks)
        .unwrap_or_else(|error| refuse(&ranks, &error.to_string()));
    if main {
        request.notices.iter().for_each(|notice| warn(&format!("notice: {notice}")));
    }
    let filter = EnvFilter::try_new(&request.log).unwrap_or_else(|error| {
        let rule = "it is a level or target=level pairs";
        refuse(&ranks, &format!("--log {}: {error}. Rule: {rule}. Fix: for example --log info", request.log))
    });
    let folder = (!request.dry_run && bench.is_none()).then(|| Path::new(&request.config.logging.dir));
    logs::start(filter, folder, ranks.rank).unwrap_or_else(|error| refuse(&ranks, &error.to_string()));
    exit(train(&plan, &request, &ranks, accelerator, source, bench.map(|steps| (steps, began))));
}

/// Trains on all ranks, or measures so many steps; the exit code.
fn train(
    plan: &RunPlan,
    request: &TrainRequest,
    env: &RankEnv,
    accelerator: Accelerator,
    source: Arc<dyn Source>,
    bench: Option<(usize, Instant)>,
) -> i32 {
    let open = |threads| {
        let deterministic = plan.config.train.deterministic;
        let tf32 = plan.config.precision.compute == "tf32";
        let device = accelerator.open(Precision { deterministic, tf32 }, threads, request.check_graphs)?;
        device.set_dry(request.dry_run);
        Ok(device)
    };
    let chunks = plan.config.parallel.virtual_pipeline;
    let layout = Layout { grid: plan.grid, ring: chunks > 1, shares_table: plan.shares_table() };
    on_all_ranks(env, layout, plan.config.train.threads, &plan.watch, open, |ranks, device| {
        let Some((steps, began)) = bench else { return run::train(plan, request, ranks, device, source).map(exit_code) };
        let result = bench::run(plan, ranks, device, steps, began)?;
        if ranks.rank == 0 {
            print(&serde_json::to_string_pretty(&result).unwrap_or_default())?;
        }
        Ok(0)
    })
}

/// Of a run that came to its end.
fn exit_code(outcome: Option<run::Outcome>) -> i32 {
    if outcome.is_none_or(|outcome| outcome.finite) { 0 } else { 3 }
}

/// Examines the machine; the exit code.
fn doctor(options: DoctorOptions, device: &str, env: &RankEnv) -> i32 {
    let accelerator = Accelerator::choose(device, env).unwrap_or_else(|error| refuse(env, &error.to_string()));
    let open = |threads| accelerator.open(Precision::default(), threads, false);
    let grid = Grid { tensor: 1, data: env.world_size, pipeline: 1 };
    let layout = Layout { grid, ring: false, shares_table: false };
    on_all_ranks(env, layout, None, &WatchSettings::default(), open, |ranks, device| {
        Ok(doctor::run(options, accelerator, device, ranks.group.as_ref()))
    })
}

/// Goes on with a text; the exit code.
fn sample(request: &SampleRequest, env: &RankEnv) -> i32 {
    let threads =
        request.threads.unwrap_or_else(|| launch::host_threads(launch::online_cores(), launch::allowed_cores(), 1));
    let done = Loaded::open(request).map_err(RunError::from).and_then(|loaded| {
        let accelerator = Accelerator::choose(&request.device, env)?;
        let device = accelerator.open(Precision::default(), threads, false)?;
        trainer::sample::sample(request, &loaded, &device, &mut std::io::stdout())
    });
    match done {
        Ok(line) => {
            warn(&line);
            0
        }
        Err(error) => fail(true, error.exit_code(), &error.to_string()),
    }
}

/// Starts MPI and the watch over ranks, opens the device, connects the ranks and does `work`; the exit code.
fn on_all_ranks(
    env: &RankEnv,
    layout: Layout,
    threads: Option<usize>,
    settings: &WatchSettings,
    open: impl FnOnce(usize) -> device::Result<Device>,
    work: impl FnOnce(&Ranks, &Device) -> Result<i32, RunError>,
) -> i32 {
    let world = match MpiWorld::initialize() {
        Ok(world) if world.size() == env.world_size => Rc::new(world),
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
    if first_of(&world, false) {
        world.barrier(); // another rank refuses, and says why
        return 2;
    }
    let watch = match Watch::start(env, settings, |text| world.text_of_rank_0(text)) {
        Ok(_) if first_of(&world, false) => {
            world.barrier();
            return 2;
        }
        Ok(watch) => watch.map(Rc::new),
        Err(error) => return refused(world, &error.to_string()),
    };
    let threads = threads
        .unwrap_or_else(|| launch::host_threads(launch::online_cores(), launch::allowed_cores(), env.local_size));
    // For set-up work outside of the device, such as first weights; it is there already only where tests made it.
    let _ = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
    // What is declared later is dropped first: communicators before the device, MPI last.
    let opened = open(threads).and_then(|device| {
        watch.as_ref().map_or(Ok(()), |watch| device.watch(watch.progress()))?;
        Ok(device)
    });
    let connected = opened.as_ref().map_err(Clone::clone).and_then(|device| connect(&world, device, layout));
    let done = match (&opened, connected) {
        (Ok(device), Ok(groups)) => {
            let ranks = team(&world, groups, env.local_size, threads, watch.as_ref());
            let done = catch_unwind(AssertUnwindSafe(|| work(&ranks, device)));
            if !matches!(done, Ok(Ok(_))) {
                std::mem::forget(ranks); // on a fault nothing is torn down
            }
            done.unwrap_or_else(|panic| Err(RunError::Panic(panic_text(&*panic))))
        }
        (Err(error), _) => Err(error.clone().into()),
        (_, Err(error)) => Err(error.into()),
    };
    let code = done.unwrap_or_else(|error| {
        if let Some(watch) = &watch {
            watch.fail(error.exit_code(), &error.to_string(), error.follows());
        }
        warn(&format!("error on rank {}: {error}", env.rank));
        if world.size() > 1 {
            world.abort(error.exit_code());
        }
        exit(error.exit_code())
    });
    drop(opened);
    drop(world);
    if let Some(watch) = &watch {
        watch.goodbye(); // after all that ranks do together, so that this too is watched
    }
    code
}

/// Whether some ranks cannot go on, and, if `here` says so of this one, whether it is the first of them. All ranks call
/// it together.
fn first_of(world: &MpiWorld, here: bool) -> bool {
    if world.size() == 1 {
        return here;
    }
    let first = world.min(if here { world.rank() as u64 } else { u64::MAX });
    if here { first == world.rank() as u64 } else { first < u64::MAX }
}

/// Ends this rank because its input is wrong, and with it all others, for which it may be right; the first to refuse
/// says why.
fn refuse(env: &RankEnv, problem: &str) -> ! {
    if env.world_size == 1 {
        fail(true, 2, problem);
    }
    match MpiWorld::initialize() {
        Ok(world) if world.size() == env.world_size => exit(refused(Rc::new(world), problem)),
        _ => fail(env.rank == 0, 2, problem),
    }
}

/// The first of the ranks that refuse says why, before any of them ends; the exit code.
fn refused(world: Rc<MpiWorld>, problem: &str) -> i32 {
    if first_of(&world, true) {
        warn(&format!("error: {problem}"));
    }
    world.barrier();
    2
}

/// What a panic said.
fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a word").into()
}

/// This process among the ranks; while it waits for them by MPI's means, that is seen by who watches.
fn team(world: &Rc<MpiWorld>, groups: Groups, local: usize, threads: usize, watch: Option<&Rc<Watch>>) -> Ranks {
    let Groups { tensor, data: group, pipeline } = groups;
    if let Some(watch) = watch {
        let stages = pipeline.iter().flat_map(PipelineGroups::communicators);
        let probes = tensor.iter().chain(&group).chain(stages).filter_map(|communicator| communicator.probe());
        probes.for_each(|probe| watch.ask(probe));
    }
    let shared = || (world.clone(), watch.cloned());
    let (waiting, comparing, telling) = (shared(), shared(), shared());
    Ranks {
        rank: world.rank(),
        group,
        tensor,
        pipeline,
        local,
        threads,
        barrier: Rc::new(move || together(&waiting.1, "barrier", || waiting.0.barrier())),
        max: Rc::new(move |value| match comparing.0.size() {
            1 => value,
            _ => together(&comparing.1, "all_reduce_max", || comparing.0.max(value)),
        }),
        of_rank_0: Rc::new(move |text| together(&telling.1, "broadcast", || telling.0.text_of_rank_0(text))),
        stop: signals::stop_flag()
            .unwrap_or_else(|error| fail(true, 3, &format!("signals cannot be handled: {error}"))),
        activity: watch.map_or_else(Activity::default, |watch| watch.activity()),
    }
}

/// Waits for all ranks, and lets that be seen.
fn together<T>(watch: &Option<Rc<Watch>>, name: &str, wait: impl FnOnce() -> T) -> T {
    match watch {
        Some(watch) => watch.waiting(&format!("{name} on world"), wait),
        None => wait(),
    }
}

/// Which ranks talk to each other.
#[derive(Clone, Copy)]
struct Layout {
    grid: Grid,
    /// The last stage feeds the first, which has more layers.
    ring: bool,
    /// The first and the last stage have a parameter in common.
    shares_table: bool,
}

/// This rank's groups of more than itself: the ranks that share layers, those that share the batch, and the stages.
struct Groups {
    tensor: Option<Rc<dyn Communicator>>,
    data: Option<Rc<dyn Communicator>>,
    pipeline: Option<PipelineGroups>,
}

/// Makes them on the device's own data plane.
fn connect(world: &MpiWorld, device: &Device, layout: Layout) -> device::Result<Groups> {
    let Layout { grid, ring, shares_table } = layout;
    let rank = world.rank();
    let mut connect = |name: &str, group: Vec<usize>| match device.gpu() {
        Some(_) if group.len() > 1 => nccl_communicator(world, name, &group).map(Some),
        // A rank that is alone takes part in cutting the world.
        _ => Ok(Some(world.split(name, &group)).filter(|_| group.len() > 1)),
    };
    Ok(Groups {
        tensor: connect("tensor", grid.tensor_group(rank))?,
        data: connect("data", grid.data_group(rank))?,
        pipeline: PipelineGroups::connect(&grid, rank, ring, shares_table, &mut connect)?,
    })
}

/// Prints what was asked for; ends the process where that cannot be.
fn print_or_fail(text: &str) {
    print(text).unwrap_or_else(|error| fail(true, error.exit_code(), &error.to_string()));
}

fn fail(speak: bool, code: i32, message: &str) -> ! {
    if speak {
        warn(&format!("error: {message}"));
    }
    exit(code)
}
