//! Starts and ends all ranks of a run together: MPI, the watch, the device and the communicators.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::exit;
use std::rc::Rc;
use std::time::Duration;

use common::format::counted;
use common::terminal::warn;
use common::{UserError, panic_text};
use device::{Communicator, Device};
use launch::watch::activity::Activity;
use launch::watch::joining::Joining;
use launch::watch::{Watch, WatchSettings, last_words};
use launch::{RankEnv, signals};
use parallel::{Connections, Ranks, World, suits_peer_memory};

use crate::config::TensorTransfers;
use crate::error::RunError;
use crate::process_group::{Control, ProcessGroup};
use crate::run::consistency::check_settings;

/// How long a rank that refuses wrong input waits for the others, so that only one rank says why. The
/// others may still read data, or hang.
const OTHERS_COME: Duration = Duration::from_secs(60);

/// How the ranks of a run join.
pub struct Joined<'j> {
    /// The groups that the ranks form.
    pub connections: &'j Connections,
    /// How ranks that share layers exchange tensors on GPUs.
    pub transfers: TensorTransfers,
    /// The settings that must be the same on all ranks.
    pub shared: &'j str,
    /// Threads of a rank; `None`: its share of the machine's cores.
    pub threads: Option<usize>,
    /// How ranks watch each other.
    pub watch: &'j WatchSettings,
}

/// Starts MPI and the watch over ranks, opens the device, connects the ranks and does `work`; returns the exit code.
pub fn on_all_ranks(
    env: &RankEnv,
    joined: Joined<'_>,
    open: impl FnOnce(usize) -> device::Result<Device>,
    work: impl FnOnce(&ProcessGroup, &Device) -> Result<i32, RunError>,
) -> i32 {
    let Joined { connections, transfers, shared, threads, watch: settings } = joined;
    let joining = Joining::begin(env, settings)
        .unwrap_or_else(|error| fail(true, 3, &format!("the watch over ranks cannot start: {error}")));
    let world = Rc::new(whole_world(env));
    // Other ranks may already have refused their input: see `refuse`.
    let agreed = agreed(&world, Ok::<(), UserError>(()))
        .and_then(|()| agreed(&world, check_settings(env.rank, shared, &world.broadcast_text(0, shared.into()))))
        .and_then(|()| agreed(&world, Watch::start(env, settings, |text| world.broadcast_text(0, text))));
    let watch = match agreed {
        Ok(watch) => watch.map(Rc::new),
        Err(code) => return code,
    };
    drop(joining);
    let threads = threads
        .unwrap_or_else(|| launch::host_threads(launch::online_cores(), launch::allowed_cores(), env.local_size));
    // These threads are for set-up work outside of the device, such as first weights. They can exist already only in tests.
    let _ = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
    let opened = open(threads).and_then(|device| {
        watch.as_ref().map_or(Ok(()), |watch| device.watch(watch.progress()))?;
        Ok(device)
    });
    let mut made = Vec::new();
    let connected = opened.as_ref().map_err(|error| RunError::from(error.clone())).and_then(|device| {
        one_gpu_each(&world, device)?;
        Ok((device, connect(&world, device, connections, transfers, watch.as_ref(), &mut made)?))
    });
    let done = match connected {
        Ok((device, ranks)) => {
            let group = ProcessGroup {
                ranks,
                local_size: env.local_size,
                threads,
                control: Control::new(world.clone(), watch.clone()),
                stop: signals::listen()
                    .unwrap_or_else(|error| fail(true, 3, &format!("signals cannot be handled: {error}"))),
                activity: watch.as_ref().map_or_else(Activity::default, |watch| watch.activity()),
            };
            let done = catch_unwind(AssertUnwindSafe(|| work(&group, device)));
            done.unwrap_or_else(|panic| Err(RunError::Panic(panic_text(&*panic))))
        }
        Err(error) => Err(error),
    };
    let code = done.unwrap_or_else(|error| {
        if let Some(watch) = &watch {
            watch.fail(error.exit_code(), &error.to_string(), error.follows());
        }
        last_words(&format!("error on rank {}: {error}", env.rank), true);
        world.abort(error.exit_code())
    });
    // On a fault nothing is torn down. Otherwise the ranks of a communicator destroy it together, so every rank
    // destroys its communicators in the order of their creation. The device follows, and MPI comes last.
    made.into_iter().for_each(drop);
    drop(opened);
    drop(world);
    if let Some(watch) = &watch {
        watch.goodbye(); // last, so that the watch covers everything that ranks do together
    }
    code
}

/// All ranks of the run. MPI is started only if a launcher started this process.
fn world(env: &RankEnv) -> Result<World, UserError> {
    match env.launcher {
        Some(_) => World::mpi(),
        None => Ok(World::single()),
    }
}

/// The same for a run that is watched. A process that cannot join ends here.
fn whole_world(env: &RankEnv) -> World {
    match world(env) {
        Ok(world) if world.size() == env.world_size => world,
        Ok(world) => {
            let problem = format!(
                "MPI sees {}, the launcher's environment {}. Rule: both are started together. \
                 Fix: use the mpirun that belongs to the MPI that libtrainer_mpi.so was built with",
                counted(world.size(), "rank"),
                env.world_size
            );
            fail(true, 2, &problem)
        }
        // The other ranks of this node find the same.
        Err(error) => fail(env.local_rank == 0, 2, &error.to_string()),
    }
}

/// This rank's result, if all ranks succeeded. Otherwise the first rank that failed prints why before any rank ends, and all
/// get the exit code. All ranks call it together.
fn agreed<T, E: Display>(world: &World, here: Result<T, E>) -> Result<T, i32> {
    let speaks = first_of(world, here.is_err());
    match here {
        Ok(made) if !speaks => return Ok(made),
        Ok(_) => {} // another rank failed, and prints why
        Err(error) if speaks => warn(&format!("error: {error}")),
        Err(_) => {}
    }
    world.barrier();
    Err(2)
}

/// On a rank that failed (`here`): whether it is the failed rank with the lowest number. On the others: whether any rank
/// failed. All ranks call it together.
fn first_of(world: &World, here: bool) -> bool {
    if world.size() == 1 {
        return here;
    }
    let first = world.min(if here { world.rank() as u64 } else { u64::MAX });
    if here { first == world.rank() as u64 } else { first < u64::MAX }
}

/// Ends this rank because of wrong input. All other ranks end too, even if their input is right. Of the ranks that
/// refuse, only the first prints why.
pub fn refuse(env: &RankEnv, problem: &str) -> ! {
    if env.world_size == 1 {
        fail(true, 2, problem);
    }
    let line = format!("error: {problem}");
    let _joining = Joining::limit(env, OTHERS_COME, line, 2);
    match world(env) {
        Ok(world) if world.size() == env.world_size => exit(agreed(&world, Err::<(), _>(problem)).err().unwrap_or(2)),
        _ => fail(env.rank == 0, 2, problem),
    }
}

/// Fails on all ranks if two ranks of one host have the same GPU. That can happen if a launcher shows each rank a single GPU.
///
/// NCCL refuses it too, unless NCCL_MULTI_RANK_GPU_ENABLE is 1 (from version 2.30 on). It takes ranks with another
/// `NCCL_HOSTID` for those of another host, so any parallel layout can be tried, slowly, on a small machine.
fn one_gpu_each(world: &World, device: &Device) -> Result<(), UserError> {
    let Some(gpu) = device.gpu().filter(|_| std::env::var("NCCL_MULTI_RANK_GPU_ENABLE").as_deref() != Ok("1")) else {
        return Ok(());
    };
    let here = format!("{} {}", std::env::var("NCCL_HOSTID").unwrap_or_default(), gpu.uuid);
    let all: Vec<String> = (0..world.size()).map(|rank| world.broadcast_text(rank, here.clone())).collect();
    let Some((first, second)) = first_twice(&all) else { return Ok(()) };
    Err(UserError::new(
        format!("ranks {first} and {second} have the same GPU, {}", all[first].trim_start()),
        "each rank has a GPU of its own",
        "show all ranks of a node all of its GPUs (or each a different one, CUDA_VISIBLE_DEVICES, for slower transfers); \
         to try a parallel layout on fewer GPUs, give each of these ranks a different NCCL_HOSTID",
    ))
}

/// The first two indices with the same text.
fn first_twice(texts: &[String]) -> Option<(usize, usize)> {
    (0..texts.len()).find_map(|at| texts[..at].iter().position(|text| *text == texts[at]).map(|first| (first, at)))
}

/// Connects this rank with the others, over NCCL for GPUs and over MPI for hosts. Also adds its communicators to `made`, in
/// order.
fn connect(
    world: &World,
    device: &Device,
    connections: &Connections,
    transfers: TensorTransfers,
    watch: Option<&Rc<Watch>>,
    made: &mut Vec<Rc<dyn Communicator>>,
) -> device::Result<Rc<Ranks>> {
    Ranks::connect(connections, world.rank(), &mut |name, group| {
        let communicator = match device.gpu() {
            Some(gpu) if transfers == TensorTransfers::Auto && suits_peer_memory(name) => {
                world.peer_communicator(name, &group, &gpu)?
            }
            Some(_) => world.nccl_communicator(name, &group)?,
            None => world.host_communicator(name, &group),
        };
        if let (Some(watch), Some(probe)) = (watch, communicator.as_ref().and_then(|made| made.probe())) {
            watch.add_probe(probe);
        }
        made.extend(communicator.clone());
        Ok(communicator)
    })
}

/// Ends this process with the exit code. Prints the error if this process is the one to `speak`.
pub fn fail(speak: bool, code: i32, message: &str) -> ! {
    if speak {
        warn(&format!("error: {message}"));
    }
    exit(code)
}

#[cfg(test)]
mod tests {
    use super::first_twice;

    #[test]
    fn two_ranks_that_were_shown_the_same_gpu_are_found() {
        let texts = |ids: &[&str]| ids.iter().map(|id| id.to_string()).collect::<Vec<_>>();
        assert_eq!(first_twice(&texts(&["a", "b", "c"])), None);
        assert_eq!(first_twice(&texts(&["a", "b", "c", "b", "a"])), Some((1, 3)));
    }
}
