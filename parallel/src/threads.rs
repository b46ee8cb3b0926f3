//! Ranks as threads of one process, with the semantics of a real communicator: a transfer starts when it is submitted
//! and completes when its partners have submitted theirs. Collectives are matched by their number in the communicator's
//! order, messages by theirs between sender and receiver. Ranks that all wait for each other get an error that says what
//! for, not a hang, so deadlocks show in tests.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use device::ops::CollectiveKind;
use device::{Communicator, Error, Request, Result, Tensor};

use crate::board::{Board, Deposit, Key};
use crate::host_memory;

/// The meeting place of a group of threads.
pub struct ThreadWorld;

/// One rank's place in a [`ThreadWorld`], to be taken to its thread.
pub struct ThreadRank {
    place: Arc<Place>,
    size: usize,
    /// Communicators made so far, by all ranks in the same order.
    made: Cell<u64>,
}

/// A rank of the world for as long as anything of it lives.
struct Place {
    /// In the world.
    rank: usize,
    timeout: Duration,
    board: Arc<Board>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.board.leave(self.rank);
    }
}

impl ThreadWorld {
    /// A world of `size` ranks. A wait for ranks that are busy with something else ends with an error after `timeout`;
    /// one that can never end does so at once.
    pub fn ranks(size: usize, timeout: Duration) -> Vec<ThreadRank> {
        let board = Arc::new(Board::new(size));
        let place = |rank| Arc::new(Place { rank, timeout, board: board.clone() });
        (0..size).map(|rank| ThreadRank { place: place(rank), size, made: Cell::new(0) }).collect()
    }
}

impl ThreadRank {
    /// This rank's number in the world.
    pub fn rank(&self) -> usize {
        self.place.rank
    }

    /// A communicator over all ranks, apart from all others. All ranks make theirs in the same order.
    pub fn communicator(&self, name: &str) -> Rc<dyn Communicator> {
        self.split(name, &(0..self.size).collect::<Vec<_>>())
    }

    /// Cuts the world into groups with a communicator each, apart from all others; `group` is this rank's, as numbers in
    /// the world. All ranks do so in the same order.
    ///
    /// # Panics
    /// If this rank is not in its group.
    pub fn split(&self, name: &str, group: &[usize]) -> Rc<dyn Communicator> {
        let Some(rank) = group.iter().position(|&rank| rank == self.place.rank) else {
            panic!("rank {} is not in its group {group:?}", self.place.rank);
        };
        self.made.set(self.made.get() + 1);
        Rc::new(ThreadCommunicator {
            place: self.place.clone(),
            name: name.into(),
            id: (self.made.get(), group[0]),
            rank,
            collectives: Cell::new(0),
            messages: (0..group.len()).map(|_| Default::default()).collect(),
            group: group.to_vec(),
        })
    }
}

struct ThreadCommunicator {
    place: Arc<Place>,
    name: String,
    /// Which of the world's splits, and which group of it.
    id: (u64, usize),
    /// In the group.
    rank: usize,
    /// World ranks.
    group: Vec<usize>,
    collectives: Cell<u64>,
    /// By other rank: messages sent to it and received from it.
    messages: Vec<(Cell<u64>, Cell<u64>)>,
}

impl std::fmt::Debug for ThreadCommunicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "thread communicator `{}`, rank {} of {}", self.name, self.rank, self.group.len())
    }
}

/// The number, which is then the next one's predecessor.
fn next(counter: &Cell<u64>) -> u64 {
    counter.replace(counter.get() + 1)
}

impl ThreadCommunicator {
    /// Puts this rank's part of a transfer on the board.
    fn begin(
        &self,
        kind: CollectiveKind,
        between: Option<(usize, usize)>,
        number: u64,
        tensor: &Tensor,
    ) -> ThreadRequest {
        let (participants, me) = match between {
            Some((from, to)) => (vec![self.group[from], self.group[to]], usize::from(to == self.rank)),
            None => (self.group.clone(), self.rank),
        };
        // A receiver brings no values.
        let values = if between.is_some() && me == 1 { Vec::new() } else { host_memory::read(tensor) };
        let key = Key { communicator: self.id, between, number };
        let deposit = Deposit { kind, dtype: tensor.dtype, elements: tensor.elements(), values };
        self.place.board.put(&key, participants, me, deposit);
        let name = self.name.clone();
        ThreadRequest { place: self.place.clone(), name, kind, key, me, output: None }
    }
}

impl Communicator for ThreadCommunicator {
    fn name(&self) -> &str {
        &self.name
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.group.len()
    }

    fn members(&self) -> Vec<usize> {
        self.group.clone()
    }

    fn start(&self, kind: CollectiveKind, input: &Tensor, output: &Tensor) -> Result<Box<dyn Request>> {
        let (request, output) = match kind {
            CollectiveKind::Send { to } => {
                (self.begin(kind, Some((self.rank, to)), next(&self.messages[to].0), input), None)
            }
            CollectiveKind::Receive { from } => {
                (self.begin(kind, Some((from, self.rank)), next(&self.messages[from].1), output), Some(*output))
            }
            _ => (self.begin(kind, None, next(&self.collectives), input), Some(*output)),
        };
        Ok(Box::new(ThreadRequest { output, ..request }))
    }
}

struct ThreadRequest {
    place: Arc<Place>,
    name: String,
    kind: CollectiveKind,
    key: Key,
    /// This rank among the participants.
    me: usize,
    /// Where the result goes, if this rank gets one.
    output: Option<Tensor>,
}

impl Request for ThreadRequest {
    fn wait(self: Box<Self>) -> Result<()> {
        let Place { rank, timeout, ref board } = *self.place;
        let what = format!("{} number {} on {}", self.kind.name(), self.key.number, self.name);
        let taken = board.take(&self.key, rank, &what, timeout, |deposits| {
            agree(self.kind, self.me, deposits)?;
            if let Some(output) = &self.output {
                result(self.kind, self.me, deposits, output);
            }
            Ok(())
        });
        taken.map_err(|problem| Error::Communication {
            collective: self.kind.name(),
            communicator: self.name.clone(),
            problem: format!("number {}: {problem}", self.key.number),
        })
    }
}

/// Fails unless all take part in the same transfer.
fn agree(kind: CollectiveKind, me: usize, deposits: &[Arc<Deposit>]) -> std::result::Result<(), String> {
    let mine = &deposits[me];
    let is_message = kind.sender().or(kind.receiver()).is_some();
    for (rank, other) in deposits.iter().enumerate() {
        if other.elements != mine.elements || other.dtype != mine.dtype {
            let (theirs, ours) = ((other.elements, other.dtype), (mine.elements, mine.dtype));
            return Err(format!("{} {} here, {} {} on rank {rank}", ours.0, ours.1, theirs.0, theirs.1));
        }
        if other.kind != mine.kind && !is_message {
            return Err(format!("{} here, {} on rank {rank}", mine.kind.name(), other.kind.name()));
        }
    }
    Ok(())
}

/// Writes this rank's result. Sums are taken in rank order on every rank: f32 sums in one order have the same bits.
fn result(kind: CollectiveKind, me: usize, deposits: &[Arc<Deposit>], output: &Tensor) {
    let sum = |range: std::ops::Range<usize>| {
        let mut values = deposits[0].values[range.clone()].to_vec();
        for other in &deposits[1..] {
            values.iter_mut().zip(&other.values[range.clone()]).for_each(|(value, x)| *value += *x);
        }
        host_memory::write(output, values.into_iter());
    };
    let elements = deposits[me].elements;
    match kind {
        CollectiveKind::AllReduceSum => sum(0..elements),
        CollectiveKind::ReduceScatterSum => {
            let part = output.elements();
            sum(me * part..(me + 1) * part);
        }
        CollectiveKind::AllGather => {
            host_memory::write(output, deposits.iter().flat_map(|deposit| deposit.values.iter().copied()));
        }
        // The sender is the first of the two.
        _ => host_memory::write(output, deposits[0].values.iter().copied()),
    }
}
