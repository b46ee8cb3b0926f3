//! Work that may not end, on another thread: with a stack of its own, and for so much processor time.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

/// How often the time of work under way is looked at.
const POLL: Duration = Duration::from_millis(50);

/// Limits for a piece of work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Bytes of stack.
    pub(crate) stack: usize,
    /// Processor time from one [`Progress::step`] to the next. Waiting for a processor does not count.
    pub(crate) time: Duration,
}

/// The progress of the work, for the thread that watches.
#[derive(Default)]
pub(crate) struct Progress {
    steps: AtomicUsize,
    /// The system's file with the thread's time.
    clock: OnceLock<PathBuf>,
}

impl Progress {
    /// Says that the work went on: its time counts from here.
    pub(crate) fn step(&self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
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
    progress: Arc<Progress>,
}

type Job = Box<dyn FnOnce(&Progress) + Send>;

thread_local! {
    /// The worker of a thread that asked for work, while it has nothing to do. It ends with that thread.
    static IDLE: Cell<Option<Worker>> = const { Cell::new(None) };
}

impl Worker {
    fn start(stack: usize) -> Result<Worker, String> {
        let progress = Arc::new(Progress::default());
        let (jobs, received) = channel::<Job>();
        let work = {
            let progress = progress.clone();
            move || {
                if let Ok(task) = std::fs::read_link("/proc/thread-self") {
                    progress.clock.get_or_init(|| Path::new("/proc").join(task).join("schedstat"));
                }
                received.iter().for_each(|job| job(&progress));
            }
        };
        let started = thread::Builder::new().name("watched".into()).stack_size(stack).spawn(work);
        started.map_err(|error| format!("no thread with a stack of {stack} bytes: {error}"))?;
        Ok(Worker { stack, jobs, progress })
    }
}

/// The result of `work`. Work that does not end in time is left behind: its thread ends with the process, and the
/// process is about to end because of the error.
///
/// # Errors
/// It takes longer than it may, or no thread with such a stack can be had.
pub(crate) fn watched<T: Send + 'static>(
    limits: Limits,
    work: impl FnOnce(&Progress) -> T + Send + 'static,
) -> Result<T, String> {
    let worker = match IDLE.take().filter(|worker| worker.stack >= limits.stack) {
        Some(worker) => worker,
        None => Worker::start(limits.stack)?,
    };
    let (sender, receiver) = channel();
    let job = move |progress: &Progress| {
        let result = catch_unwind(AssertUnwindSafe(|| work(progress)));
        // Nobody listens to work that came too late.
        let _ = sender.send(result);
    };
    // A worker ends only when its sender is dropped.
    let _ = worker.jobs.send(Box::new(job));
    let mut begun = None;
    loop {
        match receiver.recv_timeout(POLL) {
            Ok(Ok(result)) => {
                IDLE.set(Some(worker));
                return Ok(result);
            }
            Ok(Err(panic)) => resume_unwind(panic),
            Err(RecvTimeoutError::Disconnected) => unreachable!("a job sends before it ends"),
            Err(RecvTimeoutError::Timeout) => {
                let (steps, now) = (worker.progress.steps.load(Ordering::Relaxed), worker.progress.time());
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

    #[test]
    fn work_without_end_is_given_up_and_work_that_goes_on_is_not() {
        let limits = Limits { stack: 1 << 20, time: Duration::from_millis(200) };
        let endless = watched(limits, |_| {
            loop {
                std::hint::spin_loop();
            }
        });
        let endless: Result<(), String> = endless;
        assert_eq!(endless, Err("it takes more than 0.2 s of processor time".into()));
        assert_eq!(watched(limits, |_| 7), Ok(7));
        let steady = watched(limits, |progress| {
            let begun = std::time::Instant::now();
            while begun.elapsed() < Duration::from_millis(600) {
                progress.step();
            }
        });
        assert_eq!(steady, Ok(()));
    }
}
