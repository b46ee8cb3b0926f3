//! Ranks that are threads of one process, for tests and for checks of a layout.
//!
//! The semantics are those of real communicators: a transfer starts when it is submitted, and completes when its
//! partners have submitted theirs. Collectives are matched by their number on the communicator, messages by their
//! number between sender and receiver. If all ranks wait for each other, each gets an error that names all waits, so a
//! deadlock fails a test at once.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use device::ops::CollectiveKind;
use device::{Communicator, Error, Request, Result, Tensor};

use crate::host_memory;
use crate::ranks::{Connections, Ranks};
use crate::rendezvous::{Contribution, Rendezvous, TransferKey};

/// A world of ranks that are threads of this process.
pub struct ThreadWorld;

/// One rank of a [`ThreadWorld`], to be moved to the rank's thread.
pub struct ThreadRank {
    member: Arc<Member>,
    size: usize,
    /// The number of communicators made so far. All ranks make theirs in the same order.
    made: Cell<u64>,
    moves_rows: bool,
}

/// A rank's membership. It ends when the rank's last communicator is dropped.
struct Member {
    /// World rank.
    rank: usize,
    timeout: Duration,
    rendezvous: Arc<Rendezvous>,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.rendezvous.leave(self.rank);
    }
}

impl ThreadWorld {
    /// A world of `size` ranks. Waiting for a rank that is busy with other work is an error after `timeout`. A deadlock is
    /// an error at once.
    pub fn ranks(size: usize, timeout: Duration) -> Vec<ThreadRank> {
        let rendezvous = Arc::new(Rendezvous::new(size));
        let member = |rank| Arc::new(Member { rank, timeout, rendezvous: rendezvous.clone() });
        (0..size).map(|rank| ThreadRank { member: member(rank), size, made: Cell::new(0), moves_rows: false }).collect()
    }
}

impl ThreadRank {
    /// The number of this rank, from 0.
    pub fn rank(&self) -> usize {
        self.member.rank
    }

    /// The same rank with communicators that exchange rows from place to place, as GPUs do that reach each other's
    /// memory. All ranks are alike.
    #[must_use]
    pub fn moving_rows(self) -> ThreadRank {
        ThreadRank { moves_rows: true, ..self }
    }

    /// A communicator over all ranks. All ranks make their communicators in the same order.
    pub fn communicator(&self, name: &str) -> Rc<dyn Communicator> {
        self.split(name, &(0..self.size).collect::<Vec<_>>())
    }

    /// The communicators of this rank. All ranks call it together, with the same connections.
    ///
    /// # Errors
    /// A rank that does not come.
    pub fn connect(&self, connections: &Connections) -> Result<Rc<Ranks>> {
        let mut connect =
            |name: &str, group: Vec<usize>| Ok(Some(self.split(name, &group)).filter(|_| group.len() > 1));
        Ranks::connect(connections, self.rank(), &mut connect)
    }

    /// Divides the world into groups, each with a communicator; `group` has the world ranks of this rank's. All ranks make
    /// their communicators in the same order.
    ///
    /// # Panics
    /// If this rank is not in its group.
    pub fn split(&self, name: &str, group: &[usize]) -> Rc<dyn Communicator> {
        let Some(rank) = group.iter().position(|&rank| rank == self.member.rank) else {
            panic!("rank {} is not in its group {group:?}", self.member.rank);
        };
        self.made.set(self.made.get() + 1);
        Rc::new(ThreadCommunicator {
            member: self.member.clone(),
            name: name.into(),
            id: (self.made.get(), group[0]),
            rank,
            collectives: Cell::new(0),
            messages: (0..group.len()).map(|_| Default::default()).collect(),
            group: group.to_vec(),
            moves_rows: self.moves_rows,
        })
    }
}

struct ThreadCommunicator {
    member: Arc<Member>,
    name: String,
    /// The number of the split of the world, and the first rank of the group.
    id: (u64, usize),
    /// Rank in the group.
    rank: usize,
    /// World ranks.
    group: Vec<usize>,
    collectives: Cell<u64>,
    /// By rank of the group: the numbers of messages sent to it and received from it.
    messages: Vec<(Cell<u64>, Cell<u64>)>,
    moves_rows: bool,
}

impl std::fmt::Debug for ThreadCommunicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "thread communicator `{}`, rank {} of {}", self.name, self.rank, self.group.len())
    }
}

/// Increments a counter and returns the previous value.
fn next(counter: &Cell<u64>) -> u64 {
    counter.replace(counter.get() + 1)
}

impl ThreadCommunicator {
    /// Submits this rank's part of a transfer.
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
        let receives = match kind {
            CollectiveKind::Broadcast { from } => from != me,
            _ => between.is_some() && me == 1,
        };
        // A receiver contributes no values.
        let values = if receives { Vec::new() } else { host_memory::read(tensor) };
        let key = TransferKey { communicator: self.id, between, number };
        let contribution = Contribution { kind, dtype: tensor.dtype, elements: tensor.elements(), values };
        self.member.rendezvous.put(&key, participants, me, contribution);
        let name = self.name.clone();
        ThreadRequest { member: self.member.clone(), name, kind, key, me, output: None }
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

    fn moves_rows(&self) -> bool {
        self.moves_rows
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
    member: Arc<Member>,
    name: String,
    kind: CollectiveKind,
    key: TransferKey,
    /// The number of this rank among the participants.
    me: usize,
    /// The tensor for the result. `None` for a sender.
    output: Option<Tensor>,
}

impl Request for ThreadRequest {
    fn wait(self: Box<Self>) -> Result<()> {
        let Member { rank, timeout, ref rendezvous } = *self.member;
        let what = format!("{} number {} on {}", self.kind.name(), self.key.number, self.name);
        let taken = rendezvous.take(&self.key, rank, &what, timeout, |contributions| {
            agree(self.kind, self.me, contributions)?;
            if let Some(output) = &self.output {
                write_result(self.kind, self.me, contributions, output);
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

/// Fails unless all ranks submitted the same transfer.
fn agree(kind: CollectiveKind, me: usize, contributions: &[Arc<Contribution>]) -> std::result::Result<(), String> {
    let mine = &contributions[me];
    let is_message = kind.sender().or(kind.receiver()).is_some();
    for (rank, other) in contributions.iter().enumerate() {
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

/// Writes this rank's result. Every rank combines values in rank order, so all have the same bits.
fn write_result(kind: CollectiveKind, me: usize, contributions: &[Arc<Contribution>], output: &Tensor) {
    let reduce = |range: std::ops::Range<usize>, combine: fn(f32, f32) -> f32| {
        let mut values = contributions[0].values[range.clone()].to_vec();
        for other in &contributions[1..] {
            values.iter_mut().zip(&other.values[range.clone()]).for_each(|(value, x)| *value = combine(*value, *x));
        }
        host_memory::write(output, values.into_iter());
    };
    let sum = |range| reduce(range, |a, b| a + b);
    let elements = contributions[me].elements;
    match kind {
        CollectiveKind::AllReduceSum => sum(0..elements),
        CollectiveKind::AllReduceMax => reduce(0..elements, f32::max),
        CollectiveKind::ReduceScatterSum => {
            let part = output.elements();
            sum(me * part..(me + 1) * part);
        }
        CollectiveKind::AllGather => {
            host_memory::write(
                output,
                contributions.iter().flat_map(|contribution| contribution.values.iter().copied()),
            );
        }
        CollectiveKind::Broadcast { from } => host_memory::write(output, contributions[from].values.iter().copied()),
        CollectiveKind::ReduceSum { to } if to == me => sum(0..elements),
        CollectiveKind::ReduceSum { .. } => {}
        CollectiveKind::AllToAll => {
            let part = output.elements() / contributions.len();
            let parts = contributions.iter().map(|from| &from.values[me * part..(me + 1) * part]);
            host_memory::write(output, parts.flatten().copied());
        }
        CollectiveKind::ToNext => {
            let before = (me + contributions.len() - 1) % contributions.len();
            host_memory::write(output, contributions[before].values.iter().copied());
        }
        // A message: participant 0 is the sender.
        _ => host_memory::write(output, contributions[0].values.iter().copied()),
    }
}
