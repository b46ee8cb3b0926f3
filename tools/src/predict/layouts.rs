//! The layouts of a run that can be tried, and the search for the fastest.

use common::UserError;
use common::format::bytes;
use engine::layer_partition::Recompute;
use engine::params::Sharding;
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};

use crate::predict::card::Card;
use crate::predict::forecast::{Fit, Forecast, forecast, with_state_as_needed};
use crate::predict::rough::{Rough, Roughly};
use trainer::config::plan::{RunPlan, StateOnHost, data_ranks};
use trainer::config::{
    ContextTransfersChoice, DataParallelSharding, PipelineSchedule, RecomputeGranularity, RunConfig, has_documents,
};
use trainer::error::RunError;

/// The run to search layouts for, and the bounds of the search.
pub struct Search<'s> {
    /// The run. The parts of its layout that the user has given are kept.
    pub config: &'s RunConfig,
    /// GPUs.
    pub ranks: usize,
    /// GPUs of a node.
    pub node: usize,
    /// The GPUs' kind.
    pub card: &'s Card,
    /// Whether the user has set an option, by the option's key.
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
/// Feed-forward layers are tried in tiles of at least so many tokens: products of these are as fast as those of all
/// (bench/results/2026-11-29-two-h200.md).
const TOKENS_OF_TILE: usize = 4096;
/// More tiles take little less memory.
const MOST_TILES: usize = 16;
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
        let roughly = rough.estimate(&plan)?;
        let tiled = in_tiles(search, &rough, &plan, roughly)?;
        for (roughly, plan) in [(roughly, plan)].into_iter().chain(tiled) {
            ranked.extend(filled(search, &rough, &plan, roughly)?);
            ranked.push((roughly, plan));
        }
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
        let forecasts: Vec<_> = batch.par_iter().map(|plan| settled(plan, card, node)).collect();
        for settled in forecasts {
            let (plan, forecast) = settled?;
            recorded += 1;
            match forecast.fit {
                Fit::Fits => best.push((plan, forecast)),
                Fit::Tightly(_) => tight.push((plan, forecast)),
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

/// A recomputed layout that lacks memory, with feed-forward layers in tiles of tokens and the head in as many pieces, and
/// the layout's estimate.
fn in_tiles(
    search: &Search<'_>,
    rough: &Rough,
    plan: &RunPlan,
    roughly: Roughly,
) -> Result<Option<(Roughly, RunPlan)>, RunError> {
    let config = &plan.config;
    let tokens = config.train.micro_batch_size * config.model.seq_length / config.parallel.context;
    let tiles = (tokens / TOKENS_OF_TILE).min(MOST_TILES);
    let lacks = roughly.bytes > search.card.room() - search.card.headroom();
    if !lacks || tiles < 2 || plan.parallel.recompute.is_none() || (search.given)("recompute.mlp_tiles") {
        return Ok(None);
    }
    let pieces = tiles.next_power_of_two();
    let cuts_head = !(search.given)("model.loss_pieces") && tokens.is_multiple_of(pieces);
    let tiled = with(config, |c| {
        c.recompute.mlp_tiles = tiles;
        c.model.loss_pieces = if cuts_head { Some(pieces) } else { c.model.loss_pieces };
    });
    let tiled = RunPlan::new(tiled, search.ranks).ok();
    tiled.map(|plan| Ok((rough.estimate(&plan)?, plan))).transpose()
}

/// Layouts with the same parts as one, but with such amounts of the means that the GPU's memory is full, and an estimate
/// of each: of blocks that are recomputed as many save all as there is room for. Of a layout that lacks memory
/// data-parallel ranks divide gradients and weights, or as much of the optimizer's state lies on the host as is needed.
fn filled(
    search: &Search<'_>,
    rough: &Rough,
    plan: &RunPlan,
    roughly: Roughly,
) -> Result<Vec<(Roughly, RunPlan)>, RunError> {
    let room = search.card.room() - search.card.headroom();
    let mut all = Vec::new();
    if let (Some(how), false) = (plan.parallel.recompute, (search.given)("recompute.blocks"))
        && roughly.bytes < room
    {
        let with = |most: usize| {
            let mut plan = plan.clone();
            plan.config.recompute.blocks = Some(most);
            plan.parallel.recompute = Some(Recompute { most, ..how });
            plan
        };
        let largest = plan.parallel.blocks.iter().copied().max().unwrap_or(0);
        // More blocks take less memory. Where all can save all, none is recomputed.
        let fits = |most: usize| Ok::<_, RunError>(rough.estimate(&with(most))?.bytes <= room);
        let (mut too_few, mut enough) = (0, if fits(0)? { 0 } else { largest });
        while enough > too_few + 1 {
            let most = usize::midpoint(too_few, enough);
            match fits(most)? {
                true => enough = most,
                false => too_few = most,
            }
        }
        if (1..largest).contains(&enough) {
            all.push((rough.estimate(&with(enough))?, with(enough)));
        }
    }
    let may_divide = plan.parallel.sharding == Sharding::State && !(search.given)("parallel.data_parallel_sharding");
    if roughly.bytes > room && may_divide {
        let config = with(&plan.config, |c| c.parallel.data_parallel_sharding = DataParallelSharding::OptimGradsParams);
        // Some settings exclude it.
        if let Ok(divided) = RunPlan::new(config, search.ranks) {
            all.push((rough.estimate(&divided)?, divided));
        }
    }
    if roughly.bytes > room && !(search.given)("offload.optimizer") && !plan.frozen.are_all() {
        let mut away = plan.clone();
        away.config.offload.optimizer = true;
        away.parallel.state_on_host = StateOnHost::AsNeeded;
        all.push((roughly.with_state_as_needed(room, search.card), away));
    }
    Ok(all)
}

/// How often a layout is recorded with more blocks recomputed, until the headroom is left.
const TRIES: usize = 4;

/// A layout with the amounts settled on the whole plan, and the layout's prediction. The estimate may have had too many
/// blocks save all.
fn settled(plan: &RunPlan, card: &Card, node: usize) -> Result<(RunPlan, Forecast), RunError> {
    let mut plan = with_state_as_needed(plan, card, node)?;
    let mut found = forecast(&plan, card, node)?;
    let largest = plan.parallel.blocks.iter().copied().max().unwrap_or(0);
    for more in (0..TRIES).map(|tried| 1 << tried) {
        let Some(how) = plan.parallel.recompute.filter(|how| how.most < largest && found.fit != Fit::Fits) else {
            break;
        };
        let most = (how.most + more).min(largest);
        plan.config.recompute.blocks = (most < largest).then_some(most);
        plan.parallel.recompute = Some(Recompute { most, ..how });
        found = forecast(&plan, card, node)?;
    }
    Ok((plan, found))
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
        // Where keys can go round that was faster than to gather them (bench/results/2026-11-29-two-h200.md).
        let ways = match config.parallel.context {
            1 => return vec![config.clone()],
            _ if has_documents(config) => [ContextTransfersChoice::Keys, ContextTransfersChoice::Heads],
            _ => [ContextTransfersChoice::Auto, ContextTransfersChoice::Heads],
        };
        ways.iter().map(|way| with(config, |c| c.parallel.context_transfers = *way)).collect()
    });
    let layouts = vary(layouts, "parallel.distributed_optimizer", &|config| {
        let divides = |c: &RunConfig| data_ranks(c, ranks) * c.parallel.context > 1;
        match config.parallel.data_parallel_sharding {
            DataParallelSharding::Auto => vec![with(config, |c| c.parallel.distributed_optimizer = divides(c))],
            _ => vec![config.clone()],
        }
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
