//! Where ranks that are threads meet: transfers under way, and what each rank waits for.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use device::DType;
use device::ops::CollectiveKind;

/// Names a transfer; the same on all ranks that take part.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) communicator: (u64, usize),
    /// Sender and receiver of a message.
    pub(crate) between: Option<(usize, usize)>,
    pub(crate) number: u64,
}

/// What one rank brings to a transfer.
pub(crate) struct Deposit {
    pub(crate) kind: CollectiveKind,
    pub(crate) dtype: DType,
    pub(crate) elements: usize,
    pub(crate) values: Vec<f32>,
}

/// A transfer that not all have taken the result of.
struct Transfer {
    /// World ranks of those who take part.
    participants: Vec<usize>,
    /// By participant.
    deposits: Vec<Option<Arc<Deposit>>>,
    taken: usize,
}

impl Transfer {
    /// World ranks that have not come.
    fn missing(&self) -> Vec<usize> {
        let all = self.participants.iter().zip(&self.deposits);
        all.filter(|(_, deposit)| deposit.is_none()).map(|(rank, _)| *rank).collect()
    }
}

/// What a rank does.
enum Activity {
    /// It computes, or has not begun.
    Busy,
    /// It waits for a transfer, which is said in words too.
    Waits(Key, String),
    /// It has ended.
    Gone,
}

pub(crate) struct Board {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    transfers: HashMap<Key, Transfer>,
    ranks: Vec<Activity>,
    /// Why no rank can go on any more.
    deadlock: Option<String>,
}

impl State {
    fn missing(&self, key: &Key) -> Vec<usize> {
        self.transfers.get(key).map_or(Vec::new(), Transfer::missing)
    }

    /// Whether all ranks that have not ended wait for others of them. Only a rank that goes on could change that.
    fn find_deadlock(&mut self) {
        let stuck = |activity: &Activity| match activity {
            Activity::Busy => false,
            Activity::Waits(key, _) => !self.missing(key).is_empty(),
            Activity::Gone => true,
        };
        if self.deadlock.is_some() || !self.ranks.iter().all(stuck) {
            return;
        }
        let words = self.ranks.iter().enumerate().map(|(rank, activity)| match activity {
            Activity::Waits(key, what) => format!("rank {rank} waits for ranks {:?} in {what}", self.missing(key)),
            _ => format!("rank {rank} has ended"),
        });
        self.deadlock = Some(format!("deadlock: {}", words.collect::<Vec<_>>().join("; ")));
    }
}

impl Board {
    pub(crate) fn new(ranks: usize) -> Board {
        let ranks = (0..ranks).map(|_| Activity::Busy).collect();
        let state = State { transfers: HashMap::new(), ranks, deadlock: None };
        Board { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// A thread that panicked leaves a state as good as before: every change below is complete or not begun.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings what participant number `me` has to a transfer.
    pub(crate) fn put(&self, key: &Key, participants: Vec<usize>, me: usize, deposit: Deposit) {
        let mut state = self.lock();
        let transfer = state.transfers.entry(key.clone()).or_insert_with(|| {
            let deposits = participants.iter().map(|_| None).collect();
            Transfer { participants, deposits, taken: 0 }
        });
        transfer.deposits[me] = Some(Arc::new(deposit));
        self.changed.notify_all();
    }

    /// Waits until all participants have come, and gives what they brought to `work`; `what` is the transfer in words.
    /// The result is `work`'s, or why they never will have come.
    pub(crate) fn take(
        &self,
        key: &Key,
        rank: usize,
        what: &str,
        timeout: Duration,
        work: impl FnOnce(&[Arc<Deposit>]) -> Result<(), String>,
    ) -> Result<(), String> {
        let until = Instant::now() + timeout;
        let mut state = self.lock();
        state.ranks[rank] = Activity::Waits(key.clone(), what.into());
        state.find_deadlock();
        self.changed.notify_all();
        let complete = loop {
            let missing = state.missing(key);
            if missing.is_empty() {
                break Ok(());
            }
            if let Some(deadlock) = &state.deadlock {
                break Err(deadlock.clone());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break Err(format!("waited {timeout:?} for ranks {missing:?}"));
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        };
        state.ranks[rank] = Activity::Busy;
        complete?;
        let Some(transfer) = state.transfers.get_mut(key) else { return Ok(()) };
        let deposits: Vec<Arc<Deposit>> = transfer.deposits.iter().flatten().cloned().collect();
        transfer.taken += 1;
        if transfer.taken == transfer.participants.len() {
            state.transfers.remove(key);
        }
        drop(state);
        work(&deposits)
    }

    /// A rank that will bring nothing more.
    pub(crate) fn leave(&self, rank: usize) {
        let mut state = self.lock();
        state.ranks[rank] = Activity::Gone;
        state.find_deadlock();
        self.changed.notify_all();
    }
}
