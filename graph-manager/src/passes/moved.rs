//! Checks on a pass: it must not lose an operation, change one, or change the order of two that meet in memory. Its moves
//! are erased first, see `copies.rs`.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::ops::Range;
use std::rc::Rc;

use device::{Accesses, BufferId, Op};

use super::copies::{Copies, Place};
use super::piece::{Piece, PieceEntry};
use crate::error::{Error, Result};

/// The operations that a pass was given and has not put in the list, and the operations that the pass has begun ahead.
pub(super) struct Moved<R> {
    /// The number of operations that the pass was given so far.
    count: u64,
    /// The operations of the current piece.
    given: Vec<Given>,
    /// The operations of earlier pieces that the pass keeps, by number, each with a region.
    kept: BTreeMap<u64, (R, Given)>,
    /// The bytes that kept operations read and write, by buffer.
    bytes: HashMap<BufferId, Vec<Bytes>>,
    /// Operations that have begun ahead and that the code has not submitted yet.
    begun: Vec<Begun<R>>,
    /// The copies that the pass's moves have made.
    copies: Copies,
}

/// An operation of a piece after the pass, without moves: as the code submitted it.
struct Seen {
    /// As [`PieceEntry::number`]: 0 if it begins ahead.
    number: u64,
    op: Rc<Op>,
    accesses: Rc<Accesses>,
    early: bool,
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
    /// The number of the operation in the piece that the pass has, once the code has submitted the operation.
    came: Option<u64>,
}

struct Bytes {
    number: u64,
    range: Range<u64>,
    writes: bool,
}

impl<R> Default for Moved<R> {
    fn default() -> Moved<R> {
        let (kept, bytes, begun) = (BTreeMap::new(), HashMap::new(), Vec::new());
        Moved { count: 0, given: Vec::new(), kept, bytes, begun, copies: Copies::default() }
    }
}

impl<R: Copy + Display> Moved<R> {
    /// Numbers the operations of a piece that the pass is about to get.
    pub(super) fn number(&mut self, entries: &mut [PieceEntry]) {
        self.given.clear();
        for entry in entries {
            self.count += 1;
            (entry.number, entry.moves) = (self.count, false);
            let (op, accesses) = (entry.shared_op().clone(), entry.accesses().clone());
            self.given.push(Given { number: self.count, op, accesses });
        }
    }

    /// Compares a piece, as the pass left the piece, with the operations that the pass was given. `microbatch` is that
    /// of the piece's region.
    ///
    /// # Errors
    /// [`Error::Usage`] with two operations that changed places and must not, or with a wrong move.
    pub(super) fn check(&mut self, pass: &'static str, piece: &Piece<R>, microbatch: Option<usize>) -> Result<()> {
        let (given, region) = (std::mem::take(&mut self.given), piece.region);
        let first = given.first().map_or(u64::MAX, |given| given.number);
        let is_it = |(entry, given): (&PieceEntry, &Given)| {
            entry.number == given.number && Rc::ptr_eq(entry.shared_op(), &given.op)
        };
        let is_as_given = piece.entries.len() == given.len() && piece.entries.iter().zip(&given).all(is_it);
        if is_as_given && self.kept.is_empty() && self.begun.is_empty() && self.copies.is_empty() {
            return Ok(());
        }
        let entries = self.without_moves(pass, piece, microbatch, &given)?;
        // Those that the pass took from earlier pieces come before all of this piece.
        entries.iter().filter(|entry| entry.number < first).for_each(|entry| self.release(entry.number));
        let mut waiting: Vec<Option<&Given>> = given.iter().map(Some).collect();
        if !self.begun.is_empty() {
            self.come(&entries, &mut waiting, first);
        }
        for (at, entry) in entries.iter().enumerate() {
            if entry.is_new() {
                let (op, accesses) = (entry.op.clone(), entry.accesses.clone());
                self.begun.push(Begun { region, op, accesses, came: None });
                continue;
            }
            let is_later = |begun: &&Begun<R>| begun.came.is_none_or(|came| came > entry.number);
            if let Some(begun) = self.begun.iter().filter(is_later).find(|begun| meet(begun.of(), entry.of())) {
                return Err(swapped(pass, begun.region, begun.op.name(), entry.op.name()));
            }
            let earlier = |other: &&Seen| !other.is_new() && other.number < entry.number.min(first);
            let jumped = |given: &&&Given| given.number < entry.number;
            let before = (self.kept_before(entry.number, entry.of()))
                .or_else(|| {
                    let mut kept = entries[at + 1..].iter().filter(earlier);
                    kept.find(|other| meet(entry.of(), other.of())).map(Seen::of)
                })
                .or_else(|| {
                    let mut jumped = waiting.iter().flatten().filter(jumped);
                    jumped.find(|given| meet(entry.of(), given.of())).map(|given| given.of())
                });
            if let Some((other, _)) = before.filter(|(_, accesses)| !entry.finds_itself_done(accesses)) {
                return Err(swapped(pass, region, entry.op.name(), other.name()));
            }
            if entry.number >= first {
                waiting[(entry.number - first) as usize] = None;
            }
        }
        let left: Vec<Given> = waiting.into_iter().flatten().cloned().collect();
        self.check_come(pass, &left)?;
        left.into_iter().for_each(|given| self.keep(region, given));
        Ok(())
    }

    /// The operations of a piece as the code submitted the piece: without the pass's moves, and with copies named as
    /// their sources.
    fn without_moves(
        &mut self,
        pass: &'static str,
        piece: &Piece<R>,
        microbatch: Option<usize>,
        given: &[Given],
    ) -> Result<Vec<Seen>> {
        let first = given.first().map_or(u64::MAX, |given| given.number);
        let region = piece.region.to_string();
        let place = Place { pass, region: &region, microbatch };
        self.copies.may_fill(&piece.taken);
        let mut seen = Vec::with_capacity(piece.entries.len());
        for entry in &piece.entries {
            if let (true, Op::Move(op)) = (entry.moves, entry.op()) {
                self.copies.add(place, op)?;
                continue;
            }
            let of_code = match entry.number {
                0 => None,
                number if number >= first => given.get((number - first) as usize),
                number => self.kept.get(&number).map(|(_, given)| given),
            };
            let (op, accesses) = match of_code {
                Some(given) => (given.op.clone(), given.accesses.clone()),
                None => (entry.shared_op().clone(), entry.accesses().clone()),
            };
            self.copies.use_in(place, entry, &op)?;
            seen.push(Seen { number: entry.number, op, accesses, early: entry.is_early() });
        }
        Ok(seen)
    }

    /// Notes the operations that began ahead and that the code has submitted in this piece: the pass has taken them
    /// out.
    fn come(&mut self, entries: &[Seen], waiting: &mut [Option<&Given>], first: u64) {
        let mut is_in = vec![false; waiting.len()];
        for entry in entries.iter().filter(|entry| entry.number >= first) {
            is_in[(entry.number - first) as usize] = true;
        }
        for (at, given) in waiting.iter_mut().enumerate().filter(|(at, _)| !is_in[*at]) {
            let is_it = |begun: &&mut Begun<R>| begun.came.is_none() && given.is_some_and(|given| begun.op == given.op);
            if let Some(begun) = self.begun.iter_mut().find(is_it) {
                begun.came = Some(first + at as u64);
                *given = None;
            }
        }
    }

    /// Checks the operations that began ahead and have come now. They must have begun in the order of the code. None
    /// may meet an earlier operation that the pass keeps, nor one of `left`, the operations that it has taken from this
    /// piece.
    fn check_come(&mut self, pass: &'static str, left: &[Given]) -> Result<()> {
        for (at, later) in self.begun.iter().enumerate() {
            let Some(came) = later.came else { continue };
            let comes_after = |earlier: &&Begun<R>| earlier.came.is_none_or(|other| other > came);
            let mut earlier = self.begun[..at].iter().filter(comes_after);
            if let Some(earlier) = earlier.find(|earlier| meet(earlier.of(), later.of())) {
                return Err(swapped(pass, earlier.region, earlier.op.name(), later.op.name()));
            }
            let left = left.iter().find(|given| given.number < came && meet(given.of(), later.of())).map(Given::of);
            if let Some((kept, _)) = self.kept_before(came, later.of()).or(left) {
                return Err(swapped(pass, later.region, later.op.name(), kept.name()));
            }
        }
        self.begun.retain(|begun| begun.came.is_none());
        Ok(())
    }

    /// Fails if work that enters the list now meets operations that the pass keeps or has begun ahead, or memory whose
    /// newest values lie in a copy.
    pub(super) fn check_direct(
        &mut self,
        pass: &'static str,
        region: R,
        name: &'static str,
        accesses: &Accesses,
    ) -> Result<()> {
        if let Some((_, kept)) = self.kept.values().find(|(_, kept)| kept.accesses.conflicts(accesses)) {
            return Err(swapped(pass, region, name, kept.op.name()));
        }
        match self.begun.iter().find(|begun| begun.accesses.conflicts(accesses)) {
            Some(begun) => Err(swapped(pass, begun.region, begun.op.name(), name)),
            None => self.copies.note_at_source(pass, &region, name, accesses),
        }
    }

    /// Fails if the step ends and the pass has kept operations.
    pub(super) fn check_end(&self, pass: &'static str) -> Result<()> {
        self.copies.check_end(pass)?;
        if let Some((region, given)) = self.kept.values().next() {
            let problem =
                format!("{region}: the pass `{pass}` kept `{}`, and the step ends without it", given.op.name());
            return Err(Error::usage(problem, "put it in a later piece"));
        }
        let Some(Begun { region, op, .. }) = self.begun.first() else { return Ok(()) };
        let problem = format!("{region}: the pass `{pass}` began `{}` ahead, and it never comes", op.name());
        Err(Error::usage(problem, "begin what the code submits later, and take it out there"))
    }

    /// An operation that the pass keeps, that comes before that number, and that touches the memory of `op`.
    fn kept_before(&self, number: u64, (op, accesses): Of<'_>) -> Option<Of<'_>> {
        if self.kept.is_empty() {
            return None;
        }
        if matches!(op, Op::Collective(_)) {
            let mut before = self.kept.range(..number).map(|(_, (_, given))| given.of());
            return before.find(|kept| meet(*kept, (op, accesses)));
        }
        let reads = accesses.reads.iter().map(|tensor| (tensor, false));
        let found = reads.chain(accesses.writes.iter().map(|tensor| (tensor, true))).find_map(|(tensor, writes)| {
            let (range, kept) = (tensor.range(), self.bytes.get(&tensor.buffer)?);
            let meets = |kept: &&Bytes| {
                kept.number < number
                    && (kept.writes || writes)
                    && kept.range.start < range.end
                    && range.start < kept.range.end
            };
            kept.iter().find(meets).map(|kept| kept.number)
        })?;
        self.kept.get(&found).map(|(_, given)| given.of())
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
            let Some(bytes) = self.bytes.get_mut(&tensor.buffer) else { continue };
            bytes.retain(|bytes| bytes.number != number);
            if bytes.is_empty() {
                self.bytes.remove(&tensor.buffer);
            }
        }
    }
}

/// An operation, with the operation's reads and writes.
pub(super) type Of<'o> = (&'o Op, &'o Accesses);

impl Seen {
    /// Whether the operation begins ahead.
    fn is_new(&self) -> bool {
        self.number == 0
    }

    fn of(&self) -> Of<'_> {
        (&self.op, &self.accesses)
    }

    /// Whether the operation may come before an operation that touches the same memory. True for an early operation, if
    /// the other does not write its inputs: it has run before, and to run it again changes nothing.
    fn finds_itself_done(&self, other: &Accesses) -> bool {
        self.early && !Accesses::new(self.accesses.reads.iter().copied(), []).conflicts(other)
    }
}

impl Given {
    fn of(&self) -> Of<'_> {
        (&self.op, &self.accesses)
    }
}

impl<R> Begun<R> {
    fn of(&self) -> Of<'_> {
        (&self.op, &self.accesses)
    }
}

/// Whether the order of two operations matters: they meet in memory, or other ranks take part in both by one
/// communicator.
fn meet((a, of_a): Of<'_>, (b, of_b): Of<'_>) -> bool {
    let share_ranks = match (a, b) {
        (Op::Collective(a), Op::Collective(b)) => Rc::ptr_eq(&a.communicator, &b.communicator),
        _ => false,
    };
    share_ranks || of_a.conflicts(of_b)
}

fn swapped(pass: &'static str, region: impl Display, early: &'static str, other: &'static str) -> Error {
    let problem = format!(
        "{region}: the pass `{pass}` has put `{early}` before `{other}`, which it comes after, and the two meet in memory \
         or on a communicator"
    );
    Error::usage(problem, "have the pass leave the order of operations that conflict")
}
