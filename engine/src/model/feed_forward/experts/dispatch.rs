//! The way of rows from tokens to experts, and back.
//!
//! If ranks have all experts, rows are gathered and summed in memory. Ranks that divide the experts have three ways.
//!
//! If a token chooses as many experts as there are ranks, or more, most tokens go to most ranks, for several experts each. So
//! every rank gathers the tokens of all and takes its rows from them. It sums the rows of each token; the ranks sum these
//! partial sums, and scatter them.
//!
//! Else rows go between the ranks, and results and gradients come back the same way. GPUs that reach each other's memory put
//! each row where the product of its expert reads it. Or a rank puts the rows of its tokens into slots, as many for each rank,
//! and the ranks exchange the slots; each orders what it received by its own experts. Both have the same order of rows.
//!
//! The room is that of the most rows that a microbatch can have, or of a budget. Rows that a budget has no room for are left
//! out and counted: the step is then void, and runs again with room for all.

use std::ops::Range;
use std::rc::Rc;

use device::ops::{
    Collective, CollectiveKind, CombineRows, ExpertRows, ExpertsOfSlots, GatherRows, PlaceRows, RowsOfRanks, RowsWay,
    SlotsOfPairs, SortByExpert, SumInto,
};
use device::{Communicator, DType, Shape, Tensor};
use graph_manager::Result;

use super::router::Routed;
use crate::regions::Room;
use crate::step_policy::StepContext;

/// The experts, and the ranks that divide them.
pub(super) struct Dispatch {
    /// Experts of a layer.
    pub(super) experts: usize,
    /// The ranks with other experts; `None` if each rank has all.
    pub(super) ranks: Option<Rc<dyn Communicator>>,
    /// The ranks gather the tokens of all. They do not with a budget, which is one of rows.
    pub(super) gathers_tokens: bool,
    /// See [`Experts::row_budget`](super::Experts::row_budget).
    pub(super) row_budget: Option<f64>,
    /// The sum over microbatches and layers of rows without room, if there is a budget.
    pub(super) rows_beyond: Option<Tensor>,
}

/// The places of a microbatch's rows.
#[derive(Clone, Copy)]
pub(super) struct Way {
    /// The order of rows by this rank's experts. If ranks exchange slots, its pairs are the slots that the rank received; if
    /// they exchange rows, its pairs are the rows.
    pub(super) order: ExpertRows,
    /// The weight of each pair of that order, f32.
    pub(super) weights: Tensor,
    between: Between,
    /// `(1)`, f32: the rows without room, if there is a budget.
    beyond: Option<Tensor>,
}

/// How rows pass between ranks.
#[expect(clippy::large_enum_variant, reason = "there is one for each layer, and it is copied as its tensors are")]
#[derive(Clone, Copy)]
enum Between {
    /// Not at all.
    Nothing,
    /// Not as rows: each rank has the tokens of all.
    Tokens,
    /// Through slots. `(tokens, k)`, i32: the slots of this rank's own pairs.
    Slots(Tensor),
    /// From place to place.
    Places(Places),
}

/// The places of rows on all ranks.
#[derive(Clone, Copy)]
struct Places {
    /// This rank's pairs by the experts of all ranks.
    own: ExpertRows,
    /// See [`RowsOfRanks::offsets`].
    offsets: Tensor,
    /// See [`RowsOfRanks::places`].
    places: Tensor,
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

    /// The number of this rank among the ranks that divide the experts.
    fn place(&self) -> usize {
        self.ranks.as_ref().map_or(0, |ranks| ranks.rank())
    }

    /// The experts of this rank.
    pub(super) fn own(&self) -> usize {
        self.experts / self.count()
    }

    /// The order of rows by expert, and the rows' weights.
    pub(super) fn way(&self, cx: &mut StepContext<'_>, routed: &Routed) -> Result<Way> {
        let chosen = routed.own;
        let (count, own) = (self.count(), self.own());
        let [tokens, k] = [chosen.shape.rows(), chosen.shape.last()];
        if self.gathers_tokens {
            let chosen = self.gather_all(cx, "all_chosen_experts", chosen)?;
            let weights = self.gather_all(cx, "all_expert_weights", routed.weights)?;
            let order = sort(cx, chosen, self.place() * own..(self.place() + 1) * own)?;
            return Ok(Way { order, weights, between: Between::Tokens, beyond: None });
        }
        let order = sort(cx, chosen, 0..self.experts)?;
        let Some(ranks) = self.ranks.clone() else {
            return Ok(Way { order, weights: routed.weights, between: Between::Nothing, beyond: None });
        };
        let (room, in_budget) = self.room(cx, tokens, k);
        let beyond = in_budget.then(|| cx.tensor("expert_rows_beyond", [1], DType::F32)).transpose()?;
        let offsets = cx.tensor("all_expert_offsets", [count, self.experts + 1], DType::I32)?;
        let (rank, gather) = (ranks.rank(), CollectiveKind::AllGather);
        cx.run(Collective { kind: gather, communicator: ranks.clone(), input: order.offsets, output: offsets })?;
        let of_pairs = routed.weights.view(0, [tokens * k, 1]);
        if ranks.moves_rows() {
            let places = cx.tensor("expert_places", [own, count], DType::I32)?;
            let of_ranks = Places { own: order, offsets, places };
            let pairs = cx.tensor("expert_pairs_here", [count * room], DType::I32)?;
            let here = cx.tensor("expert_offsets_here", [own + 1], DType::I32)?;
            cx.run(PlaceRows { all: offsets, rank, places, offsets: here, pairs, beyond })?;
            let order = ExpertRows { offsets: here, pairs, rows: pairs.view(0, [count * room, 1]) };
            let weights = self.to_experts(cx, "expert_weights_here", of_pairs, order, of_ranks)?;
            return Ok(Way { order, weights, between: Between::Places(of_ranks), beyond });
        }
        let slots = cx.tensor("expert_slots", chosen.shape, DType::I32)?;
        cx.run(SlotsOfPairs { chosen, order, ranks: count, room, slots, beyond })?;
        let received = cx.tensor("experts_of_slots", [count * room, 1], DType::I32)?;
        cx.run(ExpertsOfSlots { offsets, rank, chosen: received })?;
        let order = sort(cx, received, 0..own)?;
        let weights =
            self.to_slots(cx, ["expert_weights_sent", "expert_weights_received"], of_pairs, Way::by_pair(slots), room)?;
        Ok(Way { order, weights, between: Between::Slots(slots), beyond })
    }

    /// The number of rows that there is room for between two ranks, and whether the room may be too small.
    fn room(&self, cx: &StepContext<'_>, tokens: usize, k: usize) -> (usize, bool) {
        // A token has at most one row for each expert.
        let most = tokens * k.min(self.own());
        match self.row_budget.filter(|_| cx.mode().room == Room::Budget) {
            Some(factor) => {
                let balanced = (tokens * k) as f64 / self.count() as f64;
                (((balanced * factor).ceil() as usize).clamp(1, most), true)
            }
            None => (most, false),
        }
    }

    /// Adds the rows that had no room to the step's count of such rows. A forward may run twice, so backward does it.
    pub(super) fn count_rows_beyond(&self, cx: &mut StepContext<'_>, way: &Way) -> Result<()> {
        match (way.beyond, self.rows_beyond) {
            (Some(input), Some(total)) => cx.run(SumInto { input, total, accumulate: true }),
            _ => Ok(()),
        }
    }

    /// The rows of this rank's experts, `(rows, width)`, from the rows of tokens `(batch, seq, width)`.
    pub(super) fn rows(
        &self,
        cx: &mut StepContext<'_>,
        name: &'static str,
        tokens: Tensor,
        way: &Way,
    ) -> Result<Tensor> {
        let order = &way.order;
        let rows = order.rows.elements();
        match way.between {
            Between::Nothing => gather(cx, name, tokens, order.rows, rows),
            Between::Tokens => {
                let tokens = self.gather_all(cx, "tokens_of_all", tokens)?;
                gather(cx, name, tokens, order.rows, rows)
            }
            Between::Slots(slots) => {
                let names = ["expert_rows_sent", "expert_rows_received"];
                let received = self.to_slots(cx, names, tokens, slots, rows / self.count())?;
                gather(cx, name, received, order.rows, rows)
            }
            Between::Places(places) => self.to_experts(cx, name, tokens, *order, places),
        }
    }

    /// The sums of each token's rows, plus `also`, in the shape of `tokens`, `(batch, seq, width)`.
    pub(super) fn sums(
        &self,
        cx: &mut StepContext<'_>,
        name: &'static str,
        (rows, also): (Tensor, Option<Tensor>),
        tokens: &Tensor,
        way: &Way,
    ) -> Result<Tensor> {
        let (input, places) = match way.between {
            Between::Nothing => (rows, way.order.rows),
            Between::Tokens => return self.sums_of_all(cx, name, (rows, also), tokens, &way.order),
            Between::Places(places) => (self.to_tokens(cx, "expert_results_here", rows, places)?, places.own.rows),
            Between::Slots(slots) => {
                let in_slots = [way.order.rows.elements(), rows.shape.last()];
                let sent = cx.tensor("expert_results_sent", in_slots, rows.dtype)?;
                cx.run(CombineRows { input: rows, rows: way.order.rows, also: None, output: sent })?;
                (self.exchange(cx, "expert_results_received", sent)?, slots)
            }
        };
        let output = cx.tensor(name, tokens.shape, rows.dtype)?;
        cx.run(CombineRows { input, rows: places, also, output })?;
        Ok(output)
    }

    /// The sums over all ranks of each token's rows. `also` is a part of this rank's partial sums of its own tokens.
    fn sums_of_all(
        &self,
        cx: &mut StepContext<'_>,
        name: &'static str,
        (input, also): (Tensor, Option<Tensor>),
        tokens: &Tensor,
        order: &ExpertRows,
    ) -> Result<Tensor> {
        let (count, place, own) = (self.count(), self.place(), tokens.shape.rows());
        let [k, width] = [order.rows.shape.last(), input.shape.last()];
        let partial = cx.tensor("sums_of_all", [count * own, width], input.dtype)?;
        let parts = match also {
            None => vec![(0..count * own, None)],
            also => {
                let (first, end) = (place * own, (place + 1) * own);
                vec![(0..first, None), (first..end, also), (end..count * own, None)]
            }
        };
        for (part, also) in parts.into_iter().filter(|(part, _)| !part.is_empty()) {
            let rows = order.rows.view(part.start * k, [part.len(), k]);
            let output = partial.view(part.start * width, [part.len(), width]);
            cx.run(CombineRows { input, rows, also, output })?;
        }
        self.scatter_sums(cx, name, partial, tokens.shape)
    }

    /// The gradients of the weights of this rank's tokens, `(tokens, k)`, from the gradients of [`Way::weights`].
    pub(super) fn grad_weights(
        &self,
        cx: &mut StepContext<'_>,
        routed: &Routed,
        grad: Tensor,
        way: &Way,
    ) -> Result<Tensor> {
        let (input, places) = match way.between {
            Between::Nothing => return Ok(grad),
            // One rank has the gradient of a pair, the others zero.
            Between::Tokens => return self.scatter_sums(cx, "grad_own_expert_weights", grad, routed.weights.shape),
            Between::Places(places) => (self.to_tokens(cx, "grad_expert_weights_here", grad, places)?, places.own.rows),
            Between::Slots(slots) => (self.exchange(cx, "grad_expert_weights_received", grad)?, slots),
        };
        let grad_weights = cx.tensor("grad_own_expert_weights", routed.weights.shape, DType::F32)?;
        let output = grad_weights.view(0, [grad_weights.elements(), 1]);
        cx.run(CombineRows { input, rows: Way::by_pair(places), also: None, output })?;
        Ok(grad_weights)
    }

    /// The rows that other ranks have for this rank: each sends its rows through slots.
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

    /// The rows of this rank's experts, which all ranks write in place.
    fn to_experts(
        &self,
        cx: &mut StepContext<'_>,
        name: &'static str,
        input: Tensor,
        order: ExpertRows,
        places: Places,
    ) -> Result<Tensor> {
        let output = cx.tensor(name, [order.pairs.elements(), input.shape.last()], input.dtype)?;
        self.pass(cx, RowsWay::ToExperts, places, input, output)
    }

    /// The rows of this rank's pairs, by the experts of all ranks.
    fn to_tokens(&self, cx: &mut StepContext<'_>, name: &'static str, input: Tensor, places: Places) -> Result<Tensor> {
        let output = cx.tensor(name, [places.own.pairs.elements(), input.shape.last()], input.dtype)?;
        self.pass(cx, RowsWay::ToTokens, places, input, output)
    }

    fn pass(
        &self,
        cx: &mut StepContext<'_>,
        way: RowsWay,
        places: Places,
        input: Tensor,
        output: Tensor,
    ) -> Result<Tensor> {
        let Places { own, offsets, places } = places;
        let kind = CollectiveKind::Rows(RowsOfRanks { way, offsets, places, pairs: own.pairs });
        cx.run(Collective { kind, communicator: self.communicator(), input, output })?;
        Ok(output)
    }

    fn communicator(&self) -> Rc<dyn Communicator> {
        self.ranks.clone().unwrap_or_else(|| unreachable!("rows pass between ranks only if these divide experts"))
    }

    /// The rows of all ranks, in the order of ranks.
    fn gather_all(&self, cx: &mut StepContext<'_>, name: &'static str, input: Tensor) -> Result<Tensor> {
        let (kind, communicator) = (CollectiveKind::AllGather, self.communicator());
        let output = cx.tensor(name, [self.count() * input.shape.rows(), input.shape.last()], input.dtype)?;
        cx.run(Collective { kind, communicator, input, output })?;
        Ok(output)
    }

    /// This rank's part of the sums over all ranks.
    fn scatter_sums(
        &self,
        cx: &mut StepContext<'_>,
        name: &'static str,
        input: Tensor,
        shape: Shape,
    ) -> Result<Tensor> {
        let (kind, communicator) = (CollectiveKind::ReduceScatterSum, self.communicator());
        let output = cx.tensor(name, shape, input.dtype)?;
        cx.run(Collective { kind, communicator, input, output })?;
        Ok(output)
    }

    /// The slots of all ranks for this rank.
    fn exchange(&self, cx: &mut StepContext<'_>, name: &'static str, input: Tensor) -> Result<Tensor> {
        let communicator = self.communicator();
        let output = cx.tensor(name, input.shape, input.dtype)?;
        cx.run(Collective { kind: CollectiveKind::AllToAll, communicator, input, output })?;
        Ok(output)
    }
}

/// The `count` rows that are copies of tokens' rows.
fn gather(cx: &mut StepContext<'_>, name: &'static str, input: Tensor, rows: Tensor, count: usize) -> Result<Tensor> {
    let output = cx.tensor(name, [count, input.shape.last()], input.dtype)?;
    cx.run(GatherRows { input, rows, output })?;
    Ok(output)
}

/// The order by expert, for `experts`, of the pairs with the choices `chosen`, `(tokens, k)`.
fn sort(cx: &mut StepContext<'_>, chosen: Tensor, experts: Range<usize>) -> Result<ExpertRows> {
    let order = ExpertRows {
        offsets: cx.tensor("expert_offsets", [experts.len() + 1], DType::I32)?,
        pairs: cx.tensor("expert_pairs", [chosen.elements()], DType::I32)?,
        rows: cx.tensor("expert_rows", chosen.shape, DType::I32)?,
    };
    cx.run(SortByExpert { chosen, first: experts.start, order })?;
    Ok(order)
}
