//! How far the work of a device has come. Another thread can read it, such as a watchdog's, while the thread that owns
//! the device may be blocked forever.
//!
//! Work leaves **marks** in host memory. A [`ProgressMark`] is an operation like others: it is recorded and replayed
//! with its region, so progress inside a graph is visible too. Marks lie on **tracks**: one for steps, one for regions,
//! and one for each order of transfers that several ranks share, such as the collectives of a communicator. All ranks
//! of a group count these transfers alike, so the rank with the lower count is the straggler.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::ops::Collective;

/// The number of tracks. Orders of transfers beyond it are not marked.
pub(crate) const TRACKS: usize = 32;
/// Words of a track: the sequence number of its last mark (counted over all tracks), that mark's value, and the number
/// of its marks.
pub(crate) const WORDS: usize = 3;

const STEPS: usize = 0;
const REGIONS: usize = 1;

/// The marks of one device, shared with their readers.
#[derive(Clone)]
pub struct Progress {
    shared: Arc<SharedProgress>,
}

struct SharedProgress {
    /// `(TRACKS, WORDS)`. Kernels of a GPU write here too.
    words: [AtomicU64; TRACKS * WORDS],
    sequence: AtomicU64,
    /// Operations that the host device has run. It stays 0 on a GPU.
    operations: AtomicU64,
    names: Mutex<ProgressNames>,
}

#[derive(Default)]
struct ProgressNames {
    /// The names that marks' values stand for.
    labels: Vec<String>,
    /// The tracks after those of steps and regions.
    tracks: Vec<Order>,
}

/// An operation that tells the host, in stream order, that a stream's work has come this far. [`Progress`] makes it.
#[derive(Clone, Debug)]
pub struct ProgressMark {
    progress: Progress,
    pub(crate) track: usize,
    pub(crate) value: u32,
}

/// Of the same device's marks, on the same track, with the same value.
impl PartialEq for ProgressMark {
    fn eq(&self, other: &ProgressMark) -> bool {
        let one = Arc::ptr_eq(&self.progress.shared, &other.progress.shared);
        one && (self.track, self.value) == (other.track, other.value)
    }
}

impl ProgressMark {
    /// The host device runs the mark: it leaves it in memory.
    pub(crate) fn leave(&self) {
        self.progress.mark(self.track, self.value);
    }
}

/// An order of transfers that a group of ranks shares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// The communicator's name.
    pub communicator: String,
    /// World ranks that take part.
    pub ranks: Vec<usize>,
    /// Sender and receiver within the communicator, for messages from rank to rank.
    pub between: Option<(usize, usize)>,
}

/// The progress of a device.
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
    /// For each order, the number of its transfers that have begun.
    pub orders: Vec<(Order, u64)>,
}

impl Default for Progress {
    fn default() -> Progress {
        let words = [const { AtomicU64::new(0) }; TRACKS * WORDS];
        Progress {
            shared: Arc::new(SharedProgress {
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
        // A mark is described by its own fields. They do not change with the device's progress.
        f.write_str("Progress")
    }
}

impl Progress {
    /// The mark of a step's beginning. It is submitted eagerly each step, never captured.
    pub fn step(&self, step: u32) -> ProgressMark {
        ProgressMark { progress: self.clone(), track: STEPS, value: step }
    }

    /// The mark of a region's beginning.
    pub fn region(&self, name: &str) -> ProgressMark {
        ProgressMark { progress: self.clone(), track: REGIONS, value: self.label(name) }
    }

    /// The mark of a transfer's beginning. `None` if there are too many orders.
    pub(crate) fn transfer(&self, collective: &Collective) -> Option<ProgressMark> {
        let (kind, group) = (collective.kind, &collective.communicator);
        let sent = kind.receiver().map(|to| (group.rank(), to));
        let between = sent.or(kind.sender().map(|from| (from, group.rank())));
        let value = self.label(&format!("{} on {}", kind.name(), group.name()));
        let order = Order { communicator: group.name().into(), ranks: group.members(), between };
        self.track(order).map(|track| ProgressMark { progress: self.clone(), track, value })
    }

    /// Marks that the host itself begins a transfer of `order`. The mark has no position among the device's marks.
    pub fn begin(&self, name: &str, order: Order) {
        let value = self.label(name);
        if let Some(track) = self.track(order) {
            self.count(track, value);
        }
    }

    /// The host device leaves a [`ProgressMark`].
    fn mark(&self, track: usize, value: u32) {
        self.count(track, value);
        let sequence = self.shared.sequence.fetch_add(1, Ordering::Relaxed) + 1;
        self.shared.words[track * WORDS].store(sequence, Ordering::Release);
    }

    /// Notes that the host device has run an operation. There a region of many operations takes long, and this shows
    /// that it moves.
    pub(crate) fn advance(&self) {
        self.shared.operations.fetch_add(1, Ordering::Relaxed);
    }

    fn count(&self, track: usize, value: u32) {
        let track = &self.shared.words[track * WORDS..];
        track[1].store(value.into(), Ordering::Relaxed);
        track[2].fetch_add(1, Ordering::Relaxed);
    }

    /// How far the work has come. A mark that is being made meanwhile may be read in part.
    pub fn reached(&self) -> Reached {
        let word = |track: usize, word: usize| self.shared.words[track * WORDS + word].load(Ordering::Acquire);
        let names = self.names();
        let label = |track: usize| names.labels.get(word(track, 1) as usize).cloned();
        let others = names.tracks.iter().zip(REGIONS + 1..);
        let newest = others.clone().map(|(_, track)| track).max_by_key(|&track| word(track, 0));
        let begun = |track: &usize| word(*track, 2) > 0;
        Reached {
            marks: (0..TRACKS).map(|track| word(track, 2)).sum::<u64>()
                + self.shared.operations.load(Ordering::Relaxed),
            step: Some(STEPS).filter(begun).map(|track| word(track, 1)),
            region: Some(REGIONS).filter(begun).and_then(label),
            transfer: newest.filter(begun).and_then(|track| Some((label(track)?, word(track, 2)))),
            orders: others.map(|(order, track)| (order.clone(), word(track, 2))).collect(),
        }
    }

    /// The words, for a GPU to write to.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        &self.shared.words
    }

    fn names(&self) -> MutexGuard<'_, ProgressNames> {
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

    /// The track of an order. `None` if there are too many orders.
    fn track(&self, order: Order) -> Option<usize> {
        let tracks = &mut self.names().tracks;
        let known = tracks.iter().position(|track| *track == order);
        let index = known.unwrap_or_else(|| {
            tracks.push(order);
            tracks.len() - 1
        });
        let track = REGIONS + 1 + index;
        if track < TRACKS {
            return Some(track);
        }
        tracks.truncate(TRACKS - REGIONS - 1);
        None
    }
}
