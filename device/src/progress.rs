//! How far the work of a device has come, for another thread to read: a watchdog's, while the thread that owns the
//! device may wait for ever.
//!
//! Work leaves **marks** in host memory: a [`ProgressMark`] is an operation like others, recorded and replayed
//! with the region it stands in, so that inside a graph too it is known how far the device is. Each kind of mark has a
//! track of its own: one for steps, one for regions, and one for each order that several ranks keep, such as the
//! collectives of a communicator. Ranks of a group number these alike: who has begun fewer is the one waited for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::ops::Collective;

/// Tracks there are; later ones are not marked.
pub(crate) const TRACKS: usize = 32;
/// Words of a track: when it was last marked, counted over all tracks, the mark's value, and the track's number of marks.
pub(crate) const WORDS: usize = 3;

const STEPS: usize = 0;
const REGIONS: usize = 1;

/// The marks of one device, shared with who reads them.
#[derive(Clone)]
pub struct Progress {
    shared: Arc<SharedProgress>,
}

struct SharedProgress {
    /// `(TRACKS, WORDS)`. On a GPU its kernels write here too.
    words: [AtomicU64; TRACKS * WORDS],
    sequence: AtomicU64,
    /// Operations that the host device has run; a GPU has none.
    operations: AtomicU64,
    names: Mutex<ProgressNames>,
}

#[derive(Default)]
struct ProgressNames {
    /// What a mark's value stands for.
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

impl ProgressMark {
    /// What the host device does with it.
    pub(crate) fn leave(&self) {
        self.progress.mark(self.track, self.value);
    }
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
        write!(f, "{:?}", self.reached())
    }
}

impl Progress {
    /// The mark of a step's beginning. It is submitted anew each step, never captured.
    pub fn step(&self, step: u32) -> ProgressMark {
        ProgressMark { progress: self.clone(), track: STEPS, value: step }
    }

    /// The mark of a region's beginning.
    pub fn region(&self, name: &str) -> ProgressMark {
        ProgressMark { progress: self.clone(), track: REGIONS, value: self.label(name) }
    }

    /// The mark of a transfer's beginning; none where there are too many orders.
    pub(crate) fn transfer(&self, collective: &Collective) -> Option<ProgressMark> {
        let (kind, group) = (collective.kind, &collective.communicator);
        let sent = kind.receiver().map(|to| (group.rank(), to));
        let between = sent.or(kind.sender().map(|from| (from, group.rank())));
        let value = self.label(&format!("{} on {}", kind.name(), group.name()));
        let order = Order { communicator: group.name().into(), ranks: group.members(), between };
        self.track(order).map(|track| ProgressMark { progress: self.clone(), track, value })
    }

    /// Marks, from the host, that it begins a transfer of `order` itself. It has no place among the device's.
    pub fn begin(&self, name: &str, order: Order) {
        let value = self.label(name);
        if let Some(track) = self.track(order) {
            self.count(track, value);
        }
    }

    /// What the host device does with a [`ProgressMark`].
    fn mark(&self, track: usize, value: u32) {
        self.count(track, value);
        let sequence = self.shared.sequence.fetch_add(1, Ordering::Relaxed) + 1;
        self.shared.words[track * WORDS].store(sequence, Ordering::Release);
    }

    /// The host device has run an operation: a region of many takes its time there.
    pub(crate) fn advance(&self) {
        self.shared.operations.fetch_add(1, Ordering::Relaxed);
    }

    fn count(&self, track: usize, value: u32) {
        let track = &self.shared.words[track * WORDS..];
        track[1].store(value.into(), Ordering::Relaxed);
        track[2].fetch_add(1, Ordering::Relaxed);
    }

    /// How far the work has come. A mark that is just being made may be read in part.
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

    /// The track of an order; none where there are too many.
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
