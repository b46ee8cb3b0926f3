//! Transfers between ranks that share layers, in backwards, and of keys between ranks that divide sequences, beside
//! products that do not need the transfer.
//!
//! A transfer that a product separates from its first reader runs beside that product. Otherwise it is **exposed**: the
//! next operation reads it. Weight gradients wait for nothing and nothing waits for them, so they are computed while an
//! exposed transfer runs. If a second exposed transfer comes before new weight gradients do, the two transfers share
//! them: half each.
//!
//! Such transfers have a queue of their own. Its work starts before products that are ready at the same time: a product
//! that begins first would occupy the whole GPU until it ends.
//!
//! Order that it removes: operations between a transfer and its first reader do not wait for the transfer.

use std::rc::Rc;

use device::ops::CollectiveKind;
use device::{Communicator, Op};
use graph_manager::{Piece, PieceEntry, SideStream, StepPass};

use super::name::PassName;
use crate::regions::Region;

/// The pass.
pub(crate) struct TensorParallelTransfers {
    queue: Rc<SideStream>,
    /// The ranks whose transfers run beside products in backwards.
    in_backwards: Vec<Rc<dyn Communicator>>,
    /// The ranks of `in_backwards` that divide sequences.
    in_forwards: Vec<Rc<dyn Communicator>>,
}

impl TensorParallelTransfers {
    /// For transfers of ranks that share layers, and of `keys`.
    pub(crate) fn new(
        queue: &Rc<SideStream>,
        tensor: Option<&Rc<dyn Communicator>>,
        keys: Option<&Rc<dyn Communicator>>,
    ) -> TensorParallelTransfers {
        let in_backwards = tensor.into_iter().chain(keys).cloned().collect();
        TensorParallelTransfers { queue: queue.clone(), in_backwards, in_forwards: keys.into_iter().cloned().collect() }
    }
}

/// The groups whose transfers a piece covers.
struct Groups<'p>(&'p [Rc<dyn Communicator>]);

impl Groups<'_> {
    /// Whether the entry is a transfer of one of the groups.
    fn is_own(&self, entry: &PieceEntry) -> bool {
        self.0.iter().any(|group| entry.is_transfer_of(group))
    }

    /// Whether the entry brings rows of the residual stream or of the stream's gradient: products read them. A sum in
    /// place of such rows has three axes, `(batch, seq, hidden)`; sums of statistics and of gradients of parameters
    /// have fewer.
    fn is_large(&self, entry: &PieceEntry) -> bool {
        let Op::Collective(transfer) = entry.op() else { return false };
        let brings_rows = match transfer.kind {
            CollectiveKind::AllGather | CollectiveKind::ReduceScatterSum | CollectiveKind::ToNext => true,
            CollectiveKind::AllReduceSum => transfer.output.shape.sizes().len() > 2,
            _ => false,
        };
        brings_rows && self.is_own(entry)
    }

    /// How the transfer at `at` lies between neighbouring entries.
    fn look(&self, entries: &[PieceEntry], at: usize) -> Found {
        let (transfer, later) = (&entries[at], &entries[at + 1..]);
        let Some(reader) = later.iter().position(|later| later.conflicts_with(transfer)) else { return Found::Unread };
        match later[..reader].iter().any(|between| between.queue().is_none() && is_product(between)) {
            true => Found::Covered { reader: at + 1 + reader },
            false => Found::Exposed,
        }
    }
}

/// How a transfer lies in a piece.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    /// Nothing in the piece reads the transfer's values.
    Unread,
    /// Nothing that takes long lies between the transfer and the transfer's first reader.
    Exposed,
    /// A product does.
    Covered { reader: usize },
}

/// Whether an operation takes as long as a transfer does.
fn is_product(entry: &PieceEntry) -> bool {
    matches!(entry.op(), Op::Gemm(_) | Op::Attention(_) | Op::AttentionBackward(_))
}

/// A piece during a change of order.
#[derive(Default)]
struct Ordered {
    entries: Vec<PieceEntry>,
    /// Weight gradients that wait for an exposed transfer.
    held: Vec<PieceEntry>,
    /// Readers of covered transfers, other than products: they wait for the next transfer, so that more products cover
    /// this one.
    late: Vec<PieceEntry>,
    /// Transfers on the queue that nothing has waited for, by index in `entries`.
    under_way: Vec<usize>,
}

impl Ordered {
    fn push(&mut self, entry: PieceEntry) {
        // An operation that waits for a transfer waits for those before it.
        let waits_for = self.under_way.iter().rposition(|at| self.entries[*at].conflicts_with(&entry));
        if let (Some(last), None) = (waits_for, entry.queue()) {
            self.under_way.drain(..=last);
        }
        self.entries.push(entry);
    }

    fn push_late(&mut self) {
        std::mem::take(&mut self.late).into_iter().for_each(|entry| self.push(entry));
    }

    /// Releases the first `count` weight gradients that were held, after the operations that the gradients wait for.
    fn release(&mut self, count: usize) {
        if count > 0 {
            self.push_late();
        }
        self.held.drain(..count).collect::<Vec<_>>().into_iter().for_each(|entry| self.push(entry));
    }

    /// The number of held weight gradients, up to the middle product.
    fn half(&self) -> usize {
        let is_product = |entry: &&PieceEntry| is_product(entry);
        let products = self.held.iter().filter(is_product).count();
        let second = self.held.iter().enumerate().filter(|(_, entry)| is_product(entry)).nth(products.div_ceil(2));
        second.map_or(self.held.len(), |(at, _)| at)
    }
}

impl TensorParallelTransfers {
    /// Puts a piece in another order. Weight gradients of a backward, which an earlier pass has put on a queue, are held
    /// until an exposed transfer, or an operation that they must not come after. Readers of covered transfers other
    /// than products wait for the next transfer. All else keeps its order.
    fn cover(&self, piece: &mut Piece<Region>, groups: &Groups<'_>) {
        let is_backward = piece.region().is_backward();
        let entries = std::mem::take(&mut piece.entries);
        let found: Vec<Option<Found>> =
            (0..entries.len()).map(|at| groups.is_large(&entries[at]).then(|| groups.look(&entries, at))).collect();
        // The only entries of backwards with a queue so far are those of the pass for weight gradients.
        let is_gradient: Vec<bool> = entries.iter().map(|entry| is_backward && entry.queue().is_some()).collect();
        let next_exposed = |at: usize| (at..found.len()).find(|at| found[*at] == Some(Found::Exposed));
        let reads_covered = |at: usize| found.contains(&Some(Found::Covered { reader: at }));
        let mut ordered = Ordered::default();
        for (at, mut entry) in entries.into_iter().enumerate() {
            if is_gradient[at] {
                match next_exposed(at) {
                    Some(_) => ordered.held.push(entry),
                    None => {
                        ordered.push_late();
                        ordered.push(entry);
                    }
                }
                continue;
            }
            let is_after_late = ordered.late.iter().any(|late| late.conflicts_with(&entry));
            if !is_product(&entry) && !groups.is_own(&entry) && (reads_covered(at) || is_after_late) {
                ordered.late.push(entry);
                continue;
            }
            if is_after_late || groups.is_own(&entry) {
                ordered.push_late();
            }
            let meets = ordered.held.iter().rposition(|held| held.conflicts_with(&entry));
            ordered.release(meets.map_or(0, |last| last + 1));
            let is_exposed = found[at] == Some(Found::Exposed);
            let runs_beside =
                is_exposed && !ordered.held.is_empty() || matches!(found[at], Some(Found::Covered { .. }));
            // Two transfers of a group must not be under way at once on two queues.
            if runs_beside || groups.is_own(&entry) && !ordered.under_way.is_empty() {
                entry.put_on(&self.queue);
                ordered.push(entry);
                ordered.under_way.push(ordered.entries.len() - 1);
            } else {
                ordered.push(entry);
            }
            if is_exposed {
                let is_shared = next_exposed(at + 1).is_some_and(|next| !is_gradient[at + 1..next].contains(&true));
                let count = if is_shared { ordered.half() } else { ordered.held.len() };
                ordered.release(count);
            }
        }
        ordered.push_late();
        ordered.release(ordered.held.len());
        // A later region's transfers must not be under way at the same time.
        if !ordered.under_way.is_empty() {
            piece.joins.push(self.queue.clone());
        }
        piece.entries = ordered.entries;
    }
}

impl StepPass<Region> for TensorParallelTransfers {
    fn name(&self) -> &'static str {
        PassName::TensorParallelTransfers.words()
    }

    fn apply(&mut self, piece: &mut Piece<Region>) {
        let groups = if piece.region().is_backward() { &self.in_backwards } else { &self.in_forwards };
        if !groups.is_empty() {
            self.cover(piece, &Groups(groups));
        }
    }
}
