//! Rows that go to the ranks of experts and back, beside products that do not need the rows.
//!
//! A transfer begins as soon as its values are there, ahead of products that come before it in the code: in forward those
//! of the shared expert, in backward those of the experts' own gradients. Then work that comes after the last transfer's
//! first reader, and needs neither, is done before that reader: the shared expert's backward. If a forward has nothing
//! there, the later half of the products that ran beside earlier transfers is left for the last one.
//!
//! Transfers of rows have a queue of their own, one for each lane. A transfer that no product runs beside stays in its place.
//!
//! Order that it removes: products between a transfer and its first reader do not wait for the transfer.

use std::rc::Rc;

use device::{Communicator, Device, Op};
use graph_manager::{Piece, PieceEntry, SideStream, StepPass};

use super::name::PassName;
use crate::regions::Region;

/// The pass.
pub(crate) struct ExpertRows {
    queues: ExpertRowQueues,
    groups: Vec<Rc<dyn Communicator>>,
}

/// The queues of transfers.
#[derive(Clone)]
pub(crate) struct ExpertRowQueues {
    /// Of the compute stream's lane.
    main: Rc<SideStream>,
    /// Of the second lane.
    aside: Rc<SideStream>,
}

impl ExpertRowQueues {
    pub(crate) fn new(device: &Device) -> ExpertRowQueues {
        let of = |name| SideStream::new(device, name);
        ExpertRowQueues { main: of("rows of experts"), aside: of("rows of experts, aside") }
    }
}

impl ExpertRows {
    /// The pass for transfers of `groups`.
    pub(crate) fn new(queues: &ExpertRowQueues, groups: Vec<Rc<dyn Communicator>>) -> ExpertRows {
        ExpertRows { queues: queues.clone(), groups }
    }

    fn is_own(&self, entry: &PieceEntry) -> bool {
        self.groups.iter().any(|group| entry.is_transfer_of(group))
    }

    /// Whether an entry may be moved with a transfer that the entry has values for.
    fn is_small(entry: &PieceEntry) -> bool {
        entry.queue().is_none() && !is_product(entry) && !matches!(entry.op(), Op::Collective(_))
    }

    /// Moves each transfer, with the small operations that make the transfer's values, ahead of products that neither
    /// needs.
    fn hoist(&self, entries: &mut Vec<PieceEntry>) {
        for at in 0..entries.len() {
            if !self.is_own(&entries[at]) {
                continue;
            }
            let (mut taken, mut to) = (vec![at], at);
            for before in (0..at).rev() {
                let entry = &entries[before];
                if taken.iter().any(|taken| entries[*taken].conflicts_with(entry)) {
                    if !ExpertRows::is_small(entry) {
                        break;
                    }
                    taken.push(before);
                } else if self.is_own(entry) {
                    break;
                } else if is_product(entry) {
                    to = before;
                }
            }
            taken.retain(|taken| *taken > to);
            taken.reverse();
            move_to(entries, &taken, to);
        }
    }

    /// Moves work that comes after the first reader of the last transfer, and needs neither, ahead of that reader.
    fn pull(&self, entries: &mut Vec<PieceEntry>) {
        let Some(last) = entries.iter().rposition(|entry| self.is_own(entry)) else { return };
        let Some(reader) = first_reader(entries, last) else { return };
        let (mut stay, mut pulled) = (vec![reader], Vec::new());
        for later in reader + 1..entries.len() {
            let entry = &entries[later];
            let waits = || stay.iter().any(|stays| entries[*stays].conflicts_with(entry));
            if is_fixed(entry) || waits() { stay.push(later) } else { pulled.push(later) }
        }
        let end = pulled.iter().rposition(|pulled| is_product(&entries[*pulled]));
        pulled.truncate(end.map_or(0, |end| end + 1));
        move_to(entries, &pulled, reader);
    }

    /// Moves the later half of the products that the last transfer does not need, with all that follows
    /// from that half, behind the transfer.
    fn leave(&self, entries: &mut Vec<PieceEntry>) {
        let Some(last) = entries.iter().rposition(|entry| self.is_own(entry)) else { return };
        let reader = first_reader(entries, last).unwrap_or(entries.len());
        if entries[last..reader].iter().any(is_product) {
            return;
        }
        let (mut needed, mut free) = (vec![last], Vec::new());
        for before in (0..last).rev() {
            let entry = &entries[before];
            let is_needed = || needed.iter().any(|needed| entries[*needed].conflicts_with(entry));
            if is_fixed(entry) || is_needed() { needed.push(before) } else { free.push(before) }
        }
        free.reverse();
        let products: Vec<usize> = free.iter().copied().filter(|free| is_product(&entries[*free])).collect();
        let Some(&first) = products.get(products.len().div_ceil(2)) else { return };
        free.retain(|free| *free >= first);
        // Behind the transfer: in front of the entry after it.
        let behind = entries.split_off(last + 1);
        move_to(entries, &free, last + 1);
        entries.extend(behind);
    }

    /// Puts the transfers that products run beside on the queue.
    fn put(&self, piece: &mut Piece<Region>) {
        let queue = if piece.is_aside() { &self.queues.aside } else { &self.queues.main };
        let entries = &mut piece.entries;
        // Transfers on the queue that nothing has waited for.
        let mut under_way: Vec<usize> = Vec::new();
        for at in 0..entries.len() {
            if !self.is_own(&entries[at]) {
                let waits_for = under_way.iter().rposition(|under| entries[*under].conflicts_with(&entries[at]));
                if let (Some(last), None) = (waits_for, entries[at].queue()) {
                    under_way.drain(..=last);
                }
                continue;
            }
            let reader = first_reader(entries, at).unwrap_or(entries.len());
            // Two transfers of a group must not be under way at once on two queues.
            if !under_way.is_empty() || entries[at + 1..reader].iter().any(is_product) {
                entries[at].put_on(queue);
                under_way.push(at);
            }
        }
        // A later region's transfers must not be under way at the same time.
        if !under_way.is_empty() {
            piece.joins.push(queue.clone());
        }
    }
}

/// Whether the entry is a product of the region's own queue: it takes as long as a transfer does.
fn is_product(entry: &PieceEntry) -> bool {
    let takes_long =
        matches!(entry.op(), Op::Gemm(_) | Op::GroupedGemm(_) | Op::Attention(_) | Op::AttentionBackward(_));
    takes_long && entry.queue().is_none()
}

/// The first entry of the region's own queue that waits for the one at `at`.
fn first_reader(entries: &[PieceEntry], at: usize) -> Option<usize> {
    let waits = |later: &usize| entries[*later].queue().is_none() && entries[*later].conflicts_with(&entries[at]);
    (at + 1..entries.len()).find(waits)
}

/// Moves entries, in ascending order, in front of the one at `to`.
fn move_to(entries: &mut Vec<PieceEntry>, moved: &[usize], to: usize) {
    let mut taken: Vec<PieceEntry> = moved.iter().rev().map(|at| entries.remove(*at)).collect();
    taken.reverse();
    let before = moved.iter().filter(|at| **at < to).count();
    entries.splice(to - before..to - before, taken);
}

impl StepPass<Region> for ExpertRows {
    fn name(&self) -> &'static str {
        PassName::ExpertRows.words()
    }

    fn apply(&mut self, piece: &mut Piece<Region>) {
        let is_of_layer = piece.region().layer_and_microbatch().is_some();
        if !is_of_layer || !piece.entries.iter().any(|entry| self.is_own(entry)) {
            return;
        }
        self.hoist(&mut piece.entries);
        self.pull(&mut piece.entries);
        if !piece.region().is_backward() {
            self.leave(&mut piece.entries);
        }
        self.put(piece);
    }
}

/// Whether an entry keeps the entry's place among others. Transfers of a communicator have the same order on all ranks.
fn is_fixed(entry: &PieceEntry) -> bool {
    entry.queue().is_some() || matches!(entry.op(), Op::Collective(_))
}
