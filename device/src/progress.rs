//! How far the work of a device has come, for another thread to read: a watchdog's, while the thread that owns the
//! device may wait for ever.
//!
//! Work leaves **marks** in host memory: a [`Mark`](crate::ops::Mark) is an operation like others, recorded and replayed
//! with the region it stands in, so that inside a graph too it is known how far the device is. Each kind of mark has a
//! lane of its own: one for steps, one for regions, and one for each order that several ranks keep, such as the
//! collectives of a communicator. Ranks of a group number these alike: who has begun fewer is the one waited for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::ops::{Collective, Mark};

/// Lanes there are; later ones are not marked.
pub(crate) const LANES: usize = 32;
/// Words of a lane: when it was last marked, counted over all lanes, the mark's value, and the lane's number of marks.
pub(crate) const WORDS: usize = 3;

const STEPS: usize = 0;
const REGIONS: usize = 1;

/// The marks of one device, shared with who reads them.
#[derive(Clone)]
pub struct Progress {
    shared: Arc<Shared>,
}

struct Shared {
    /// `(LANES, WORDS)`. On a GPU its kernels write here too.
    words: [AtomicU64; LANES * WORDS],
    sequence: AtomicU64,
    /// Operations that the host device has run; a GPU has none.
    operations: AtomicU64,
    names: Mutex<Names>,
}

#[derive(Default)]
struct Names {
    /// What a mark's value stands for.
    labels: Vec<String>,
    /// The lanes after those of steps and regions.
    lanes: Vec<Order>,
}

/// An order of transfers that some ranks keep together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// The communicator's name.
    pub communicator: String,
    /// World ranks that take part.
    pub ranks: Vec<usize>,
    /// Sender and receiver within the communicator, of messages.
    pub between: Option<(usize, usize)>,
}

/// How far a device has come.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reached {
    /// Changes with every mark, and on the host device with every operation.
    pub marks: u64,
    /// The step under way.
    pub step: Option<u64>,
    /// The region begun last.
    pub region: Option<String>,
    /// The transfer begun last: its name, and its number in its order.
    pub transfer: Option<(String, u64)>,
    /// How many transfers of each order have begun.
    pub orders: Vec<(Order, u64)>,
}

impl Default for Progress {
    fn default() -> Progress {
        let words = [const { AtomicU64::new(0) }; LANES * WORDS];
        Progress {
            shared: Arc::new(Shared {
                words,
                sequence: AtomicU64::new(0),
                operations: AtomicU64::new(0),
                names: Mutex::default(),
            }),
        }
    }
}

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.reached())
    }
}

impl Progress {
    /// The mark of a step's beginning. It is submitted anew each step, never captured.
    pub fn step(&self, step: u32) -> Mark {
        Mark { progress: self.clone(), lane: STEPS, value: step }
    }

    /// The mark of a region's beginning.
    pub fn region(&self, name: &str) -> Mark {
        Mark { progress: self.clone(), lane: REGIONS, value: self.label(name) }
    }

    /// The mark of a transfer's beginning; none where there are too many orders.
    pub(crate) fn transfer(&self, collective: &Collective) -> Option<Mark> {
        let (kind, group) = (collective.kind, &collective.communicator);
        let sent = kind.receiver().map(|to| (group.rank(), to));
        let between = sent.or(kind.sender().map(|from| (from, group.rank())));
        let value = self.label(&format!("{} on {}", kind.name(), group.name()));
        let order = Order { communicator: group.name().into(), ranks: group.members(), between };
        self.lane(order).map(|lane| Mark { progress: self.clone(), lane, value })
    }

    /// Marks, from the host, that it begins a transfer of `order` itself. It has no place among the device's.
    pub fn begin(&self, name: &str, order: Order) {
        let value = self.label(name);
        if let Some(lane) = self.lane(order) {
            self.count(lane, value);
        }
    }

    /// What the host device does with a [`Mark`].
    pub(crate) fn mark(&self, lane: usize, value: u32) {
        self.count(lane, value);
        let sequence = self.shared.sequence.fetch_add(1, Ordering::Relaxed) + 1;
        self.shared.words[lane * WORDS].store(sequence, Ordering::Release);
    }

    /// The host device has run an operation: a region of many takes its time there.
    pub(crate) fn advance(&self) {
        self.shared.operations.fetch_add(1, Ordering::Relaxed);
    }

    fn count(&self, lane: usize, value: u32) {
        let lane = &self.shared.words[lane * WORDS..];
        lane[1].store(value.into(), Ordering::Relaxed);
        lane[2].fetch_add(1, Ordering::Relaxed);
    }

    /// How far the work has come. A mark that is just being made may be read in part.
    pub fn reached(&self) -> Reached {
        let word = |lane: usize, word: usize| self.shared.words[lane * WORDS + word].load(Ordering::Acquire);
        let names = self.names();
        let label = |lane: usize| names.labels.get(word(lane, 1) as usize).cloned();
        let others = names.lanes.iter().zip(REGIONS + 1..);
        let newest = others.clone().map(|(_, lane)| lane).max_by_key(|&lane| word(lane, 0));
        let begun = |lane: &usize| word(*lane, 2) > 0;
        Reached {
            marks: (0..LANES).map(|lane| word(lane, 2)).sum::<u64>() + self.shared.operations.load(Ordering::Relaxed),
            step: Some(STEPS).filter(begun).map(|lane| word(lane, 1)),
            region: Some(REGIONS).filter(begun).and_then(label),
            transfer: newest.filter(begun).and_then(|lane| Some((label(lane)?, word(lane, 2)))),
            orders: others.map(|(order, lane)| (order.clone(), word(lane, 2))).collect(),
        }
    }

    /// The words, for a GPU to write to.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        &self.shared.words
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.shared.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn label(&self, name: &str) -> u32 {
        let labels = &mut self.names().labels;
        let known = labels.iter().position(|label| label == name);
        known.unwrap_or_else(|| {
            labels.push(name.into());
            labels.len() - 1
        }) as u32
    }

    /// The lane of an order; none where there are too many.
    fn lane(&self, order: Order) -> Option<usize> {
        let lanes = &mut self.names().lanes;
        let known = lanes.iter().position(|lane| *lane == order);
        let index = known.unwrap_or_else(|| {
            lanes.push(order);
            lanes.len() - 1
        });
        let lane = REGIONS + 1 + index;
        if lane < LANES {
            return Some(lane);
        }
        lanes.truncate(LANES - REGIONS - 1);
        None
    }
}
