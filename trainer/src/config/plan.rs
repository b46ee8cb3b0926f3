//! The checked plan of a run: every derived size, and all validation, in one place.

use common::UserError;
use engine::graph_options::{GraphOptions, Scope};
use engine::layer_partition::StageLayers;
use engine::optimizer::{AdamW, ParamGroup, Sgd};
use graph_manager::Mempool;
use launch::watch::WatchSettings;
use parallel::{Grid, PipelineStage};

use crate::config::batch_size::BatchSize;
use crate::config::checks::{at_least, at_most, require, within};
use crate::config::learning_rate::{Decay, Schedule};
pub use crate::config::model_plan::ModelPlan;
use crate::config::model_plan::model_plan;
use crate::config::watch::watch_settings;
use crate::config::{RunConfig, rank_layout};

/// A run that can be done.
#[derive(Clone, Debug)]
pub struct RunPlan {
    /// The configuration it was made from.
    pub config: RunConfig,
    /// The model's sizes.
    pub model: ModelPlan,
    /// Which ranks share layers, and which the batch.
    pub grid: Grid,
    /// Blocks of each part of the model; none of a model that is not cut into stages.
    pub blocks: Vec<usize>,
    /// With several chunks a stage, microbatches that go through one before the next.
    pub microbatch_group: usize,
    /// Samples of each step.
    pub batch_size: BatchSize,
    /// Microbatches of a step of the global batch on each rank.
    pub microbatches: usize,
    /// Losses of a sample: its tokens, or 1.
    pub losses_per_sample: usize,
    /// Tokens (or rows) of a step of the global batch over all ranks.
    pub tokens_per_step: usize,
    /// Training FLOPs per token: 6 per parameter the token meets, and causal attention.
    pub flops_per_token: f64,
    /// Parameters.
    pub parameters: usize,
    /// How steps are captured.
    pub graphs: GraphOptions,
    /// Learning rate by step.
    pub schedule: Schedule,
    /// Which parameters are updated how.
    pub optimizer: Vec<ParamGroup>,
    /// When a rank is taken to have failed.
    pub watch: WatchSettings,
}

impl RunPlan {
    /// Checks a configuration for a world of `world_size` ranks and derives its sizes.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn new(config: RunConfig, world_size: usize) -> Result<RunPlan, UserError> {
        slips(&config)?;
        let grid = rank_layout::grid(&config, world_size)?;
        at_least("train.micro_batch_size", config.train.micro_batch_size, 1)?;
        at_least("train.global_batch_size", config.train.global_batch_size, 1)?;
        let batch_size = BatchSize::new(&config.train, grid.data)?;
        let model = model_plan(&config)?;
        let mut blocks = Vec::new();
        if let ModelPlan::Gpt(shape) = &model {
            rank_layout::check(&config, shape)?;
            blocks = rank_layout::blocks(&config, shape)?;
        }
        rank_layout::check_schedule(&config)?;
        let counts = batch_size.microbatches();
        let microbatches = counts[0];
        let microbatch_group = rank_layout::microbatch_group(&config, &counts)?;
        at_least("train.steps", config.train.steps, 1)?;
        at_least("recompute.layers", config.recompute.layers, 1)?;
        at_least("parallel.bucket_mib", config.parallel.bucket_mib, 1)?;
        at_least("logging.interval", config.logging.interval, 1)?;
        at_least("logging.trace_steps", config.logging.trace_steps, 1)?;
        within(
            "data.split",
            config.data.split,
            config.data.split > 0.0 && config.data.split <= 1.0,
            "it is a share, above 0 and at most 1",
            "set data.split = 0.9",
        )?;
        if let Some(threads) = config.train.threads {
            at_least("train.threads", threads, 1)?;
        }
        let graphs = graph_options(&config)?;
        let watch = watch_settings(&config.parallel)?;
        let optimizer = param_groups(&config)?;
        let schedule = schedule(&config)?;
        let architecture = model.architecture();
        let sizes = |name: &str| {
            let spec = architecture.specs.iter().find(|spec| spec.name == name);
            spec.map_or(0, |spec| spec.shape.elements() / spec.shape.sizes()[0] * spec.rows)
        };
        let parameters: usize = architecture.specs.iter().map(|spec| sizes(&spec.name)).sum();
        let (losses_per_sample, flops_per_token) = match &model {
            ModelPlan::Gpt(shape) => {
                // A lookup costs nothing; a tied table is met once, in the head.
                let lookups = sizes("wpe.weight") + if shape.tied { 0 } else { sizes("wte.weight") };
                let attention = if shape.attention { 6 * shape.layers * shape.hidden * shape.seq } else { 0 };
                (shape.seq, (6 * (parameters - lookups) + attention) as f64)
            }
            ModelPlan::Mlp(_) => (1, (6 * parameters) as f64),
        };
        Ok(RunPlan {
            tokens_per_step: config.train.global_batch_size * losses_per_sample,
            config,
            model,
            grid,
            blocks,
            microbatch_group,
            microbatches,
            batch_size,
            losses_per_sample,
            flops_per_token,
            parameters,
            graphs,
            schedule,
            optimizer,
            watch,
        })
    }
}

impl RunPlan {
    /// The stage of the pipeline that a rank is.
    pub fn stage(&self, rank: usize) -> PipelineStage {
        PipelineStage {
            stages: self.grid.pipeline,
            stage: self.grid.place(rank).pipeline,
            chunks: self.config.parallel.virtual_pipeline,
            group: self.microbatch_group,
            zero_bubble: self.config.parallel.pipeline_schedule == "zero_bubble",
        }
    }

    /// The layers that a rank has.
    pub fn layers(&self, rank: usize) -> StageLayers {
        match &self.model {
            ModelPlan::Gpt(_) => StageLayers::of_stage(self.stage(rank), &self.blocks, recompute(&self.config)),
            ModelPlan::Mlp(shape) => StageLayers::whole(shape.sizes.len()),
        }
    }

    /// Steps between evaluations; none where there are to be none.
    pub fn eval_interval(&self) -> Option<usize> {
        let train = &self.config.train;
        Some(train.eval_interval).filter(|&interval| interval > 0 && train.eval_steps > 0)
    }

    /// Whether the first and the last stage share the table of a tied head.
    pub fn shares_table(&self) -> bool {
        self.grid.pipeline > 1 && matches!(&self.model, ModelPlan::Gpt(shape) if shape.tied)
    }
}

/// Blocks that backward computes again together, where it does so with all of them.
fn recompute(config: &RunConfig) -> Option<usize> {
    (config.recompute.granularity == "full").then_some(config.recompute.layers)
}

/// Fails on single numbers so large that they can only be slips.
fn slips(config: &RunConfig) -> Result<(), UserError> {
    let (model, train) = (&config.model, &config.train);
    for (key, value, most) in [
        ("model.layers", model.layers, 1 << 14),
        ("recompute.layers", config.recompute.layers, 1 << 14),
        ("model.hidden", model.hidden, 1 << 30),
        ("model.heads", model.heads, 1 << 30),
        ("model.kv_heads", model.kv_heads.unwrap_or(1), 1 << 30),
        ("model.ffn", model.ffn.unwrap_or(1), 1 << 30),
        ("model.vocab", model.vocab, 1 << 30),
        ("model.seq_length", model.seq_length, 1 << 30),
        ("train.global_batch_size", train.global_batch_size, 1 << 24),
        ("train.micro_batch_size", train.micro_batch_size, 1 << 24),
        // Steps are counted in 32 bits on the device.
        ("train.steps", train.steps, 1 << 31),
        ("train.eval_steps", train.eval_steps, 1 << 31),
        ("train.threads", train.threads.unwrap_or(1), 1 << 12),
        ("parallel.tensor", config.parallel.tensor, 1 << 16),
        ("parallel.pipeline", config.parallel.pipeline, 1 << 14),
        ("parallel.virtual_pipeline", config.parallel.virtual_pipeline, 1 << 14),
        ("parallel.bucket_mib", config.parallel.bucket_mib, 1 << 20),
    ] {
        at_most(key, value, most)?;
    }
    Ok(())
}

fn graph_options(config: &RunConfig) -> Result<GraphOptions, UserError> {
    let graph = &config.cuda_graph;
    require(!graph.enable || graph.warmup_steps >= 1, || {
        UserError::new(
            "cuda_graph.warmup_steps = 0",
            "every collective must have run once before it is captured",
            "set cuda_graph.warmup_steps = 1",
        )
    })?;
    Ok(GraphOptions {
        enable: graph.enable,
        scope: if graph.scope == "full_iteration" { Scope::FullIteration } else { Scope::PerLayer },
        mempool: if graph.mempool == "single" { Mempool::Single } else { Mempool::PerMicrobatch },
        share_io_buffers: graph.share_io_buffers,
        capture_optimizer: graph.capture_optimizer,
        warmup_steps: graph.warmup_steps,
        poison: false,
    })
}

fn param_groups(config: &RunConfig) -> Result<Vec<ParamGroup>, UserError> {
    let optimizer = &config.optimizer;
    let decay = optimizer.weight_decay as f32;
    let share = |key: &str, value: f64| {
        within(key, value, (0.0..1.0).contains(&value), "a decay is in [0, 1)", "see `trainer options` for defaults")
    };
    require(optimizer.weight_decay >= 0.0 && optimizer.clip >= 0.0, || {
        UserError::new(
            format!("optimizer.weight_decay = {}, clip = {}", optimizer.weight_decay, optimizer.clip),
            "neither is negative",
            "set them to 0 to turn them off",
        )
    })?;
    if optimizer.kind == "sgd" {
        share("optimizer.momentum", optimizer.momentum)?;
        return Ok(ParamGroup::decay_matrices(Sgd { momentum: optimizer.momentum as f32 }, decay));
    }
    let [beta1, beta2] = optimizer.betas[..] else {
        return Err(UserError::new(
            format!("optimizer.betas = {:?}", optimizer.betas),
            "AdamW has two",
            "set optimizer.betas = [0.9, 0.95]",
        ));
    };
    share("optimizer.betas", beta1)?;
    share("optimizer.betas", beta2)?;
    within("optimizer.eps", optimizer.eps, optimizer.eps > 0.0, "it is above 0", "set optimizer.eps = 1e-8")?;
    let adamw = AdamW { beta1: beta1 as f32, beta2: beta2 as f32, eps: optimizer.eps as f32 };
    Ok(ParamGroup::decay_matrices(adamw, decay))
}

fn schedule(config: &RunConfig) -> Result<Schedule, UserError> {
    let optimizer = &config.optimizer;
    let steps = config.train.steps;
    within("optimizer.lr", optimizer.lr, optimizer.lr > 0.0, "it is above 0", "set optimizer.lr = 3e-4")?;
    let decay = match optimizer.schedule.as_str() {
        "constant" => Decay::None,
        "wsd" => Decay::StableThenLinear { steps: optimizer.decay_steps },
        _ => Decay::Cosine,
    };
    if decay != Decay::None {
        within(
            "optimizer.min_lr",
            optimizer.min_lr,
            (0.0..=optimizer.lr).contains(&optimizer.min_lr),
            "a decay ends at or below optimizer.lr, and not below 0",
            "set optimizer.min_lr = optimizer.lr / 10",
        )?;
    }
    Ok(Schedule { peak: optimizer.lr, floor: optimizer.min_lr, warmup: optimizer.warmup_steps, decay, steps })
}
