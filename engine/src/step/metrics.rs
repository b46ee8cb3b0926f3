//! The numbers that a step returns to the host.

use std::collections::BTreeMap;

use crate::fp8::{Fp8Losses, LossSums};
use crate::model::{Architecture, ExpertBlocks, ExpertLoads, LossTerm, TermRole, TermSums};
use crate::regions::Mode;
use device::ops::{Preference, Status};
use device::{Area, DType, Device, Readback, Stream, Tensor};
use graph_manager::Result;
use serde::{Deserialize, Serialize};

/// The numbers that a step leaves for the host, on the device. They lie in one area, so that one copy has them all.
#[derive(Clone)]
pub(super) struct StepNumbers {
    /// u8: all numbers below, as bytes.
    all: Tensor,
    /// u8, a [`Status`].
    pub(super) status: Tensor,
    /// f32: the sums of the terms of the loss, then the loads of experts, then the rows of experts that had no room. At first
    /// over this rank's microbatches; the region `reduce` sums them over data-parallel ranks and stages.
    pub(super) sums: Tensor,
    /// The sums of the loss.
    pub(super) losses: TermSums,
    /// The loads of experts, if the model has any.
    pub(super) loads: Option<ExpertLoads>,
    /// `(1)`, f32, the last of the sums: rows of experts that had no room, if there is a row budget.
    pub(super) beyond: Option<Tensor>,
    /// `(3, 3)`, f32, a [`LossSums`]: counts of values that 8-bit copies lost, by kind of tensor. Steps that measure
    /// write it.
    pub(super) fp8: Tensor,
    /// The rewards of mismatched answers, if the loss asks for such rewards.
    pub(super) mismatched: Option<Mismatched>,
}

/// The rewards of mismatched answers of a step.
#[derive(Clone, Copy)]
pub(super) struct Mismatched {
    /// `(1)`, f32: their sum over all ranks.
    pub(super) sum: Tensor,
    /// A reward is this times a log-ratio.
    beta: f32,
}

impl StepNumbers {
    pub(super) fn allocate(device: &Device, areas: &mut Vec<Area>, architecture: &Architecture) -> Result<StepNumbers> {
        let terms = &architecture.loss_terms;
        let of_blocks = |of: &ExpertBlocks| [of.blocks.len(), of.experts + usize::from(of.drops)];
        let loads = architecture.experts.as_ref().map_or([0, 0], of_blocks);
        let has_budget = architecture.experts.as_ref().is_some_and(|experts| experts.has_row_budget);
        let beyond = terms.len() + loads[0] * loads[1];
        let sums = beyond + usize::from(has_budget);
        let losses = size_of::<Status>();
        // Parts begin at multiples of 8 bytes.
        let fp8 = (losses + sums * DType::F32.size()).next_multiple_of(8);
        let rewards = fp8 + size_of::<LossSums>();
        let beta = match architecture.preference {
            Some(Preference::Kto { beta, .. }) => Some(beta),
            _ => None,
        };
        let bytes = rewards + beta.map_or(0, |_| DType::F32.size());
        let area = device.allocate("step numbers", bytes)?;
        let all = area.tensor("step numbers", 0, [bytes], DType::U8);
        let part = |offset, size, dtype| area.place(all.buffer, offset, [size], dtype);
        let sums = part(losses, sums, DType::F32);
        let all_loads = sums.view(terms.len(), loads);
        let of_experts = |of: &ExpertBlocks| ExpertLoads {
            blocks: of.blocks.as_slice().into(),
            experts: of.experts,
            all: all_loads,
        };
        let numbers = StepNumbers {
            all,
            sums,
            status: part(0, losses, DType::U8),
            losses: TermSums { terms: terms.as_slice().into(), all: sums.view(0, [terms.len()]) },
            loads: architecture.experts.as_ref().map(of_experts),
            beyond: has_budget.then(|| sums.view(beyond, [1])),
            fp8: part(fp8, 9, DType::F32).reshape([3, 3]),
            mismatched: beta.map(|beta| Mismatched { sum: part(rewards, 1, DType::F32), beta }),
        };
        areas.push(area);
        // Some steps write only a part of them, and every step's numbers are read.
        device.zero(&all)?;
        Ok(numbers)
    }

    /// Begins to read the numbers back, after all work submitted to `stream` so far. `losses` is the number of losses
    /// that the step's loss is the mean of.
    pub(super) fn read(&self, stream: &Stream, losses: usize, mode: Mode) -> Result<PendingMetrics> {
        Ok(PendingMetrics { bytes: stream.read(&self.all)?, of: self.clone(), losses, mode, ran_again: false })
    }

    /// Waits for the step that was submitted last. Whether rows of experts had no room, on any rank.
    pub(super) fn lacked_room(&self, stream: &Stream) -> Result<bool> {
        let Some(beyond) = self.beyond else { return Ok(false) };
        Ok(stream.read::<f32>(&beyond)?.wait()?[0] > 0.0)
    }
}

/// A step whose numbers are under way to the host.
pub struct PendingMetrics {
    bytes: Readback<u8>,
    of: StepNumbers,
    /// The number of losses that the step's loss is the mean of.
    losses: usize,
    mode: Mode,
    /// The step was run again, with more room for rows.
    pub(super) ran_again: bool,
}

/// A step's numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct StepResult {
    /// Mean loss over the global batch.
    pub loss: f64,
    /// Means of the terms that training adds to the loss, by name. `loss` is without them. Evaluation has none.
    pub added: BTreeMap<&'static str, f64>,
    /// Means over pairs of answers, by the names of TRL, in evaluation too. Empty if samples have none.
    pub of_pairs: BTreeMap<&'static str, f64>,
    /// The tokens of each expert, by block. Empty in evaluation, and for a model without experts.
    pub expert_loads: Vec<BlockLoad>,
    /// Gradient norm before clipping.
    pub grad_norm: f32,
    /// Whether the weights were updated. They are not when a gradient is not finite, or when the step is a spike.
    pub applied: bool,
    /// Whether the update was skipped because loss or gradient norm was a spike.
    pub spike: bool,
    /// Updates skipped up to this step, for either reason.
    pub skipped: u32,
    /// Whether the step was run a second time, as rows of experts had no room in the budget.
    pub ran_again: bool,
    /// The shares of values that 8-bit copies lost, if the step measured losses.
    pub fp8: Option<Fp8Losses>,
}

/// The tokens of each expert of a block in a step, over all ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockLoad {
    /// The block's number in the whole model.
    pub block: usize,
    /// By expert: the tokens that it computes.
    pub tokens: Vec<f32>,
    /// The choices that are dropped, if loads are limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropped: Option<f32>,
}

impl BlockLoad {
    /// The largest load of an expert over the mean one: 1 if all are equal.
    pub fn imbalance(&self) -> f64 {
        self.imbalance_of_ranks(self.tokens.len())
    }

    /// Likewise of so many ranks that divide the experts.
    pub fn imbalance_of_ranks(&self, ranks: usize) -> f64 {
        let of_ranks = self.tokens.chunks((self.tokens.len() / ranks).max(1));
        let loads = of_ranks.map(|own| own.iter().map(|tokens| f64::from(*tokens)).sum::<f64>());
        let (largest, total) = loads.fold((0.0, 0.0), |(most, all), load| (load.max(most), all + load));
        largest * ranks as f64 / total.max(1.0)
    }
}

impl PendingMetrics {
    /// Waits for the step to finish and returns the step's numbers.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn wait(self) -> Result<StepResult> {
        let PendingMetrics { bytes, of, losses, mode, ran_again } = self;
        let bytes = bytes.wait()?;
        let part = |part: &Tensor| &bytes[(part.address - of.all.address) as usize..][..part.bytes()];
        let status: Status = bytemuck::pod_read_unaligned(part(&of.status));
        let mean = |sum: Tensor| f64::from(bytemuck::pod_read_unaligned::<f32>(part(&sum))) / losses as f64;
        let means = |role: TermRole| -> BTreeMap<&'static str, f64> {
            let terms = of.losses.terms.iter().skip(1).filter(|term| term.role == role);
            terms.filter_map(|term| Some((term.name, mean(of.losses.of(*term)?)))).collect()
        };
        let mut of_pairs = means(TermRole::Told);
        if let Some(desirable) = of_pairs.get(LossTerm::DESIRABLE.name).copied() {
            by_label(&mut of_pairs, desirable);
        }
        if let Some(Mismatched { sum, beta }) = of.mismatched {
            of_pairs.insert("kl", mean(sum).max(0.0) / f64::from(beta));
        }
        if let (Some(chosen), Some(rejected)) = (of_pairs.get("rewards/chosen"), of_pairs.get("rewards/rejected")) {
            of_pairs.insert("rewards/margins", chosen - rejected);
        }
        Ok(StepResult {
            loss: mean(of.losses.loss()),
            added: if mode.trains() { means(TermRole::Minimised) } else { BTreeMap::new() },
            of_pairs,
            expert_loads: of
                .loads
                .iter()
                .filter(|_| mode.trains())
                .flat_map(|loads| block_loads(loads, part))
                .collect(),
            grad_norm: status.grad_norm,
            applied: status.applies == 1,
            spike: status.finite == 1 && status.applies == 0,
            skipped: status.skipped + status.spikes,
            ran_again,
            fp8: (mode == Mode::Measure).then(|| Fp8Losses::of(bytemuck::pod_read_unaligned(part(&of.fp8)))),
        })
    }
}

/// Turns means over all answers into means over the answers of a label; `desirable` is the share of desirable answers. A
/// label that no answer has has none.
fn by_label(means: &mut BTreeMap<&'static str, f64>, desirable: f64) {
    let of_chosen = ["rewards/chosen", "logps/chosen"];
    let of_rejected = ["rewards/rejected", "logps/rejected"];
    for (terms, share) in [(of_chosen, desirable), (of_rejected, 1.0 - desirable)] {
        means.retain(|term, mean| {
            let is_of_label = terms.contains(term);
            *mean /= if is_of_label { share } else { 1.0 };
            !(is_of_label && share == 0.0)
        });
    }
}

/// The loads of each block, from the bytes of tensors.
fn block_loads<'b>(loads: &ExpertLoads, bytes: impl Fn(&Tensor) -> &'b [u8]) -> Vec<BlockLoad> {
    let of_block = |&block: &usize| {
        let numbers = bytes(&loads.of(block)).chunks_exact(DType::F32.size()).map(bytemuck::pod_read_unaligned);
        let mut tokens: Vec<f32> = numbers.collect();
        let dropped = tokens.split_off(loads.experts).first().copied();
        BlockLoad { block, tokens, dropped }
    };
    loads.blocks.iter().map(of_block).collect()
}
