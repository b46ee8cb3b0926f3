//! The layouts of a run that can be tried, and the search for the fastest.

use common::UserError;
use common::format::bytes;
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};

use crate::predict::card::Card;
use crate::predict::forecast::{Fit, Forecast, forecast};
use crate::predict::rough::{Rough, Roughly};
use trainer::config::plan::RunPlan;
use trainer::config::rank_layout::data_ranks;
use trainer::config::{ContextTransfersChoice, PipelineSchedule, RecomputeGranularity, RunConfig};
use trainer::error::RunError;

/// The run to search layouts for, and the bounds of the search.
pub struct Search<'s> {
    /// The run. The parts of its layout that the user has given are kept.
    pub config: &'s RunConfig,
    /// GPUs.
    pub ranks: usize,
    /// GPUs of a node.
    pub node: usize,
    /// Their kind.
    pub card: &'s Card,
    /// Whether the user has set an option, by its key.
    pub given: &'s dyn Fn(&str) -> bool,
    /// The most layouts to return.
    pub most: usize,
}

/// The result of a search.
pub struct Found {
    /// Layouts that the settings allow.
    pub allowed: usize,
    /// The layouts that were recorded whole.
    pub recorded: usize,
    /// The fastest that fit, the fastest first. If none leaves the headroom, those that leave less.
    pub best: Vec<(RunPlan, Forecast)>,
}

/// Layouts whose ranks divide sequences are tried if each has so many tokens of one.
const LONG: usize = 8192;
/// How many layouts are recorded at a time.
const BATCH: usize = 4;
/// How many layouts are recorded for each that is asked for, before the search gives up.
const PATIENCE: usize = 3;

/// The fastest layouts that fit. All are estimated, and only the best are recorded whole.
///
/// # Errors
/// No layout is allowed, or none fits.
pub fn search(search: &Search<'_>) -> Result<Found, RunError> {
    let plans = allowed(search)?;
    let allowed = plans.len();
    let (card, node) = (search.card, search.node);
    let rough = Rough::new(card, node);
    let mut ranked = Vec::new();
    for plan in plans {
        ranked.push((rough.estimate(&plan)?, plan));
    }
    // Layouts that lack memory come last, those that lack least first.
    let lacks = |roughly: &Roughly| roughly.bytes.saturating_sub(card.room() + card.room() / 8);
    let order = |roughly: &Roughly| (lacks(roughly), roughly.seconds);
    ranked.sort_by(|(a, _), (b, _)| order(a).partial_cmp(&order(b)).unwrap_or(std::cmp::Ordering::Equal));
    let (mut best, mut recorded, mut least) = (Vec::new(), 0, None);
    let mut tight = Vec::new();
    // The first may all lack memory that the estimate does not see. Then those follow that fit by a margin.
    let limit = PATIENCE * search.most.max(BATCH);
    let rest = ranked.split_off(limit.min(ranked.len()));
    let by_a_margin = rest.into_iter().filter(|(roughly, _)| roughly.bytes < card.room() - card.room() / 8).take(limit);
    let first = ranked.len();
    let plans: Vec<RunPlan> = ranked.into_iter().chain(by_a_margin).map(|(_, plan)| plan).collect();
    for batch in plans.chunks(BATCH) {
        if best.len() >= search.most || !best.is_empty() && recorded >= first {
            break;
        }
        let forecasts: Vec<_> = batch.par_iter().map(|plan| forecast(plan, card, node)).collect();
        for (plan, forecast) in batch.iter().zip(forecasts) {
            let forecast = forecast?;
            recorded += 1;
            match forecast.fit {
                Fit::Fits => best.push((plan.clone(), forecast)),
                Fit::Tightly(_) => tight.push((plan.clone(), forecast)),
                Fit::Lacks(lacks) => least = Some(least.map_or(lacks, |least: usize| least.min(lacks))),
            }
        }
    }
    if best.is_empty() {
        best = tight;
    }
    if best.is_empty() {
        return Err(none_fits(search, allowed, least.unwrap_or(0)).into());
    }
    best.sort_by(|(_, a), (_, b)| a.step.total_cmp(&b.step));
    best.truncate(search.most);
    Ok(Found { allowed, recorded, best })
}

fn none_fits(search: &Search<'_>, allowed: usize, lacks: usize) -> UserError {
    UserError::new(
        format!(
            "none of {allowed} layouts on {} {} fits: the best of them lacks {} on a rank",
            search.ranks,
            search.card.name,
            bytes(lacks)
        ),
        format!("a rank's plan fits the GPU's {}, with what the driver and libraries take", bytes(search.card.room())),
        "name more --ranks or a larger --gpu, leave out flags of the layout so that others are tried, or set a smaller \
         model.seq_length",
    )
}

/// Every layout that the run's settings allow.
///
/// # Errors
/// There is none: why the first is refused.
fn allowed(search: &Search<'_>) -> Result<Vec<RunPlan>, UserError> {
    let (mut plans, mut refused) = (Vec::new(), None);
    for config in candidates(search) {
        match RunPlan::new(config, search.ranks) {
            Ok(plan) => plans.push(plan),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    match refused {
        Some(error) if plans.is_empty() => Err(error),
        _ => Ok(plans),
    }
}

/// The combinations of all settings of a layout that the user has not given.
fn candidates(search: &Search<'_>) -> Vec<RunConfig> {
    let Search { config, ranks, node, given, .. } = *search;
    let powers = |most: usize| (0..).map(|power| 1usize << power).take_while(move |power| *power <= most);
    let given_or = |key: &str, value: usize, others: Vec<usize>| if given(key) { vec![value] } else { others };
    let parallel = &config.parallel;
    let mut layouts = Vec::new();
    for tensor in given_or("parallel.tensor", parallel.tensor, powers(node.min(ranks)).collect()) {
        let long = powers(ranks / tensor.max(1)).filter(|ranks| *ranks == 1 || config.model.seq_length / ranks >= LONG);
        for context in given_or("parallel.context", parallel.context, long.collect()) {
            let stages = divisors(ranks / (tensor * context).max(1), config.model.layers);
            for pipeline in given_or("parallel.pipeline", parallel.pipeline, stages) {
                let mut with = config.clone();
                (with.parallel.tensor, with.parallel.context, with.parallel.pipeline) = (tensor, context, pipeline);
                layouts.push(with);
            }
        }
    }
    let vary = |layouts: Vec<RunConfig>, key: &str, change: &dyn Fn(&RunConfig) -> Vec<RunConfig>| match given(key) {
        true => layouts,
        false => layouts.iter().flat_map(change).collect(),
    };
    let layouts = vary(layouts, "parallel.virtual_pipeline", &|config| {
        let pipeline = config.parallel.pipeline;
        let most = if pipeline > 1 { config.model.layers / pipeline } else { 1 };
        // Chunks that divide the blocks: others leave some stage with more than its share.
        let divides = |chunks: &usize| *chunks == 1 || config.model.layers.is_multiple_of(pipeline * chunks);
        (1..=most.min(8)).filter(divides).map(|chunks| with(config, |p| p.parallel.virtual_pipeline = chunks)).collect()
    });
    let layouts = vary(layouts, "parallel.pipeline_schedule", &|config| {
        let split = config.parallel.pipeline > 1 && config.parallel.virtual_pipeline == 1;
        let zero = split.then(|| with(config, |c| c.parallel.pipeline_schedule = PipelineSchedule::ZeroBubble));
        [config.clone()].into_iter().chain(zero).collect()
    });
    let layouts = vary(layouts, "parallel.sequence_parallel", &|config| {
        let shares = config.parallel.tensor > 1;
        let words: &[bool] = if shares { &[true, false] } else { &[false] };
        words.iter().map(|word| with(config, |c| c.parallel.sequence_parallel = *word)).collect()
    });
    let layouts = vary(layouts, "parallel.context_transfers", &|config| {
        // Of samples with documents keys do not travel round.
        let has_documents = config.data.sft_packing > 1 || config.data.reset_attention_mask;
        let ways: &[ContextTransfersChoice] = match config.parallel.context {
            1 => return vec![config.clone()],
            _ if has_documents => &[ContextTransfersChoice::Keys, ContextTransfersChoice::Heads],
            _ => &[ContextTransfersChoice::Keys, ContextTransfersChoice::Ring, ContextTransfersChoice::Heads],
        };
        ways.iter().map(|way| with(config, |c| c.parallel.context_transfers = *way)).collect()
    });
    let layouts = vary(layouts, "parallel.distributed_optimizer", &|config| {
        let divides = |c: &RunConfig| data_ranks(c, ranks) * c.parallel.context > 1;
        vec![with(config, |c| c.parallel.distributed_optimizer = divides(c))]
    });
    let layouts = vary(layouts, "train.micro_batch_size", &|config| {
        let most = config.train.global_batch_size / data_ranks(config, ranks);
        powers(most.min(64)).map(|micro| with(config, |c| c.train.micro_batch_size = micro)).collect()
    });
    let layouts = vary(layouts, "cuda_graph.overlap_microbatches", &|config| {
        let overlapping =
            may_overlap(config, ranks).then(|| with(config, |c| c.cuda_graph.overlap_microbatches = true));
        [config.clone()].into_iter().chain(overlapping).collect()
    });
    let layouts = vary(layouts, "recompute.granularity", &|config| {
        [RecomputeGranularity::None, RecomputeGranularity::Selective, RecomputeGranularity::Full]
            .map(|granularity| with(config, |c| c.recompute.granularity = granularity))
            .into()
    });
    let full = |config: &RunConfig| config.recompute.granularity == RecomputeGranularity::Full;
    let layouts = vary(layouts, "recompute.keep_attention", &|config| {
        let kept = full(config).then(|| with(config, |c| c.recompute.keep_attention = true));
        [with(config, |c| c.recompute.keep_attention = false)].into_iter().chain(kept).collect()
    });
    // What recomputed blocks save moves in less time than they take.
    vary(layouts, "offload.activation_layers", &|config| {
        let away = full(config).then(|| with(config, |c| c.offload.activation_layers = c.model.layers));
        [with(config, |c| c.offload.activation_layers = 0)].into_iter().chain(away).collect()
    })
}

/// Whether a layout is tried with microbatches that overlap. It is if ranks wait for each other, so that another
/// microbatch can fill the time. With several chunks a stage that gained nothing
/// (bench/results/2026-11-25-pipeline-overlap.md).
fn may_overlap(config: &RunConfig, ranks: usize) -> bool {
    let parallel = &config.parallel;
    let in_turn = parallel.pipeline_schedule == PipelineSchedule::OneForwardOneBackward;
    let waits = parallel.tensor > 1 || parallel.context > 1 || parallel.pipeline > 1 && parallel.virtual_pipeline == 1;
    let several = config.train.global_batch_size > config.train.micro_batch_size * data_ranks(config, ranks);
    config.cuda_graph.enable && in_turn && waits && several
}

fn with(config: &RunConfig, change: impl FnOnce(&mut RunConfig)) -> RunConfig {
    let mut config = config.clone();
    change(&mut config);
    config
}

fn divisors(of: usize, most: usize) -> Vec<usize> {
    (1..=most.min(of)).filter(|divisor| of.is_multiple_of(*divisor)).collect()
}
