//! Work on files of strangers, on another thread: with a stack of its own, and so much processor time and memory.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use common::caught;
use common::format::bytes;

use super::memory;

/// How often the time of work under way is looked at.
const POLL: Duration = Duration::from_millis(50);

/// Memory that any work may take from one [`Progress::step`] to the next, in bytes.
const MEMORY: usize = 1 << 30;

/// Limits of some work beside [`MEMORY`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Bytes of stack.
    pub(crate) stack: usize,
    /// Processor time from one [`Progress::step`] to the next. Waiting for a processor does not count.
    pub(crate) time: Duration,
}

/// The progress of a worker's work, for the thread that watches it.
#[derive(Default)]
pub(crate) struct Progress {
    steps: AtomicUsize,
    /// Whether the work asked for more memory than [`MEMORY`]. It has stopped then.
    exceeded: AtomicBool,
    /// The system's file with the thread's time.
    clock: OnceLock<PathBuf>,
}

impl Progress {
    /// Says that the work went on: time and memory count from here. Only the work itself calls it.
    pub(crate) fn step(&'static self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        memory::limit(MEMORY, &self.exceeded);
    }

    /// Processor time of the working thread. `None` if the system does not tell.
    fn time(&self) -> Option<Duration> {
        let text = std::fs::read_to_string(self.clock.get()?).ok()?;
        text.split(' ').next()?.parse().ok().map(Duration::from_nanos)
    }
}

/// A thread that does one work after the other: to start a thread for each would take longer than most work.
struct Worker {
    stack: usize,
    jobs: Sender<Job>,
    progress: &'static Progress,
}

type Job = Box<dyn FnOnce() + Send>;

thread_local! {
    /// The worker of a thread that asked for work, while it has nothing to do. It ends with that thread.
    static IDLE: Cell<Option<Worker>> = const { Cell::new(None) };
}

impl Worker {
    fn start(stack: usize) -> Result<Worker, String> {
        // A worker that is left behind has it for as long as the process runs.
        let progress: &'static Progress = Box::leak(Box::default());
        let (jobs, received) = channel::<Job>();
        let work = move || {
            if let Ok(task) = std::fs::read_link("/proc/thread-self") {
                progress.clock.get_or_init(|| Path::new("/proc").join(task).join("schedstat"));
            }
            received.iter().for_each(|job| job());
        };
        let started = thread::Builder::new().name("watched".into()).stack_size(stack).spawn(work);
        started.map_err(|error| format!("no thread with a stack of {stack} bytes: {error}"))?;
        Ok(Worker { stack, jobs, progress })
    }
}

/// The result of `work`. Work that takes too much is left behind: its thread and memory stay until the process ends.
/// Most commands end because of the error.
///
/// # Errors
/// The error of `work`; a panic; more time or memory than the work may take; no thread with such a stack.
pub(crate) fn watched<T: Send + 'static>(
    limits: Limits,
    work: impl FnOnce(&'static Progress) -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let worker = match IDLE.take().filter(|worker| worker.stack >= limits.stack) {
        Some(worker) => worker,
        None => Worker::start(limits.stack)?,
    };
    let (sender, receiver) = channel();
    let progress = worker.progress;
    let job = move || {
        progress.step();
        let result = caught(|| work(progress)).unwrap_or_else(Err);
        memory::unlimit();
        // Nobody listens to work that came too late.
        let _ = sender.send(result);
    };
    // A worker ends only when its sender is dropped.
    let _ = worker.jobs.send(Box::new(job));
    let mut begun = None;
    loop {
        match receiver.recv_timeout(POLL) {
            Ok(result) => {
                IDLE.set(Some(worker));
                return result;
            }
            Err(RecvTimeoutError::Disconnected) => unreachable!("a job sends before it ends"),
            Err(RecvTimeoutError::Timeout) => {
                if progress.exceeded.load(Ordering::Relaxed) {
                    return Err(format!("it takes more than {} of memory", bytes(MEMORY)));
                }
                let (steps, now) = (progress.steps.load(Ordering::Relaxed), progress.time());
                match begun {
                    Some((then, time)) if then == steps => {
                        if now.unwrap_or_default().saturating_sub(time) > limits.time {
                            return Err(format!(
                                "it takes more than {:.1} s of processor time",
                                limits.time.as_secs_f64()
                            ));
                        }
                    }
                    _ => begun = Some((steps, now.unwrap_or_default())),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { stack: 1 << 20, time: Duration::from_millis(200) };

    #[test]
    fn work_without_end_is_given_up_and_work_that_goes_on_is_not() {
        let endless = watched(LIMITS, |_| {
            loop {
                std::hint::spin_loop();
            }
        });
        let endless: Result<(), String> = endless;
        assert_eq!(endless, Err("it takes more than 0.2 s of processor time".into()));
        assert_eq!(watched(LIMITS, |_| Ok(7)), Ok(7));
        let panicked: Result<(), String> = watched(LIMITS, |_| panic!("a word"));
        assert_eq!(panicked, Err("a word".into()));
        let steady = watched(LIMITS, |progress| {
            let begun = std::time::Instant::now();
            while begun.elapsed() < Duration::from_millis(600) {
                progress.step();
            }
            Ok(())
        });
        assert_eq!(steady, Ok(()));
    }

    #[test]
    fn work_that_asks_for_too_much_memory_is_given_up_before_it_has_it() {
        let too_much = Err("it takes more than 1.00 GiB of memory".into());
        let room = |_| Vec::<u8>::with_capacity(MEMORY / 4);
        assert_eq!(watched(LIMITS, |_| Ok(Vec::<u8>::with_capacity(1 << 45).capacity())), too_much);
        assert_eq!(watched(LIMITS, move |_| Ok((0..5).map(room).collect::<Vec<_>>().len())), too_much);
        let grown = watched(LIMITS, |_| {
            let mut grown = Vec::<u8>::with_capacity(MEMORY / 2);
            grown.reserve_exact(MEMORY);
            Ok(grown.capacity())
        });
        assert_eq!(grown, too_much);
        // What is given back does not count, nor what was there before a step.
        assert_eq!(watched(LIMITS, move |_| Ok((0..5).map(room).map(|part| part.len()).sum::<usize>())), Ok(0));
        let stepping = watched(LIMITS, move |progress| {
            let parts = (0..5).inspect(|_| progress.step()).map(room);
            Ok(parts.collect::<Vec<_>>().len())
        });
        assert_eq!(stepping, Ok(5));
        // The caller has no limit.
        assert_eq!((0..5).map(room).collect::<Vec<_>>().len(), 5);
    }
}
