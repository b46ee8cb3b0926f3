//! The meeting point of ranks that are threads: transfers under way, and the wait of each rank.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use device::DType;
use device::ops::CollectiveKind;

/// Identifies a transfer, alike on all ranks that take part.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TransferKey {
    pub(crate) communicator: (u64, usize),
    /// Sender and receiver of a message.
    pub(crate) between: Option<(usize, usize)>,
    pub(crate) number: u64,
}

/// One rank's part of a transfer.
pub(crate) struct Contribution {
    pub(crate) kind: CollectiveKind,
    pub(crate) dtype: DType,
    pub(crate) elements: usize,
    pub(crate) values: Vec<f32>,
}

/// A transfer until all participants have taken the result.
struct Transfer {
    /// World ranks.
    participants: Vec<usize>,
    /// By participant. `None` until it arrives.
    contributions: Vec<Option<Arc<Contribution>>>,
    taken: usize,
}

impl Transfer {
    /// World ranks that have not arrived.
    fn missing(&self) -> Vec<usize> {
        let all = self.participants.iter().zip(&self.contributions);
        all.filter(|(_, contribution)| contribution.is_none()).map(|(rank, _)| *rank).collect()
    }
}

/// The state of a rank.
enum RankState {
    /// Computing, or not started.
    Busy,
    /// Waiting for a transfer, with the transfer's description.
    Waiting(TransferKey, String),
    /// Ended.
    Ended,
}

pub(crate) struct Rendezvous {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    transfers: HashMap<TransferKey, Transfer>,
    ranks: Vec<RankState>,
    /// Why no rank can continue.
    deadlock: Option<String>,
}

impl State {
    fn missing(&self, key: &TransferKey) -> Vec<usize> {
        self.transfers.get(key).map_or(Vec::new(), Transfer::missing)
    }

    /// Records a deadlock if all ranks that have not ended wait for other ranks: no rank is left to end the waiting.
    fn find_deadlock(&mut self) {
        let stuck = |rank: &RankState| match rank {
            RankState::Busy => false,
            RankState::Waiting(key, _) => !self.missing(key).is_empty(),
            RankState::Ended => true,
        };
        if self.deadlock.is_some() || !self.ranks.iter().all(stuck) {
            return;
        }
        let words = self.ranks.iter().enumerate().map(|(rank, state)| match state {
            RankState::Waiting(key, what) => format!("rank {rank} waits for ranks {:?} in {what}", self.missing(key)),
            _ => format!("rank {rank} has ended"),
        });
        self.deadlock = Some(format!("deadlock: {}", words.collect::<Vec<_>>().join("; ")));
    }
}

impl Rendezvous {
    pub(crate) fn new(ranks: usize) -> Rendezvous {
        let ranks = (0..ranks).map(|_| RankState::Busy).collect();
        let state = State { transfers: HashMap::new(), ranks, deadlock: None };
        Rendezvous { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// A panic of another thread leaves a valid state: every change below is made completely or not at all.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the part of participant number `me` to a transfer.
    pub(crate) fn put(&self, key: &TransferKey, participants: Vec<usize>, me: usize, contribution: Contribution) {
        let mut state = self.lock();
        let transfer = state.transfers.entry(key.clone()).or_insert_with(|| {
            let contributions = participants.iter().map(|_| None).collect();
            Transfer { participants, contributions, taken: 0 }
        });
        transfer.contributions[me] = Some(Arc::new(contribution));
        self.changed.notify_all();
    }

    /// Waits until all participants have arrived, and passes all contributions to `work`. `what` describes the
    /// transfer. Returns the result of `work`, or the reason why some participants will never arrive.
    pub(crate) fn take(
        &self,
        key: &TransferKey,
        rank: usize,
        what: &str,
        timeout: Duration,
        work: impl FnOnce(&[Arc<Contribution>]) -> Result<(), String>,
    ) -> Result<(), String> {
        let until = Instant::now() + timeout;
        let mut state = self.lock();
        state.ranks[rank] = RankState::Waiting(key.clone(), what.into());
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
        state.ranks[rank] = RankState::Busy;
        complete?;
        let Some(transfer) = state.transfers.get_mut(key) else { return Ok(()) };
        let contributions: Vec<Arc<Contribution>> = transfer.contributions.iter().flatten().cloned().collect();
        transfer.taken += 1;
        if transfer.taken == transfer.participants.len() {
            state.transfers.remove(key);
        }
        drop(state);
        work(&contributions)
    }

    /// Records that a rank takes part in no further transfer.
    pub(crate) fn leave(&self, rank: usize) {
        let mut state = self.lock();
        state.ranks[rank] = RankState::Ended;
        state.find_deadlock();
        self.changed.notify_all();
    }
}
