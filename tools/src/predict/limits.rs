//! How far a GPU's memory goes: with each means, the longest samples and the most blocks of a run that fit.

use std::rc::Rc;

use parallel::Axis;
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};

use crate::predict::card::Card;
use crate::predict::forecast::Memory;
use crate::predict::network::Network;
use crate::predict::paper;
use trainer::config::plan::RunPlan;
use trainer::config::{RecomputeGranularity, RunConfig};
use trainer::error::RunError;

/// The limits of a run with some means.
pub struct Limit {
    /// The means, as flags. Empty for the run's own settings.
    pub means: &'static str,
    /// The longest samples; `None` if none fits.
    pub longest: Option<Largest>,
    /// The most blocks, with the run's own samples; `None` if no number of blocks fits.
    pub largest: Option<Largest>,
}

/// The largest value of a size that fits.
#[derive(Clone, Copy)]
pub struct Largest {
    /// Tokens of a sample, or blocks.
    pub value: usize,
    /// Parameters of that model.
    pub parameters: usize,
    /// The memory of the rank that needs most.
    pub memory: Memory,
    /// The memory that twice the value needs; `None` if the settings do not allow twice the value.
    pub twice: Option<Memory>,
}

/// A size that is made as large as possible.
struct Size {
    /// The number that the largest value is a multiple of.
    step: usize,
    set: fn(&mut RunConfig, usize),
    get: fn(&RunConfig) -> usize,
}

const TOKENS: Size =
    Size { step: 1024, set: |config, tokens| config.model.seq_length = tokens, get: |config| config.model.seq_length };

const BLOCKS: Size =
    Size { step: 1, set: |config, blocks| config.model.layers = blocks, get: |config| config.model.layers };

/// Each means of more room, in the order of cost, with all means before.
type Means = (&'static str, fn(&mut RunConfig));

const MEANS: [Means; 6] = [
    ("", |_| ()),
    ("--recompute-granularity full --recompute-keep-attention", |config| {
        (config.recompute.granularity, config.recompute.keep_attention) = (RecomputeGranularity::Full, true);
        (config.recompute.blocks, config.recompute.layers) = (None, 1);
    }),
    ("... --mlp-tiles 8 --loss-pieces 16", |config| {
        config.recompute.mlp_tiles = config.recompute.mlp_tiles.max(8);
        config.model.loss_pieces = config.model.loss_pieces.max(Some(16));
    }),
    ("... without --recompute-keep-attention", |config| config.recompute.keep_attention = false),
    ("... --offload-activation-layers of all blocks", |config| config.offload.activation_layers = 1 << 20),
    ("... --offload-optimizer", |config| {
        (config.offload.optimizer, config.offload.optimizer_fraction) = (true, Some(1.0));
    }),
];

/// The limits of a run on the run's ranks, with one sample in a microbatch: with its own settings, and with each further
/// means that they allow.
///
/// # Errors
/// Settings that exclude each other.
pub fn limits(plan: &RunPlan, card: &Card, node: usize) -> Result<Vec<Limit>, RunError> {
    let mut config = plan.config.clone();
    config.train.micro_batch_size = 1;
    config.train.rampup_batch_size = Vec::new();
    config.data.seq_length_buckets = Vec::new();
    let stages = plan.parallel.mesh.size(Axis::Pipeline);
    config.train.global_batch_size = plan.parallel.mesh.size(Axis::Data) * (2 * stages);
    let sized = Sized { ranks: plan.parallel.mesh.ranks(), card, node };
    let mut all = Vec::new();
    for (means, change) in MEANS {
        let mut with = config.clone();
        change(&mut with);
        if means.is_empty() || RunPlan::new(with.clone(), sized.ranks).is_ok() {
            all.push((means, with.clone()));
            config = with;
        }
    }
    let limit = |(means, config): &(&'static str, RunConfig)| {
        let [longest, largest] = [TOKENS, BLOCKS].map(|size| sized.largest(config, &size));
        Ok(Limit { means, longest: longest?, largest: largest? })
    };
    all.par_iter().map(limit).collect()
}

/// A run on so many ranks of a GPU.
struct Sized<'c> {
    ranks: usize,
    card: &'c Card,
    node: usize,
}

/// How many values are recorded for one limit at most. Memory is a straight line, but for gaps of the plan.
const TRIES: usize = 6;

impl Sized<'_> {
    /// The largest value that fits and leaves the headroom; `None` if none does.
    fn largest(&self, config: &RunConfig, size: &Size) -> Result<Option<Largest>, RunError> {
        let room = self.card.room() - self.card.headroom();
        let mut recorded: Vec<(usize, Memory)> = Vec::new();
        let mut value = (size.get)(config).next_multiple_of(size.step);
        while recorded.len() < TRIES
            && let Some(memory) = self.needs(config, size, value)?
        {
            recorded.push((value, memory));
            let line = |(a, before): (usize, Memory), (b, after): (usize, Memory)| {
                let slope = (after.total() as f64 - before.total() as f64) / (b as f64 - a as f64);
                b as f64 + (room as f64 - after.total() as f64) / slope
            };
            let guess = match recorded[..] {
                [.., before, after] => line(before, after),
                // Half of it, or twice as much.
                _ if memory.total() > room => value as f64 / 2.0,
                _ => value as f64 * 2.0,
            };
            value = (guess / size.step as f64).floor().clamp(1.0, 1e6) as usize * size.step;
            if recorded.iter().any(|(known, _)| *known == value) {
                break;
            }
        }
        let fit = recorded.into_iter().filter(|(_, memory)| memory.total() <= room);
        let Some((value, memory)) = fit.max_by_key(|(value, _)| *value) else { return Ok(None) };
        let twice = self.needs(config, size, 2 * value)?;
        let parameters = self.plan(config, size, value).map_or(0, |plan| plan.size.parameters);
        Ok(Some(Largest { value, parameters, memory, twice }))
    }

    fn plan(&self, config: &RunConfig, size: &Size, value: usize) -> Option<RunPlan> {
        let mut config = config.clone();
        (size.set)(&mut config, value);
        RunPlan::new(config, self.ranks).ok()
    }

    /// The memory of the rank that needs most; `None` if the settings do not allow the value.
    fn needs(&self, config: &RunConfig, size: &Size, value: usize) -> Result<Option<Memory>, RunError> {
        let Some(plan) = self.plan(config, size, value) else { return Ok(None) };
        let network = Network { card: Rc::new(self.card.clone()), node: self.node };
        let ranks = plan.parallel.mesh.members_along(0, Axis::Pipeline);
        let all: Vec<Memory> =
            ranks.into_iter().map(|rank| paper::memory(&plan, rank, &network)).collect::<Result<_, _>>()?;
        Ok(all.into_iter().max_by_key(Memory::total))
    }
}
