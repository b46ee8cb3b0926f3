//! The copies that a pass makes by moves.
//!
//! If the moves are erased, and each copy is named as its source, the list must be one that the pass might have made
//! without moves. For that a copy keeps five rules:
//!
//! - Only operations that the pass has made are erased. One of the code's that it leaves out is missed.
//! - The source of a copy is read from the move. An operation that uses the copy must be the code's operation on the source.
//! - A copy is one buffer, filled by one move. It is used after the move, within the bytes that were moved, and not after
//!   its source has changed.
//! - A copy that is written is moved back to its source before the step ends. Until then nothing uses the source, and no
//!   other copy is made of it.
//! - A copy is used in the microbatch that made it, if that is in a slot or not. (It is a buffer of the recording, so no
//!   other program can name it, and a body of `when` has no moves of its own.)

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::rc::Rc;

use device::ops::Move;
use device::{Accesses, BufferId, Op, Tensor};

use super::piece::{PieceEntry, TakenByPass};
use crate::error::{Error, Result};

/// The copies of a step so far.
#[derive(Default)]
pub(super) struct Copies {
    all: Vec<CopyOf>,
    /// By buffer of a copy: its number in `all`.
    by_buffer: HashMap<BufferId, usize>,
    /// By buffer of a source: numbers in `all`.
    by_source: HashMap<BufferId, Vec<usize>>,
    /// The buffers that the pass has taken.
    own: HashSet<BufferId>,
}

struct CopyOf {
    copy: Tensor,
    /// The tensor of the code's that `copy` is a copy of.
    source: Tensor,
    microbatch: Option<usize>,
    /// The region of the move.
    region: String,
    state: State,
}

#[derive(Clone, Copy)]
enum State {
    /// The copy has the source's values.
    Current,
    /// This operation has changed the source since.
    Outdated(&'static str),
    /// This operation has written the copy since. Its source has old values.
    Newer(&'static str),
}

/// The place of a piece of a pass.
#[derive(Clone, Copy)]
pub(super) struct Place<'p> {
    pub(super) pass: &'static str,
    pub(super) region: &'p str,
    pub(super) microbatch: Option<usize>,
}

impl Place<'_> {
    fn error(self, problem: impl Display, fix: &'static str) -> Error {
        let Place { pass, region, .. } = self;
        Error::usage(format!("{region}: the pass `{pass}` {problem}"), fix)
    }
}

impl Copies {
    pub(super) fn is_empty(&self) -> bool {
        self.own.is_empty()
    }

    /// Notes the buffers that the pass may fill.
    pub(super) fn may_fill(&mut self, taken: &[TakenByPass]) {
        self.own.extend(taken.iter().map(|taken| taken.tensor.buffer));
    }

    /// A move of the pass's comes next in the list.
    ///
    /// # Errors
    /// A move that breaks a rule.
    pub(super) fn add(&mut self, place: Place<'_>, op: &Move) -> Result<()> {
        let Move { input, output } = op;
        let source = match self.by_buffer.get(&input.buffer) {
            Some(&copy) => self.source(place, copy, "move", input)?,
            None if self.own.contains(&input.buffer) => {
                return Err(place.error("moves a buffer that nothing has filled", "move a tensor there first"));
            }
            None => *input,
        };
        if !self.own.contains(&output.buffer) {
            return self.bring_back(place, op);
        }
        if self.by_buffer.contains_key(&output.buffer) {
            return Err(place.error("fills a buffer twice", "take a buffer for each move"));
        }
        let newer = self.of_source(&source).find_map(|copy| match self.all[copy].state {
            State::Newer(writer) => Some(writer),
            _ => None,
        });
        if let Some(writer) = newer {
            let problem = format!("makes a copy of a tensor whose newest values, of `{writer}`, lie in another copy");
            return Err(place.error(problem, "move the written copy back before"));
        }
        let number = self.all.len();
        self.by_buffer.insert(output.buffer, number);
        self.by_source.entry(source.buffer).or_default().push(number);
        let (microbatch, region) = (place.microbatch, place.region.into());
        self.all.push(CopyOf { copy: *output, source, microbatch, region, state: State::Current });
        Ok(())
    }

    /// A move to memory of the code's: a copy goes back to its source.
    fn bring_back(&mut self, place: Place<'_>, op: &Move) -> Result<()> {
        let known = self.by_buffer.get(&op.input.buffer).copied();
        let is_home = |number: &usize| {
            let CopyOf { copy, source, .. } = &self.all[*number];
            let same = |a: &Tensor, b: &Tensor| (a.buffer, a.range()) == (b.buffer, b.range());
            same(copy, &op.input) && same(source, &op.output)
        };
        let Some(number) = known.filter(is_home) else {
            let problem = "moves a tensor to memory of the step's that it was not moved from";
            return Err(place.error(problem, "move to a buffer of Piece::buffer_like, or a whole copy back"));
        };
        self.all[number].state = State::Current;
        Ok(())
    }

    /// Notes that an operation of the code's comes next in the list, with `entry` from the pass.
    ///
    /// # Errors
    /// An operation that is not `of_code`, the operation of the code, once copies are named as their sources; a use of a copy
    /// or of its source that breaks a rule.
    pub(super) fn use_in(&mut self, place: Place<'_>, entry: &PieceEntry, of_code: &Rc<Op>) -> Result<()> {
        if !Rc::ptr_eq(entry.shared_op(), of_code) {
            let mut wrong = None;
            let named = entry.op().clone().map(|tensor| match self.by_buffer.get(&tensor.buffer) {
                Some(&copy) => self.source(place, copy, entry.op().name(), &tensor).unwrap_or_else(|error| {
                    wrong.get_or_insert(error);
                    tensor
                }),
                None => tensor,
            });
            if let Some(error) = wrong {
                return Err(error);
            }
            if !is_same(named, of_code) {
                let problem = format!("has changed `{}`: it is not the code's operation on copies", of_code.name());
                return Err(place.error(problem, "have it use copies of the same tensors alone"));
            }
        }
        let (name, accesses) = (entry.op().name(), entry.accesses());
        for tensor in &accesses.writes {
            if let Some(&copy) = self.by_buffer.get(&tensor.buffer) {
                let source = self.all[copy].source;
                let others: Vec<usize> = self.of_source(&source).filter(|other| *other != copy).collect();
                others.into_iter().for_each(|other| self.all[other].state = State::Outdated(name));
                self.all[copy].state = State::Newer(name);
            }
        }
        self.note_at_source(place.pass, &place.region, name, accesses)
    }

    /// Notes the use of tensors that are no copies.
    ///
    /// # Errors
    /// A tensor that is the source of a copy with newer values.
    pub(super) fn note_at_source(
        &mut self,
        pass: &'static str,
        region: &impl Display,
        name: &'static str,
        accesses: &Accesses,
    ) -> Result<()> {
        if self.all.is_empty() {
            return Ok(());
        }
        let Accesses { reads, writes } = accesses;
        for (tensor, writes) in reads.iter().map(|tensor| (tensor, false)).chain(writes.iter().map(|one| (one, true))) {
            let copies: Vec<usize> = self.of_source(tensor).collect();
            for copy in copies {
                if let State::Newer(writer) = self.all[copy].state {
                    let problem =
                        format!("leaves the values of `{writer}` in a copy, and `{name}` uses the tensor itself");
                    let region = region.to_string();
                    let place = Place { pass, region: &region, microbatch: None };
                    return Err(place.error(problem, "move the written copy back before"));
                }
                if writes {
                    self.all[copy].state = State::Outdated(name);
                }
            }
        }
        Ok(())
    }

    /// Fails if the step ends and a written copy was not moved back.
    pub(super) fn check_end(&self, pass: &'static str) -> Result<()> {
        let unfinished = self.all.iter().find_map(|copy| match copy.state {
            State::Newer(writer) => Some((&copy.region, writer)),
            _ => None,
        });
        let Some((region, writer)) = unfinished else { return Ok(()) };
        let place = Place { pass, region, microbatch: None };
        let problem = format!("makes a copy that `{writer}` writes, and does not move it back");
        Err(place.error(problem, "move it back to its source after its last write"))
    }

    /// The copies whose source shares bytes with a tensor.
    fn of_source(&self, tensor: &Tensor) -> impl Iterator<Item = usize> {
        let (range, copies) = (tensor.range(), self.by_source.get(&tensor.buffer));
        let shares = move |copy: &usize| {
            let source = self.all[*copy].source.range();
            source.start < range.end && range.start < source.end
        };
        copies.into_iter().flatten().copied().filter(shares)
    }

    /// The tensor of the code's that `part` of a copy stands for, in an operation of that name.
    ///
    /// # Errors
    /// The copy may not be used so.
    fn source(&self, place: Place<'_>, copy: usize, name: &'static str, part: &Tensor) -> Result<Tensor> {
        let CopyOf { copy, source, microbatch, region, state } = &self.all[copy];
        let whole = copy.range();
        if part.address < whole.start || part.range().end > whole.end {
            let problem = format!("has `{name}` use bytes of a copy that were not moved there");
            return Err(place.error(problem, "move all that is used"));
        }
        if let State::Outdated(writer) = state {
            let problem = format!("has `{name}` use a copy whose source `{writer}` has changed since");
            return Err(place.error(problem, "move the tensor after it has changed"));
        }
        if *microbatch != place.microbatch {
            let problem = format!("has `{name}` use a copy of another microbatch, made in {region}");
            return Err(place.error(problem, "make a copy for each microbatch: another one may have its memory"));
        }
        let address = source.address + (part.address - whole.start);
        Ok(Tensor { address, buffer: source.buffer, ..*part })
    }
}

/// Whether an operation is the code's. A pass may exchange its communicator for a twin.
fn is_same(mut op: Op, of_code: &Op) -> bool {
    if let (Op::Collective(transfer), Op::Collective(of_code)) = (&mut op, of_code) {
        transfer.communicator = of_code.communicator.clone();
    }
    op == *of_code
}
