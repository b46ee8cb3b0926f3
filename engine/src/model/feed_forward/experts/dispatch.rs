//! The way of rows from tokens to experts, and back.
//!
//! If ranks have all experts, rows are gathered and summed in memory. If ranks divide the experts, a rank puts the rows of
//! its tokens into slots, as many for each rank, and the ranks exchange them. Each orders what it received by its own
//! experts. Results and gradients go back through the same slots. The room of slots is the most rows that a microbatch can
//! have for a rank, so none is ever dropped.

use std::rc::Rc;

use device::ops::{
    Collective, CollectiveKind, CombineRows, ExpertRows, ExpertsOfSlots, GatherRows, SlotsOfPairs, SortByExpert,
};
use device::{Communicator, DType, Tensor};
use graph_manager::Result;

use super::router::Routed;
use crate::model::buffers::all_rows;
use crate::step_policy::StepContext;

/// The experts, and the ranks that divide them.
pub(super) struct Dispatch {
    /// Experts of a layer.
    pub(super) experts: usize,
    /// The ranks with other experts; `None` if each rank has all.
    pub(super) ranks: Option<Rc<dyn Communicator>>,
}

/// The places of a microbatch's rows.
#[derive(Clone, Copy)]
pub(super) struct Way {
    /// The order of rows by this rank's experts. If ranks exchange rows, its pairs are the slots that the rank received.
    pub(super) order: ExpertRows,
    /// The weight of each pair of that order, f32.
    pub(super) weights: Tensor,
    /// `(tokens, k)`, i32: the slots of this rank's own pairs, if ranks exchange rows.
    slots: Option<Tensor>,
}

impl Way {
    /// One choice for each row, instead of a token's choices: `(pairs, 1)`.
    fn by_pair(slots: Tensor) -> Tensor {
        slots.view(0, [slots.elements(), 1])
    }
}

impl Dispatch {
    /// The number of ranks that divide the experts.
    fn count(&self) -> usize {
        self.ranks.as_ref().map_or(1, |ranks| ranks.size())
    }

    /// The experts of this rank.
    pub(super) fn own(&self) -> usize {
        self.experts / self.count()
    }

    /// The order of rows by expert, and their weights.
    pub(super) fn way(&self, cx: &mut StepContext<'_>, routed: &Routed) -> Result<Way> {
        let chosen = routed.kept;
        let order = sort(cx, chosen, self.experts)?;
        let Some(ranks) = self.ranks.clone() else {
            return Ok(Way { order, weights: routed.weights, slots: None });
        };
        let (count, own) = (self.count(), self.own());
        let [tokens, k] = [chosen.shape.rows(), chosen.shape.last()];
        // A token has at most one row for each expert.
        let room = tokens * k.min(own);
        let slots = cx.tensor("expert_slots", chosen.shape, DType::I32)?;
        cx.run(SlotsOfPairs { chosen, order, ranks: count, room, slots })?;
        let offsets = cx.tensor("all_expert_offsets", [count, self.experts + 1], DType::I32)?;
        let (rank, gather) = (ranks.rank(), CollectiveKind::AllGather);
        cx.run(Collective { kind: gather, communicator: ranks, input: order.offsets, output: offsets })?;
        let received = cx.tensor("experts_of_slots", [count * room, 1], DType::I32)?;
        cx.run(ExpertsOfSlots { offsets, rank, chosen: received })?;
        let order = sort(cx, received, own)?;
        let of_pairs = routed.weights.view(0, [tokens * k, 1]);
        let weights =
            self.to_slots(cx, ["expert_weights_sent", "expert_weights_received"], of_pairs, Way::by_pair(slots), room)?;
        Ok(Way { order, weights, slots: Some(slots) })
    }

    /// The rows of this rank's experts, `(rows, width)`, from those of tokens `(batch, seq, width)`.
    pub(super) fn rows(
        &self,
        cx: &mut StepContext<'_>,
        name: &'static str,
        tokens: Tensor,
        way: &Way,
    ) -> Result<Tensor> {
        let order = &way.order;
        let Some(slots) = way.slots else { return gather(cx, name, tokens, order.rows, order.rows.elements()) };
        let room = order.rows.elements() / self.count();
        let received = self.to_slots(cx, ["expert_rows_sent", "expert_rows_received"], tokens, slots, room)?;
        gather(cx, name, received, order.rows, order.rows.elements())
    }

    /// The sums of each token's rows, plus `also`: `(batch, seq, width)`.
    pub(super) fn sums(
        &self,
        cx: &mut StepContext<'_>,
        name: &'static str,
        rows: Tensor,
        also: Option<Tensor>,
        way: &Way,
    ) -> Result<Tensor> {
        let (input, places) = match way.slots {
            None => (rows, way.order.rows),
            Some(slots) => {
                let in_slots = [way.order.rows.elements(), rows.shape.last()];
                let sent = cx.tensor("expert_results_sent", in_slots, rows.dtype)?;
                cx.run(CombineRows { input: rows, rows: way.order.rows, also: None, output: sent })?;
                (self.exchange(cx, "expert_results_received", sent)?, slots)
            }
        };
        let output = all_rows(cx, name, rows.shape.last(), rows.dtype)?;
        cx.run(CombineRows { input, rows: places, also, output })?;
        Ok(output)
    }

    /// The gradients of the weights of this rank's tokens, `(tokens, k)`, from those of [`Way::weights`].
    pub(super) fn grad_weights(
        &self,
        cx: &mut StepContext<'_>,
        routed: &Routed,
        grad: Tensor,
        way: &Way,
    ) -> Result<Tensor> {
        let Some(slots) = way.slots else { return Ok(grad) };
        let input = self.exchange(cx, "grad_expert_weights_received", grad)?;
        let grad_weights = cx.tensor("grad_own_expert_weights", routed.weights.shape, DType::F32)?;
        let output = grad_weights.view(0, [grad_weights.elements(), 1]);
        cx.run(CombineRows { input, rows: Way::by_pair(slots), also: None, output })?;
        Ok(grad_weights)
    }

    /// The rows that other ranks have for this one: each sends its rows through slots.
    fn to_slots(
        &self,
        cx: &mut StepContext<'_>,
        [sent, received]: [&'static str; 2],
        rows: Tensor,
        slots: Tensor,
        room: usize,
    ) -> Result<Tensor> {
        let sent = gather(cx, sent, rows, slots, self.count() * room)?;
        self.exchange(cx, received, sent)
    }

    /// The slots of all ranks for this one.
    fn exchange(&self, cx: &mut StepContext<'_>, name: &'static str, input: Tensor) -> Result<Tensor> {
        let Some(communicator) = self.ranks.clone() else {
            unreachable!("ranks have slots only if they divide experts")
        };
        let output = cx.tensor(name, input.shape, input.dtype)?;
        cx.run(Collective { kind: CollectiveKind::AllToAll, communicator, input, output })?;
        Ok(output)
    }
}

/// So many rows, each a copy of its token's.
fn gather(cx: &mut StepContext<'_>, name: &'static str, input: Tensor, rows: Tensor, count: usize) -> Result<Tensor> {
    let output = cx.tensor(name, [count, input.shape.last()], input.dtype)?;
    cx.run(GatherRows { input, rows, output })?;
    Ok(output)
}

/// The order by expert of pairs with these choices, `(tokens, k)`.
fn sort(cx: &mut StepContext<'_>, chosen: Tensor, experts: usize) -> Result<ExpertRows> {
    let order = ExpertRows {
        offsets: cx.tensor("expert_offsets", [experts + 1], DType::I32)?,
        pairs: cx.tensor("expert_pairs", [chosen.elements()], DType::I32)?,
        rows: cx.tensor("expert_rows", chosen.shape, DType::I32)?,
    };
    cx.run(SortByExpert { chosen, order })?;
    Ok(order)
}
