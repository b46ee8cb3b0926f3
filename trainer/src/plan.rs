//! The checked plan of a run: every derived size, and all validation, in one place.

use device::DType;
use device::ops::NormKind;
use graph_manager::{GraphOptions, Mempool, Scope};
use parallel::{Grid, PipelineStage};

use crate::batch_size::BatchSize;
use crate::config::{RunConfig, UserError};
use crate::layout;
use crate::model::{
    Architecture, FeedForward, GptShape, MlpShape, Position, Scaling, TensorParallel, gpt, gpt_part, mlp,
};
use crate::optimizer::OptimizerKind;
use crate::schedule::{Decay, Schedule};
use crate::stages::StageLayers;
use crate::watch::WatchSettings;

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
    /// Which optimizer.
    pub optimizer: OptimizerKind,
    /// When a rank is taken to have failed.
    pub watch: WatchSettings,
}

/// Which model, with all sizes.
#[derive(Clone, Debug)]
pub enum ModelPlan {
    /// A GPT.
    Gpt(GptShape),
    /// An MLP.
    Mlp(MlpShape),
}

impl ModelPlan {
    /// What a rank has of the model: a part of each layer, of some of the layers.
    pub fn part(&self, tensor: TensorParallel, layers: StageLayers) -> Architecture {
        match self {
            ModelPlan::Gpt(shape) => gpt_part(shape.clone(), tensor, layers),
            ModelPlan::Mlp(_) => self.architecture(),
        }
    }

    /// The whole model, ready to be placed.
    pub fn architecture(&self) -> Architecture {
        match self {
            ModelPlan::Gpt(shape) => gpt(shape.clone()),
            ModelPlan::Mlp(shape) => mlp(shape.clone()),
        }
    }
}

/// Fails unless `ok`.
fn require(ok: bool, error: impl FnOnce() -> UserError) -> Result<(), UserError> {
    if ok { Ok(()) } else { Err(error()) }
}

fn at_least(key: &str, value: usize, least: usize) -> Result<(), UserError> {
    require(value >= least, || {
        UserError::new(format!("{key} = {value}"), format!("it is at least {least}"), format!("set {key} = {least}"))
    })
}

fn at_most(key: &str, value: usize, most: usize) -> Result<(), UserError> {
    require(value <= most, || {
        UserError::new(format!("{key} = {value}"), format!("it is at most {most}"), format!("set a smaller {key}"))
    })
}

/// Fails on a tensor no machine holds. Such sizes are slips, and what is derived from them would overflow.
fn holdable(what: &str, sizes: &[usize]) -> Result<(), UserError> {
    let elements: f64 = sizes.iter().map(|&size| size as f64).product();
    require(elements <= (1u64 << 44) as f64, || {
        let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
        let sizes = sizes.join(" x ");
        UserError::new(format!("{what} = {sizes}"), "a tensor has at most 2^44 elements", "set smaller sizes")
    })
}

fn within(key: &str, value: f64, ok: bool, rule: &str, fix: &str) -> Result<(), UserError> {
    require(ok, || UserError::new(format!("{key} = {value}"), rule, fix))
}

impl RunPlan {
    /// Checks a configuration for a world of `world_size` ranks and derives its sizes.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn new(config: RunConfig, world_size: usize) -> Result<RunPlan, UserError> {
        slips(&config)?;
        let grid = layout::grid(&config, world_size)?;
        at_least("train.micro_batch_size", config.train.micro_batch_size, 1)?;
        at_least("train.global_batch_size", config.train.global_batch_size, 1)?;
        let batch_size = BatchSize::new(&config.train, grid.data)?;
        let model = model_plan(&config)?;
        let mut blocks = Vec::new();
        if let ModelPlan::Gpt(shape) = &model {
            layout::check(&config, shape)?;
            blocks = layout::blocks(&config, shape)?;
        }
        layout::check_schedule(&config)?;
        let counts = batch_size.microbatches();
        let microbatches = counts[0];
        let microbatch_group = layout::microbatch_group(&config, &counts)?;
        at_least("train.steps", config.train.steps, 1)?;
        at_least("recompute.layers", config.recompute.layers, 1)?;
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
        let watch = WatchSettings::new(&config.parallel)?;
        let optimizer = optimizer_kind(&config)?;
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

/// The model of a configuration, checked.
///
/// # Errors
/// The first rule that is broken.
pub(crate) fn model_plan(config: &RunConfig) -> Result<ModelPlan, UserError> {
    let model = &config.model;
    let dtype = if config.precision.compute == "bf16" { DType::Bf16 } else { DType::F32 };
    let rate = |key: &str, value: f64| {
        within(key, value, (0.0..1.0).contains(&value), "a dropout rate is in [0, 1)", "set it to 0 for none")
    };
    if model.kind == "mlp" {
        require(config.recompute.granularity != "full", || {
            UserError::new(
                "recompute.granularity = \"full\" with model.kind = \"mlp\"",
                "it is a transformer's blocks that are computed again",
                "set recompute.granularity = \"none\"",
            )
        })?;
        require(model.layer_sizes.len() >= 2 && !model.layer_sizes.contains(&0), || {
            UserError::new(
                format!("model.layer_sizes = {:?}", model.layer_sizes),
                "an MLP has at least an input and an output width, none of them 0",
                "set model.layer_sizes = [4096, 2048, 1024, 512, 256]",
            )
        })?;
        let batch = config.train.micro_batch_size;
        model.layer_sizes.windows(2).try_for_each(|pair| holdable("model.layer_sizes, a weight", pair))?;
        model.layer_sizes.iter().try_for_each(|&size| holdable("micro_batch_size x a layer's size", &[batch, size]))?;
        model.dropouts.iter().try_for_each(|&value| rate("model.dropouts", value))?;
        return Ok(ModelPlan::Mlp(MlpShape {
            sizes: model.layer_sizes.clone(),
            dropouts: model.dropouts.iter().map(|&rate| rate as f32).collect(),
            batch: config.train.micro_batch_size,
            seed: config.train.seed,
            dtype,
        }));
    }
    for (key, value) in [
        ("model.layers", model.layers),
        ("model.hidden", model.hidden),
        ("model.heads", model.heads),
        ("model.vocab", model.vocab),
        ("model.seq_length", model.seq_length),
        ("model.kv_heads", model.kv_heads.unwrap_or(1)),
        ("model.ffn", model.ffn.unwrap_or(1)),
    ] {
        at_least(key, value, 1)?;
    }
    require(model.hidden.is_multiple_of(model.heads), || {
        UserError::new(
            format!("model.hidden = {} with model.heads = {}", model.hidden, model.heads),
            "hidden is a multiple of heads",
            format!("set model.hidden = {}", model.hidden.next_multiple_of(model.heads)),
        )
    })?;
    let (batch, seq, hidden) = (config.train.micro_batch_size, model.seq_length, model.hidden);
    let kv_heads = model.kv_heads.unwrap_or(model.heads);
    require(model.heads.is_multiple_of(kv_heads), || {
        UserError::new(
            format!("model.heads = {} with model.kv_heads = {kv_heads}", model.heads),
            "heads is a multiple of kv_heads: each key and value head serves as many",
            format!("set model.kv_heads = {}, or another divisor of heads", model.heads),
        )
    })?;
    within(
        "model.norm_eps",
        model.norm_eps,
        model.norm_eps > 0.0 && (model.norm_eps as f32) > 0.0,
        "it is above 0, also as f32",
        "set model.norm_eps = 1e-5",
    )?;
    within("model.init_std", model.init_std, model.init_std > 0.0, "it is above 0", "set model.init_std = 0.02")?;
    let position = position(config)?;
    let (feed_forward, default_ffn) = match model.activation.as_str() {
        // Llama's rule (Touvron et al., 2023): as many parameters as 4 x hidden would have with two matrices.
        "swiglu" => (FeedForward::SwiGlu, (8 * hidden / 3).next_multiple_of(256)),
        _ => (FeedForward::Gelu, 4 * hidden),
    };
    let ffn = model.ffn.unwrap_or(default_ffn);
    holdable("model.vocab x hidden", &[model.vocab, hidden])?;
    holdable("model.ffn x hidden", &[ffn, hidden])?;
    holdable("model.seq_length x hidden", &[seq, hidden])?;
    holdable("train.micro_batch_size x model.seq_length x the widest layer", &[batch, seq, ffn.max(model.vocab)])?;
    holdable("train.micro_batch_size x model.heads x seq_length^2", &[batch, model.heads, seq, seq])?;
    rate("model.hidden_dropout", model.hidden_dropout)?;
    rate("model.attention_dropout", model.attention_dropout)?;
    Ok(ModelPlan::Gpt(GptShape {
        layers: model.layers,
        hidden,
        heads: model.heads,
        kv_heads,
        ffn,
        vocab: model.vocab,
        padded_vocab: model.vocab.next_multiple_of(128 * config.parallel.tensor.max(1)),
        seq,
        batch,
        tied: model.tie_embeddings,
        attention: model.attention,
        norm: if model.norm == "rmsnorm" { NormKind::Rms } else { NormKind::Layer },
        norm_eps: model.norm_eps as f32,
        feed_forward,
        position,
        bias: model.bias,
        init_std: model.init_std as f32,
        scaled_residual_init: model.residual_init == "scaled",
        hidden_dropout: model.hidden_dropout as f32,
        attention_dropout: model.attention_dropout as f32,
        loss_pieces: loss_pieces(config)?,
        recompute: config.recompute.granularity == "selective",
        seed: config.train.seed,
        dtype,
    }))
}

/// Pieces of a microbatch's rows for the loss: as asked for, or as few as keep a piece's logits within 1 GiB.
fn loss_pieces(config: &RunConfig) -> Result<usize, UserError> {
    let rows = config.train.micro_batch_size * config.model.seq_length;
    if let Some(pieces) = config.model.loss_pieces {
        require(pieces > 0 && rows.is_multiple_of(pieces), || {
            UserError::new(
                format!("model.loss_pieces = {pieces} with {rows} tokens of a microbatch"),
                "a microbatch's tokens are cut into equal pieces",
                "set a power of two, or leave it unset",
            )
        })?;
        return Ok(pieces);
    }
    let bytes = rows * config.model.vocab * if config.precision.compute == "bf16" { 2 } else { 4 };
    let bytes = bytes / config.parallel.tensor.max(1);
    let enough = |pieces: &usize| rows.is_multiple_of(*pieces) && bytes / pieces <= 1 << 30;
    Ok((0..usize::BITS).map(|power| 1 << power).take_while(|pieces| *pieces <= rows).find(enough).unwrap_or(1))
}

/// How the model knows positions.
fn position(config: &RunConfig) -> Result<Position, UserError> {
    let model = &config.model;
    match model.position.as_str() {
        "rotary" => {}
        "none" => return Ok(Position::None),
        _ => return Ok(Position::Learned),
    }
    let head_dim = model.hidden / model.heads;
    require(head_dim.is_multiple_of(2), || {
        UserError::new(
            format!("model.position = \"rotary\" with hidden / heads = {head_dim}"),
            "rotary positions turn pairs of channels: a head has an even number",
            format!("set model.hidden = {}", model.heads * (head_dim + 1)),
        )
    })?;
    let base = model.rope_base;
    within("model.rope_base", base, base > 1.0, "it is above 1", "set model.rope_base = 10000")?;
    let scaling = match model.rope_scaling[..] {
        [] => None,
        [factor, low, high, original_context]
            if factor >= 1.0 && low > 0.0 && high > low && original_context >= 1.0 =>
        {
            Some(Scaling { factor, low, high, original_context })
        }
        _ => {
            return Err(UserError::new(
                format!("model.rope_scaling = {:?}", model.rope_scaling),
                "it is empty, or [factor >= 1, low > 0, high > low, original context >= 1]",
                "set model.rope_scaling = [8, 1, 4, 8192] as Llama 3.1 has it, or []",
            ));
        }
    };
    Ok(Position::Rotary { base, scaling })
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
        chunks: Vec::new(),
        enable: graph.enable,
        scope: if graph.scope == "full_iteration" { Scope::FullIteration } else { Scope::PerLayer },
        mempool: if graph.mempool == "single" { Mempool::Single } else { Mempool::PerMicrobatch },
        share_io_buffers: graph.share_io_buffers,
        capture_optimizer: graph.capture_optimizer,
        warmup_steps: graph.warmup_steps,
        splits_backward: false,
        reduces: false,
        gathers: false,
        poison: false,
    })
}

fn optimizer_kind(config: &RunConfig) -> Result<OptimizerKind, UserError> {
    let optimizer = &config.optimizer;
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
        return Ok(OptimizerKind::Sgd { momentum: optimizer.momentum as f32 });
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
    Ok(OptimizerKind::AdamW { beta1: beta1 as f32, beta2: beta2 as f32, eps: optimizer.eps as f32 })
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
