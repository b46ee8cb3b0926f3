//! Batches that a separate thread reads ahead of the steps.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::panic_text;
use device::{HostValues, Staging};

use crate::error::DataError;
use crate::source::{Source, Split};

/// Batches that are ready and wait for a step.
const AHEAD: usize = 2;

/// Batches in memory at once: the ready ones, the one being read, and those of the steps under way.
pub const BATCHES_IN_MEMORY: usize = AHEAD + 4;

/// How long the end of a run waits for the read under way. Most reads take milliseconds.
const PATIENCE: Duration = Duration::from_secs(1);

/// The batches of a run's steps, in order.
///
/// A read may hang, for example when a file server is down. Dropping this waits for the thread for a second at most. A
/// thread that hangs longer keeps the memory it reads into, and ends with the process.
pub struct Prefetch {
    batches: Option<Receiver<Result<HostValues, DataError>>>,
    thread: Option<JoinHandle<()>>,
}

impl Prefetch {
    /// Starts reading the batches of `steps` into memory of `staging`. `samples(step)` is the first sample of a step and
    /// the number of samples; it is called once for each step, in order.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(
        source: Arc<dyn Source>,
        steps: Range<usize>,
        staging: Staging,
        mut samples: impl FnMut(usize) -> (u64, usize) + Send + 'static,
    ) -> Result<Prefetch, DataError> {
        let (send, batches) = sync_channel(AHEAD);
        let thread = std::thread::Builder::new().name("data".into()).spawn(move || {
            for step in steps {
                let (first, count) = samples(step);
                let batch = source.batch(Split::Train, first, count, &staging);
                let failed = batch.is_err();
                if send.send(batch).is_err() || failed {
                    return;
                }
            }
        });
        let thread = thread.map_err(|error| DataError {
            what: format!("the thread that reads data does not start: {error}"),
            fix: "allow this process more threads (ulimit -u)".into(),
        })?;
        Ok(Prefetch { batches: Some(batches), thread: Some(thread) })
    }

    /// The next step's batch, and the time of waiting for the batch.
    ///
    /// # Errors
    /// The error that the thread met while it read this batch.
    pub fn next_batch(&mut self) -> Result<(HostValues, Duration), DataError> {
        let asked = Instant::now();
        let batch = self.batches.as_ref().and_then(|batches| batches.recv().ok());
        match batch {
            Some(batch) => Ok((batch?, asked.elapsed())),
            None => Err(DataError {
                what: format!("the thread that reads data {}", self.end()),
                fix: "ask for no more steps than were planned; report it if it panicked".into(),
            }),
        }
    }

    /// How the reading thread ended.
    fn end(&mut self) -> String {
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(panic)) => format!("panicked: {}", panic_text(&*panic)),
            _ => "has no more batches".into(),
        }
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        // Without a receiver the thread's next send fails, and the thread ends.
        self.batches = None;
        let Some(thread) = self.thread.take() else { return };
        let asked = Instant::now();
        while !thread.is_finished() && asked.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        if thread.is_finished() {
            // A panic was reported when its batch was asked for. A panic after the last batch changes nothing.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::channel;

    use super::*;
    use crate::sources::markov::MarkovSource;

    /// Fails, or panics, at a sample.
    struct Breaks {
        at: u64,
        panics: bool,
    }

    impl Source for Breaks {
        fn batch(&self, _: Split, first: u64, _: usize, _: &Staging) -> Result<HostValues, DataError> {
            if first < self.at {
                return Ok(HostValues::F32(vec![first as f32].into()));
            }
            assert!(!self.panics, "a bug in the source");
            Err(DataError { what: "the disk is gone".into(), fix: "mount it".into() })
        }

        fn describe(&self) -> String {
            String::new()
        }
    }

    #[test]
    fn batches_are_those_of_the_source_in_order_and_no_more() {
        let source = Arc::new(MarkovSource::new(1, 8));
        let staging = Staging::default();
        let mut prefetch =
            Prefetch::start(source.clone(), 3..9, staging.clone(), |step| (10 * step as u64, 2)).unwrap();
        for step in 3..9u64 {
            let expected = source.batch(Split::Train, 10 * step, 2, &staging).unwrap();
            assert_eq!(prefetch.next_batch().unwrap().0, expected);
        }
        assert!(prefetch.next_batch().unwrap_err().to_string().contains("no more batches"));
    }

    #[test]
    fn an_error_and_a_panic_of_the_thread_reach_the_step_that_needs_the_batch() {
        for (panics, text) in [(false, "the disk is gone"), (true, "panicked: a bug in the source")] {
            let mut prefetch =
                Prefetch::start(Arc::new(Breaks { at: 2, panics }), 0..9, Staging::default(), |step| (step as u64, 1))
                    .unwrap();
            assert!(prefetch.next_batch().is_ok() && prefetch.next_batch().is_ok());
            let error = prefetch.next_batch().unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn a_run_that_ends_early_ends_the_thread() {
        let source: Arc<dyn Source> = Arc::new(MarkovSource::new(1, 8));
        let mut prefetch =
            Prefetch::start(source.clone(), 0..1_000_000, Staging::default(), |step| (step as u64, 1)).unwrap();
        prefetch.next_batch().unwrap();
        drop(prefetch);
        while Arc::strong_count(&source) > 1 {
            std::thread::yield_now(); // for ever, if the thread goes on
        }
    }

    /// Reads for ever, until the sender is gone.
    struct Hangs(Mutex<Receiver<()>>);

    impl Source for Hangs {
        fn batch(&self, _: Split, _: u64, _: usize, _: &Staging) -> Result<HostValues, DataError> {
            let _ = self.0.lock().unwrap().recv();
            Err(DataError { what: "the server is gone".into(), fix: "mount it".into() })
        }

        fn describe(&self) -> String {
            String::new()
        }
    }

    #[test]
    fn a_read_that_hangs_does_not_keep_a_run_from_its_end() {
        let (server, reads) = channel();
        let source: Arc<dyn Source> = Arc::new(Hangs(Mutex::new(reads)));
        let prefetch = Prefetch::start(source.clone(), 0..9, Staging::default(), |step| (step as u64, 1)).unwrap();
        let (dropped, end) = channel();
        std::thread::spawn(move || {
            drop(prefetch);
            dropped.send(()).unwrap();
        });
        assert!(end.recv_timeout(Duration::from_secs(30)).is_ok(), "the end waits for the read");
        assert_eq!(Arc::strong_count(&source), 2, "the thread still reads");
        drop(server);
    }
}
