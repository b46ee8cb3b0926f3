//! Ranks as threads of one process, with the semantics of a real communicator: a transfer starts when it is submitted,
//! completes when all ranks have submitted theirs, and is matched by its number in the communicator's order. A rank
//! that waits for one that never comes gets an error, not a hang, so deadlocks show in tests.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use device::{Communicator, Error, Request, Result, Tensor};

/// The meeting place of a group of threads.
pub struct ThreadWorld;

/// One rank's place in a [`ThreadWorld`], to be taken to its thread.
pub struct ThreadRank {
    rank: usize,
    size: usize,
    timeout: Duration,
    board: Arc<Board>,
}

/// Transfers by number: what each rank deposited.
#[derive(Default)]
struct Board {
    transfers: Mutex<HashMap<u64, Transfer>>,
    changed: Condvar,
}

#[derive(Default)]
struct Transfer {
    deposits: Vec<Option<Vec<f32>>>,
    /// Ranks that have taken the result.
    taken: usize,
}

impl ThreadWorld {
    /// A world of `size` ranks. A wait ends with an error after `timeout`.
    pub fn ranks(size: usize, timeout: Duration) -> Vec<ThreadRank> {
        let board = Arc::new(Board::default());
        (0..size).map(|rank| ThreadRank { rank, size, timeout, board: board.clone() }).collect()
    }
}

impl ThreadRank {
    /// The communicator, on the rank's own thread.
    pub fn communicator(self, name: &str) -> Rc<dyn Communicator> {
        Rc::new(ThreadCommunicator { place: Arc::new(self), name: name.into(), submitted: Cell::new(0) })
    }
}

struct ThreadCommunicator {
    place: Arc<ThreadRank>,
    name: String,
    submitted: Cell<u64>,
}

impl std::fmt::Debug for ThreadCommunicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "thread communicator `{}`, rank {} of {}", self.name, self.place.rank, self.place.size)
    }
}

impl Communicator for ThreadCommunicator {
    fn name(&self) -> &str {
        &self.name
    }

    fn rank(&self) -> usize {
        self.place.rank
    }

    fn size(&self) -> usize {
        self.place.size
    }

    fn start_all_reduce_sum(&self, tensor: &Tensor) -> Result<Box<dyn Request>> {
        let number = self.submitted.get();
        self.submitted.set(number + 1);
        // SAFETY: the device checked that the tensor lies in live host memory that this thread alone uses.
        let values = unsafe { std::slice::from_raw_parts(tensor.address as *const f32, tensor.elements()) }.to_vec();
        let mut transfers = self.place.board.transfers.lock().unwrap_or_else(PoisonError::into_inner);
        let transfer = transfers.entry(number).or_default();
        transfer.deposits.resize(self.place.size, None);
        transfer.deposits[self.place.rank] = Some(values);
        self.place.board.changed.notify_all();
        let request = ThreadRequest { place: self.place.clone(), name: self.name.clone(), number, tensor: *tensor };
        Ok(Box::new(request))
    }
}

struct ThreadRequest {
    place: Arc<ThreadRank>,
    name: String,
    number: u64,
    tensor: Tensor,
}

impl ThreadRequest {
    fn failed(&self, problem: String) -> Error {
        Error::Communication { collective: "all-reduce", communicator: self.name.clone(), problem }
    }
}

impl Request for ThreadRequest {
    fn wait(self: Box<Self>) -> Result<()> {
        let complete = |transfers: &HashMap<u64, Transfer>| {
            transfers.get(&self.number).is_some_and(|transfer| transfer.deposits.iter().all(Option::is_some))
        };
        let transfers = self.place.board.transfers.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut transfers, _) = self
            .place
            .board
            .changed
            .wait_timeout_while(transfers, self.place.timeout, |transfers| !complete(transfers))
            .unwrap_or_else(PoisonError::into_inner);
        let number = self.number;
        if !complete(&transfers) {
            let missing: Vec<usize> = match transfers.get(&number) {
                Some(transfer) => (0..self.place.size).filter(|&rank| transfer.deposits[rank].is_none()).collect(),
                None => Vec::new(),
            };
            let timeout = self.place.timeout;
            return Err(self.failed(format!("number {number} waited {timeout:?} for ranks {missing:?}")));
        }
        let Some(transfer) = transfers.get_mut(&number) else { return Ok(()) };
        let elements = self.tensor.elements();
        if let Some(other) = transfer.deposits.iter().flatten().find(|values| values.len() != elements) {
            let problem = format!("number {number} has {elements} elements here and {} elsewhere", other.len());
            return Err(self.failed(problem));
        }
        // SAFETY: as in `start_all_reduce_sum`.
        let out = unsafe { std::slice::from_raw_parts_mut(self.tensor.address as *mut f32, elements) };
        out.fill(0.0);
        for values in transfer.deposits.iter().flatten() {
            out.iter_mut().zip(values).for_each(|(out, x)| *out += x);
        }
        transfer.taken += 1;
        if transfer.taken == self.place.size {
            transfers.remove(&number);
        }
        Ok(())
    }
}
