//! A layout's time and memory by a formula: good enough to choose the layouts that are recorded whole.
//!
//! A block, and the rest of the model, are recorded once for each way to compute them: on one stage, with one
//! microbatch, with one block and with two. The remaining work is arithmetic.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use common::Choice;
use device::ops::CollectiveKind;
use engine::params::Sharding;
use parallel::{Axis, Schedule};

use crate::predict::card::Card;
use crate::predict::forecast::Memory;
use crate::predict::network::Network;
use crate::predict::paper;
use crate::predict::simulate::simulate;
use crate::predict::step_graph::Purpose;
use trainer::config::plan::RunPlan;
use trainer::config::{DataParallelSharding, PipelineSchedule, RecomputeGranularity, RunConfig};
use trainer::error::RunError;

/// A layout, roughly.
#[derive(Clone, Copy, Debug)]
pub(super) struct Roughly {
    /// Seconds of a step.
    pub(super) seconds: f64,
    /// Bytes of the rank that needs most.
    pub(super) bytes: usize,
    /// The part of `bytes` that can lie on the host: master weights and moments.
    state: usize,
}

impl Roughly {
    /// The same layout with as much of the optimizer's state on the host as does not fit into `room`.
    pub(super) fn with_state_as_needed(self, room: usize, card: &Card) -> Roughly {
        let away = self.bytes.saturating_sub(room).min(self.state);
        // It comes in and goes out at once.
        let seconds = self.seconds + away as f64 / (card.host.copy_gb_per_s * 1e9);
        Roughly { seconds, bytes: self.bytes - away, state: self.state - away }
    }
}

/// A way to compute a block.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Way {
    /// Ranks that share the block.
    tensor: usize,
    /// Ranks that divide sequences.
    context: usize,
    /// The transfers of the latter.
    context_transfers: &'static str,
    sequence_parallel: bool,
    samples: usize,
    recomputes: &'static str,
    keeps_attention: bool,
    mlp_tiles: usize,
    /// Whether what the block saves lies on the host.
    is_away: bool,
}

/// Estimates layouts of one run.
pub(super) struct Rough {
    network: Network,
    known: RefCell<HashMap<Way, Costs>>,
}

/// The costs of a model for a microbatch.
#[derive(Clone, Copy)]
struct Costs {
    block: Cost,
    /// Embedding, head and everything else.
    rest: Cost,
}

/// The cost of some layers for a microbatch.
#[derive(Clone, Copy)]
struct Cost {
    /// Seconds of forward and backward.
    pass: f64,
    /// Seconds of forward and backward with only transfers under way.
    transfers: f64,
    /// Seconds of the update.
    update: f64,
    /// Bytes of weights, gradients, optimizer and activations.
    memory: [f64; 4],
}

impl Rough {
    pub(super) fn new(card: &Card, node: usize) -> Rough {
        Rough { network: Network { card: Rc::new(card.clone()), node }, known: RefCell::default() }
    }

    /// The estimate of a layout.
    ///
    /// # Errors
    /// A model without blocks.
    pub(super) fn estimate(&self, plan: &RunPlan) -> Result<Roughly, RunError> {
        let costs = self.costs(&plan.config)?;
        let parallel = &plan.parallel;
        let (mesh, blocks) = (parallel.mesh, &parallel.blocks);
        let most = parallel.recompute.map_or(usize::MAX, |how| how.most);
        // Blocks that save all beside others that are recomputed.
        let kept = match blocks.iter().any(|count| *count > most) {
            true => self.costs(&saving_all(&plan.config))?.block,
            false => costs.block,
        };
        let (stages, data) = (mesh.size(Axis::Pipeline), mesh.size(Axis::Tokens) as f64);
        let microbatches = plan.batch.microbatches() as f64;
        let chunks = (blocks.len() / stages).max(1) as f64;
        let blocks_of = |stage: usize, value: &dyn Fn(Cost) -> f64| {
            let of = |count: usize| {
                let again = count.min(most);
                again as f64 * value(costs.block) + (count - again) as f64 * value(kept)
            };
            blocks.iter().skip(stage).step_by(stages).map(|count| of(*count)).sum::<f64>()
        };
        // Microbatches that overlap hide each other's transfers.
        let seconds = |cost: Cost| if parallel.schedule.overlaps() { cost.pass - cost.transfers } else { cost.pass };
        let pass = |stage: usize| {
            let rest = if stage + 1 == stages { seconds(costs.rest) } else { 0.0 };
            blocks_of(stage, &seconds) + rest
        };
        let all: Vec<f64> = (0..stages).map(pass).collect();
        let slowest = all.iter().copied().fold(0.0, f64::max);
        let filled = if plan.config.parallel.pipeline_schedule == PipelineSchedule::ZeroBubble { 3.0 } else { 1.0 };
        let filling = (all.iter().sum::<f64>() - slowest) / chunks / filled;
        // Weights, gradients, optimizer, activations.
        let divided_from = |least: Sharding| if parallel.sharding >= least { data } else { 1.0 };
        let [divided, of_gradients, of_weights] =
            [Sharding::State, Sharding::Gradients, Sharding::Weights].map(divided_from);
        // Of the bytes of weights, the share of those that layers read: bf16 beside masters in f32. Frozen ones have none.
        let read = if plan.config.model.lora_rank > 0 { 1.0 } else { 1.0 / 3.0 };
        let ends_take_turns = stages == 1 && !plan.config.model.tie_embeddings;
        let memory = |stage: usize| {
            let ends = f64::from(u8::from(stage == 0 || stage + 1 == stages));
            let kind = |kind: usize| blocks_of(stage, &|cost| cost.memory[kind]) + ends * costs.rest.memory[kind];
            let in_flight = in_flight(parallel.schedule, stage, plan.batch.microbatches());
            let activations = blocks_of(stage, &|cost| cost.memory[3]) * in_flight + ends * costs.rest.memory[3];
            let state = kind(0) * (1.0 - read) / divided + kind(2) / divided;
            // Blocks take turns in two buffers, embedding and head on one stage in one as large as either.
            let of_blocks = |kind: usize, divided: f64| {
                let blocks = blocks_of(stage, &|cost| cost.memory[kind]);
                let turns = if divided > 1.0 { 2.0 * costs.block.memory[kind] } else { 0.0 };
                let of_ends = if divided > 1.0 && ends_take_turns { 0.5 + 1.0 / divided } else { ends };
                blocks / divided + turns + of_ends.min(ends) * costs.rest.memory[kind]
            };
            (of_blocks(0, of_weights) * read + of_blocks(1, of_gradients) + state + activations, state)
        };
        let taken = self.network.card.taken(plan.connections().communicators()) as f64;
        let (bytes, state) =
            (0..stages).map(memory).fold((0.0, 0.0), |most, stage| if stage.0 > most.0 { stage } else { most });
        let bytes = bytes + taken;
        let gradients = blocks_of(0, &|cost| cost.memory[1]) + costs.rest.memory[1];
        let ranks = mesh.members_along(0, Axis::Tokens);
        let reduced = match ranks.len() {
            1 => 0.0,
            _ => self.network.by_nccl(CollectiveKind::AllReduceSum, gradients, &ranks),
        };
        // Divided gradients are summed, and divided weights gathered twice, in each microbatch.
        let (passes, gathered) = match parallel.sharding {
            _ if ranks.len() == 1 => (1.0, 0.0),
            Sharding::Nothing | Sharding::State => (1.0, 0.0),
            Sharding::Gradients => (microbatches, 0.0),
            Sharding::Weights => {
                let weights = blocks_of(0, &|cost| cost.memory[0]) * read;
                let gather = self.network.by_nccl(CollectiveKind::AllGather, weights, &ranks);
                (microbatches, 2.0 * microbatches * gather)
            }
        };
        let hidden = passes * slowest * 2.0 / 3.0;
        let update = (blocks_of(0, &|cost| cost.update) + costs.rest.update) / divided;
        let seconds = microbatches * slowest + filling + (passes * reduced + gathered - hidden).max(0.0) + update;
        Ok(Roughly { seconds, bytes: bytes as usize, state: state as usize })
    }

    fn costs(&self, config: &RunConfig) -> Result<Costs, RunError> {
        let parallel = &config.parallel;
        let way = Way {
            tensor: parallel.tensor,
            context: parallel.context,
            context_transfers: parallel.context_transfers.word(),
            sequence_parallel: parallel.sequence_parallel,
            samples: config.train.micro_batch_size,
            recomputes: config.recompute.granularity.word(),
            keeps_attention: config.recompute.keep_attention,
            mlp_tiles: config.recompute.mlp_tiles,
            is_away: config.offload.activation_layers > 0,
        };
        if let Some(costs) = self.known.borrow().get(&way) {
            return Ok(*costs);
        }
        // In a model of several kinds of blocks, a mean one.
        let pattern = &config.model.expert_pattern;
        let blocks = config.model.layers.max(1);
        let dense = (0..blocks).filter(|block| pattern.get(block % pattern.len().max(1)) == Some(&0)).count();
        let mut mixture = config.clone();
        mixture.model.expert_pattern = Vec::new();
        let (one, two) = (self.cost(&mixture, 1)?, self.cost(&mixture, 2)?);
        let mut block = two.less(one);
        let rest = one.less(block);
        if dense > 0 && config.model.experts > 0 {
            mixture.model.experts = 0;
            let other = self.cost(&mixture, 2)?.less(self.cost(&mixture, 1)?);
            block = block.less(block.less(other).times(dense as f64 / blocks as f64));
        }
        let costs = Costs { block, rest };
        self.known.borrow_mut().insert(way, costs);
        Ok(costs)
    }

    /// One microbatch of a model with so many blocks on one stage.
    fn cost(&self, config: &RunConfig, blocks: usize) -> Result<Cost, RunError> {
        let mut small = config.clone();
        small.model.layers = blocks;
        small.train.global_batch_size = small.train.micro_batch_size;
        small.train.rampup_batch_size = Vec::new();
        small.precision.bf16_blocks.retain(|block| *block < blocks);
        (small.recompute.layers, small.recompute.blocks) = (1, None);
        // The share of the state on the host is counted apart.
        (small.offload.optimizer, small.offload.optimizer_fraction) = (false, None);
        small.cuda_graph.layers = Vec::new();
        small.cuda_graph.overlap_microbatches = false;
        let parallel = &mut small.parallel;
        (parallel.pipeline, parallel.virtual_pipeline, parallel.microbatch_group) = (1, 1, None);
        (parallel.pipeline_layers, parallel.distributed_optimizer) = (Vec::new(), false);
        parallel.data_parallel_sharding = DataParallelSharding::Auto;
        parallel.pipeline_schedule = PipelineSchedule::OneForwardOneBackward;
        // The estimate has all experts on the ranks that share a layer, and no transfers of rows.
        (parallel.expert, parallel.expert_tensor, parallel.expert_row_budget) = (1, None, None);
        let plan = RunPlan::new(small, config.parallel.tensor * config.parallel.context)?;
        let step = paper::steps(&plan, &[0], &self.network)?.remove(0);
        let simulation = simulate(&[step.nodes], self.network.card.overlap.transfer_share);
        let spans = simulation.ranks.iter().flat_map(|rank| &rank.spans);
        let update = spans.filter(|span| span.2 == Purpose::Update).map(|span| span.1 - span.0).sum();
        let Memory { weights, gradients, optimizer, activations, .. } = step.memory;
        let memory = [weights, gradients, optimizer, activations].map(|bytes| bytes as f64);
        let transfers = simulation.ranks.iter().map(|rank| rank.only_transfers).fold(0.0, f64::max);
        Ok(Cost { pass: simulation.seconds - update, transfers, update, memory })
    }
}

/// The same run without recompute, and with all that blocks save on the device.
fn saving_all(config: &RunConfig) -> RunConfig {
    let mut config = config.clone();
    (config.recompute.granularity, config.recompute.keep_attention) = (RecomputeGranularity::None, false);
    config.offload.activation_layers = 0;
    config
}

/// The number of microbatches whose activations a stage has room for. One of two chunks counts half.
fn in_flight(schedule: Schedule, stage: usize, microbatches: usize) -> f64 {
    let (placement, group) = (schedule.placement(), schedule.group().unwrap_or(1));
    // With more than these a stage has no more in flight.
    let enough = (4 * placement.stages()).max(2 * group).next_multiple_of(group);
    let tasks = schedule.tasks(stage, microbatches.min(enough)).unwrap_or_default();
    let slots = parallel::in_flight(&tasks, placement.chunks());
    slots.iter().sum::<usize>() as f64 / placement.chunks() as f64
}

impl Cost {
    fn times(self, factor: f64) -> Cost {
        let memory = self.memory.map(|bytes| bytes * factor);
        let Cost { pass, transfers, update, .. } = self;
        Cost { pass: pass * factor, transfers: transfers * factor, update: update * factor, memory }
    }

    fn less(self, other: Cost) -> Cost {
        let memory = std::array::from_fn(|kind| self.memory[kind] - other.memory[kind]);
        Cost {
            pass: self.pass - other.pass,
            transfers: self.transfers - other.transfers,
            update: self.update - other.update,
            memory,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_step_has_as_many_microbatches_in_flight_as_are_counted_in_a_shorter_one() {
        for (stages, chunks) in [(1, 1), (4, 1), (4, 2), (6, 3)] {
            for group in [stages, stages + 1, 3 * stages] {
                let schedule = Schedule::interleaved(stages, chunks, group);
                let zero_bubble = Schedule::zero_bubble(stages);
                for schedule in [schedule, schedule.overlapping().unwrap(), zero_bubble] {
                    for stage in 0..stages {
                        let microbatches = 20 * group;
                        let tasks = schedule.tasks(stage, microbatches).unwrap();
                        let chunks = schedule.placement().chunks();
                        let known = parallel::in_flight(&tasks, chunks).iter().sum::<usize>() as f64 / chunks as f64;
                        assert_eq!(in_flight(schedule, stage, microbatches), known, "{schedule:?} {stage}");
                    }
                }
            }
        }
    }
}
