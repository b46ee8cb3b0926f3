//! What a pass has moved: it must not have changed the places of two operations that meet in memory, or lost one.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::ops::Range;
use std::rc::Rc;

use device::{Accesses, BufferId, Op};

use super::piece::PieceEntry;
use crate::error::{Error, Result};

/// What a pass was given and has not put in the list, and what it has begun ahead.
pub(super) struct Moved<R> {
    /// The operations that it was given so far.
    count: u64,
    /// Those of the piece that it has.
    given: Vec<Given>,
    /// Those of earlier pieces that it keeps, by number, each with its region.
    kept: BTreeMap<u64, (R, Given)>,
    /// The bytes that they read and write, by buffer.
    bytes: HashMap<BufferId, Vec<Bytes>>,
    /// What began before the code submits it, which it has not done so far.
    begun: Vec<Begun<R>>,
}

#[derive(Clone)]
struct Given {
    number: u64,
    op: Rc<Op>,
    accesses: Rc<Accesses>,
}

struct Begun<R> {
    region: R,
    op: Rc<Op>,
    accesses: Rc<Accesses>,
    /// The number with which it came, in the piece that the pass has.
    came: Option<u64>,
}

struct Bytes {
    number: u64,
    range: Range<u64>,
    writes: bool,
}

impl<R> Default for Moved<R> {
    fn default() -> Moved<R> {
        Moved { count: 0, given: Vec::new(), kept: BTreeMap::new(), bytes: HashMap::new(), begun: Vec::new() }
    }
}

impl<R: Copy + Display> Moved<R> {
    /// Numbers the operations of a piece that the pass is about to get.
    pub(super) fn number(&mut self, entries: &mut [PieceEntry]) {
        self.given.clear();
        for entry in entries {
            self.count += 1;
            entry.number = self.count;
            let (op, accesses) = (entry.shared_op().clone(), entry.accesses().clone());
            self.given.push(Given { number: self.count, op, accesses });
        }
    }

    /// Compares a piece, as the pass left it, with what it was given.
    ///
    /// # Errors
    /// [`Error::Usage`] with two operations that changed places and must not have.
    pub(super) fn check(&mut self, pass: &'static str, region: R, entries: &[PieceEntry]) -> Result<()> {
        let given = std::mem::take(&mut self.given);
        let first = given.first().map_or(u64::MAX, |given| given.number);
        let is_as_given = entries.len() == given.len()
            && entries.iter().zip(&given).all(|(entry, given)| entry.number == given.number);
        if is_as_given && self.kept.is_empty() && self.begun.is_empty() {
            return Ok(());
        }
        // Those that the pass took from earlier pieces come before all of this piece.
        entries.iter().filter(|entry| entry.number < first).for_each(|entry| self.release(entry.number));
        let mut waiting: Vec<Option<&Given>> = given.iter().map(Some).collect();
        let is_out = |given: &Given| !entries.iter().any(|entry| entry.number == given.number);
        for given in given.iter().filter(|given| is_out(given)) {
            if let Some(begun) = self.begun.iter_mut().find(|begun| begun.came.is_none() && begun.op == given.op) {
                begun.came = Some(given.number);
                waiting[(given.number - first) as usize] = None;
            }
        }
        for (at, entry) in entries.iter().enumerate() {
            if entry.is_ahead() && entry.number == 0 {
                let (op, accesses) = (entry.shared_op().clone(), entry.accesses().clone());
                self.begun.push(Begun { region, op, accesses, came: None });
                continue;
            }
            let is_later = |begun: &&Begun<R>| begun.came.is_none_or(|came| came > entry.number);
            let begun = self.begun.iter().filter(is_later).find(|begun| begun.accesses.conflicts(entry.accesses()));
            if let Some(begun) = begun {
                return Err(swapped(pass, begun.region, &begun.op, entry.op()));
            }
            let meets = |other: &&PieceEntry| {
                !other.is_ahead() && other.number < entry.number.min(first) && other.conflicts_with(entry)
            };
            let jumped = |given: &&&Given| given.number < entry.number && given.accesses.conflicts(entry.accesses());
            let before = (self.kept_conflict(entry))
                .or_else(|| entries[at + 1..].iter().find(meets).map(PieceEntry::op))
                .or_else(|| waiting.iter().flatten().find(jumped).map(|given| &*given.op));
            // What comes early, and comes again, finds itself done.
            if let Some(other) = before.filter(|_| !entry.is_early()) {
                return Err(swapped(pass, region, entry.op(), other));
            }
            if entry.number >= first {
                waiting[(entry.number - first) as usize] = None;
            }
        }
        self.check_begun(pass)?;
        let kept: Vec<Given> = waiting.into_iter().flatten().cloned().collect();
        kept.into_iter().for_each(|given| self.keep(region, given));
        Ok(())
    }

    /// What began ahead and has come now must have begun in the order of the code.
    fn check_begun(&mut self, pass: &'static str) -> Result<()> {
        for (at, later) in self.begun.iter().enumerate().filter(|(_, begun)| begun.came.is_some()) {
            let comes_after = |earlier: &&Begun<R>| earlier.came.is_none_or(|came| Some(came) > later.came);
            let mut earlier = self.begun[..at].iter().filter(comes_after);
            if let Some(earlier) = earlier.find(|earlier| earlier.accesses.conflicts(&later.accesses)) {
                return Err(swapped(pass, earlier.region, &earlier.op, &later.op));
            }
        }
        self.begun.retain(|begun| begun.came.is_none());
        Ok(())
    }

    /// Fails if the step ends and the pass has kept operations.
    pub(super) fn check_end(&self, pass: &'static str) -> Result<()> {
        if let Some((region, given)) = self.kept.values().next() {
            let problem =
                format!("{region}: the pass `{pass}` kept `{}`, and the step ends without it", given.op.name());
            return Err(Error::usage(problem, "put it in a later piece"));
        }
        let Some(Begun { region, op, .. }) = self.begun.first() else { return Ok(()) };
        let problem = format!("{region}: the pass `{pass}` began `{}` ahead, and it never comes", op.name());
        Err(Error::usage(problem, "begin what the code submits later, and take it out there"))
    }

    /// An operation that the pass keeps and that comes before this one.
    fn kept_conflict(&self, entry: &PieceEntry) -> Option<&Op> {
        if self.kept.is_empty() {
            return None;
        }
        let accesses = entry.accesses();
        let reads = accesses.reads.iter().map(|tensor| (tensor, false));
        let found = reads.chain(accesses.writes.iter().map(|tensor| (tensor, true))).find_map(|(tensor, writes)| {
            let (range, kept) = (tensor.range(), self.bytes.get(&tensor.buffer)?);
            let meets = |kept: &&Bytes| {
                kept.number < entry.number
                    && (kept.writes || writes)
                    && kept.range.start < range.end
                    && range.start < kept.range.end
            };
            kept.iter().find(meets).map(|kept| kept.number)
        })?;
        self.kept.get(&found).map(|(_, given)| &*given.op)
    }

    fn keep(&mut self, region: R, given: Given) {
        let accesses = given.accesses.clone();
        for (tensors, writes) in [(&accesses.reads, false), (&accesses.writes, true)] {
            for tensor in tensors {
                let bytes = Bytes { number: given.number, range: tensor.range(), writes };
                self.bytes.entry(tensor.buffer).or_default().push(bytes);
            }
        }
        self.kept.insert(given.number, (region, given));
    }

    fn release(&mut self, number: u64) {
        let Some((_, given)) = self.kept.remove(&number) else { return };
        for tensor in given.accesses.reads.iter().chain(&given.accesses.writes) {
            if let Some(bytes) = self.bytes.get_mut(&tensor.buffer) {
                bytes.retain(|bytes| bytes.number != number);
            }
        }
    }
}

fn swapped(pass: &'static str, region: impl Display, early: &Op, other: &Op) -> Error {
    let problem = format!(
        "{region}: the pass `{pass}` has put `{}` before `{}`, which it comes after, and the two meet in memory",
        early.name(),
        other.name()
    );
    Error::usage(problem, "have the pass leave the order of operations that conflict")
}
