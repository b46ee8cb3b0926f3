//! The checked plan of a run. All validation happens here, before any other work.

mod activations;
pub mod batches;
mod dpo;
mod evaluation;
mod graphs;
mod model;
mod optimizer;
pub mod parameters;
pub mod ranks;
mod watch;

use common::{Mistakes, UserError};
use data::{DataConfig, DataError, Source, Split};
use device::ops::Documents;
use engine::graph_options::GraphOptions;
use engine::layer_partition::StageLayers;
use engine::model::{Architecture, Restart, SampleRow, TensorParallel};
use launch::watch::WatchSettings;
use parallel::{Axis, Connections, Purpose};

use crate::config::checks::{at_least, at_most, require, within};
use crate::config::{CudaGraphConfig, Fp8Choice, PositionEmbedding, RunConfig};
use activations::PrintedActivations;
pub use batches::{BatchPlan, BatchShare, BucketPlan, in_steps, plan_in_steps};
pub use evaluation::EvaluationPlan;
use evaluation::{check_samples, check_validation};
use graphs::graph_options;
pub use graphs::graph_scope;
pub use model::{AdaptedModule, ModelPlan, model_plan, modules, of_any_expert, suits_gpus};
use model::{ModelSize, check_model_magnitudes};
use optimizer::Decay;
pub use optimizer::{LearningRate, OptimizerPlan};
pub use parameters::FrozenNames;
use parameters::{NamedGroup, check_frozen_weights};
use ranks::layout;
pub use ranks::{ParallelPlan, StateOnHost, data_ranks, has_documents};
pub use watch::watch_settings;

/// A run whose settings are valid. Each part goes to the code that needs it.
#[derive(Clone, Debug)]
pub struct RunPlan {
    /// The configuration that the plan was made from. Sections that need no derived values are used from here.
    pub config: RunConfig,
    /// Steps of the run.
    pub steps: usize,
    /// The model with all sizes.
    pub model: ModelPlan,
    /// The model's counts.
    pub size: ModelSize,
    /// How the ranks divide the work.
    pub parallel: ParallelPlan,
    /// The samples of every step.
    pub batch: BatchPlan,
    /// The lengths that samples may have.
    pub buckets: BucketPlan,
    /// The optimizer and the learning rates.
    pub optimizer: OptimizerPlan,
    /// The frozen parameters, by name.
    pub frozen: FrozenNames,
    /// The outputs that are printed.
    pub printed: PrintedActivations,
    /// How steps are captured.
    pub graphs: GraphOptions,
    /// When the model is evaluated; `None` for never.
    pub evaluation: Option<EvaluationPlan>,
    /// Whether evaluations keep the loss of each token, and samples have separate targets.
    pub keeps_losses: bool,
    /// When a rank counts as failed.
    pub watch: WatchSettings,
}

impl RunPlan {
    /// Whether some steps measure the losses of 8-bit copies.
    pub fn measures_fp8(&self) -> bool {
        let precision = &self.config.precision;
        precision.fp8 != Fp8Choice::None && precision.fp8_metrics_interval > 0
    }

    /// Whether this step does, counted from 0. The interval's last step does, as with evaluations.
    pub fn measures_fp8_at(&self, step: usize) -> bool {
        self.measures_fp8() && (step + 1).is_multiple_of(self.config.precision.fp8_metrics_interval)
    }

    /// Whether some steps are verified.
    pub fn verifies(&self) -> bool {
        self.graphs.enable && self.config.cuda_graph.verify > 0
    }

    /// Whether this step, counted from 0, is verified, provided that the step has graphs by then.
    pub fn verifies_at(&self, step: usize) -> bool {
        self.verifies() && (step + 1).is_multiple_of(self.config.cuda_graph.verify)
    }

    /// Checks a configuration for `world_size` ranks and derives the plan's sizes.
    ///
    /// # Errors
    /// Every rule that is broken.
    pub fn new(config: RunConfig, world_size: usize) -> Result<RunPlan, UserError> {
        let mut mistakes = Mistakes::default();
        let plan = RunPlan::check(config, world_size, &mut mistakes);
        match (plan, mistakes.end()) {
            (_, Err(error)) => Err(error),
            (Some(plan), Ok(())) => Ok(plan),
            (None, Ok(())) => unreachable!("a configuration without a plan breaks a rule"),
        }
    }

    /// As [`RunPlan::new`], with broken rules added to `mistakes`. `None` if a rule is broken.
    pub fn check(config: RunConfig, world_size: usize, mistakes: &mut Mistakes) -> Option<RunPlan> {
        let before = mistakes.len();
        // Sizes are multiplied from here on.
        mistakes.keep(check_magnitudes(&config))?;
        check_numbers(&config, mistakes);
        let mesh = mistakes.keep(layout::mesh(&config, world_size));
        let batch = mesh.and_then(|mesh| mistakes.keep(BatchPlan::new(&config.train, mesh.size(Axis::Data))));
        let watch = mistakes.keep(watch_settings(&config.parallel));
        let optimizer = mistakes.keep(OptimizerPlan::new(&config));
        let model = mistakes.keep(model_plan(&config))?;
        let parallel = mesh.zip(batch.as_ref()).and_then(|(mesh, batch)| {
            mistakes.keep(ParallelPlan::new(&config, mesh, &model, &batch.microbatch_counts()))
        });
        let graphs = parallel
            .as_ref()
            .and_then(|parallel| mistakes.keep(graph_options(&config, &model, &stage_layers(&model, parallel, 0))));
        let frozen = mistakes.keep(FrozenNames::new(&config.optimizer.freeze, &model));
        let named = frozen
            .as_ref()
            .and_then(|frozen| mistakes.keep(NamedGroup::all(&config.optimizer.param_groups, &model, frozen)));
        if let (Some(parallel), Some(frozen)) = (&parallel, &frozen) {
            mistakes.keep(check_frozen_weights(&config, &model, parallel, frozen));
        }
        let buckets = mistakes.keep(BucketPlan::new(&config, &model));
        let printed = mistakes.keep(PrintedActivations::new(&config, &model));
        let (size, evaluation) = (ModelSize::of(&model), EvaluationPlan::new(&config.train));
        mistakes.keep(check_validation(&config));
        mistakes.keep(check_samples(&config, &model));
        let (batch, parallel, graphs) = (batch?, parallel?, graphs?);
        let (watch, frozen, printed, buckets) = (watch?, frozen?, printed?, buckets?);
        let optimizer = optimizer?.with_named(named?);
        let config = with_rates(config, &optimizer.learning_rate);
        (mistakes.len() == before).then_some(RunPlan {
            steps: config.train.steps,
            config,
            model,
            size,
            parallel,
            batch,
            buckets,
            optimizer,
            frozen,
            printed,
            graphs,
            evaluation,
            keeps_losses: false,
            watch,
        })
    }

    /// The same run with other graphs. It keeps fields that were changed after the check of the configuration, such as
    /// the number of warm-up steps.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn with_graphs(&self, cuda_graph: CudaGraphConfig) -> Result<RunPlan, UserError> {
        let config = RunConfig { cuda_graph, ..self.config.clone() };
        let RunPlan { config, graphs, parallel, .. } = RunPlan::new(config, self.parallel.mesh.ranks())?;
        let GraphOptions { poison, check_replays, warmup_steps, .. } = self.graphs;
        let graphs = GraphOptions { poison, check_replays, warmup_steps, ..graphs };
        Ok(RunPlan { config, graphs, parallel, ..self.clone() })
    }

    /// The same run with this share of the optimizer's state on the host.
    #[must_use]
    pub fn with_state_on_host(&self, share: f64) -> RunPlan {
        let mut plan = self.clone();
        (plan.config.offload.optimizer, plan.config.offload.optimizer_fraction) = (true, Some(share));
        plan.parallel.state_on_host = StateOnHost::Share(share);
        plan
    }

    /// The groups of ranks that exchange data.
    pub fn connections(&self) -> Connections {
        let ParallelPlan { mesh, schedule, shares_table, .. } = &self.parallel;
        let mut all = Connections { ties_ends: *shares_table, ..Connections::new(*mesh, schedule.placement()) };
        if schedule.overlaps() {
            all = [
                (Axis::Tensor, Purpose::Aside),
                (Axis::Expert, Purpose::RowsAside),
                (Axis::Context, Purpose::KeysAside),
            ]
            .into_iter()
            .fold(all, |all, (axis, lane)| all.with(axis, lane));
        }
        if let Some(axis) = self.model.loads_over() {
            all = all.with(axis, Purpose::Loads);
        }
        all
    }

    /// The layers of a rank.
    pub fn layers(&self, rank: usize) -> StageLayers {
        stage_layers(&self.model, &self.parallel, rank)
    }

    /// The places of inputs and targets in a sample.
    pub fn sample_row(&self) -> SampleRow {
        let seq = self.config.model.seq_length;
        match &self.model {
            // An evaluation that keeps losses has rows of its own, one for each choice.
            ModelPlan::Gpt(_) if self.keeps_losses => SampleRow::conversations(seq),
            ModelPlan::Gpt(_) if self.config.data.kind().is_judged() => dpo::row(&self.config),
            // The unused rest of a packed sample counts as one more conversation.
            ModelPlan::Gpt(_) if self.config.data.sft_packing > 1 => {
                SampleRow::packed(seq, self.config.data.sft_packing + 1).with_padding()
            }
            ModelPlan::Gpt(_) if self.config.data.sft => SampleRow::conversations(seq).with_padding(),
            ModelPlan::Gpt(_) => match (self.config.data.divides(), restart(&self.config.data)) {
                (None, _) => SampleRow::tokens(seq),
                (Some(_), None) => SampleRow::conversations(seq),
                (Some(_), Some(restart)) => {
                    SampleRow::conversations(seq).divided(seq.min(self.config.data.documents_per_sample), restart)
                }
            },
            ModelPlan::Mlp(shape) => SampleRow::regression(shape.sizes[0], shape.sizes[shape.sizes.len() - 1]),
        }
    }

    /// A rank's part of the model.
    pub fn architecture(&self, tensor: &TensorParallel, rank: usize) -> Architecture {
        let part = self.model.part(tensor.clone(), self.layers(rank)).with_sample(self.sample_row());
        let part = part.freeze(|name| self.frozen.has(name));
        match self.config.precision.frozen_weights.codes() {
            None => part,
            Some(form) => part.frozen_as_codes(form),
        }
    }

    /// The length of samples in a step on samples `first..first + count` of `source`; `None`: that of the model.
    ///
    /// # Errors
    /// There are no such samples.
    pub fn length_of(
        &self,
        source: &dyn Source,
        split: Split,
        first: u64,
        count: usize,
    ) -> Result<Option<usize>, DataError> {
        match self.buckets.shorter() {
            [] => Ok(None),
            _ => Ok(self.buckets.length_for(source.longest(split, first, count)?)),
        }
    }

    /// Training FLOPs for each token of samples of that length; `None`: that of the model.
    pub fn flops_per_token(&self, length: Option<usize>) -> f64 {
        match (&self.model, length) {
            (ModelPlan::Gpt(shape), Some(length)) => shape.flops_per_token(length),
            _ => self.size.flops_per_token,
        }
    }

    /// Losses of a step of the global batch, over all ranks: its tokens, or its rows.
    pub fn tokens_per_step(&self) -> usize {
        self.batch.global * self.size.losses_per_sample
    }
}

/// The configuration with the numbers that follow from others, so that records of the run have the numbers too. Steps
/// that are not known yet decide none.
fn with_rates(mut config: RunConfig, rate: &LearningRate) -> RunConfig {
    if config.train.epochs.is_none() {
        config.optimizer.warmup_steps = Some(rate.warmup);
    }
    if rate.decay != Decay::None {
        config.optimizer.min_lr = Some(rate.floor);
    }
    config
}

/// What begins anew with each document in a sample of text.
fn restart(data: &DataConfig) -> Option<Restart> {
    match (data.reset_attention_mask, data.reset_position_ids) {
        (true, true) => Some(Restart::AttentionAndPositions),
        (true, false) => Some(Restart::Attention),
        (false, true) => Some(Restart::Positions),
        (false, false) => None,
    }
}

/// The layers of a rank.
fn stage_layers(model: &ModelPlan, parallel: &ParallelPlan, rank: usize) -> StageLayers {
    let ParallelPlan { blocks, recompute, .. } = parallel;
    match model {
        ModelPlan::Gpt(_) => StageLayers::of_stage(parallel.stage(rank), blocks, *recompute),
        ModelPlan::Mlp(shape) => StageLayers::whole(shape.sizes.len()),
    }
}

/// Checks numbers that no other setting depends on.
fn check_numbers(config: &RunConfig, mistakes: &mut Mistakes) {
    mistakes.keep(at_least("train.steps", config.train.steps, 1));
    if let Some(epochs) = config.train.epochs {
        let (rule, fix) = ("a run has more than 0 epochs", "set train.epochs = 1");
        mistakes.keep(within("train.epochs", epochs, epochs > 0.0, rule, fix));
    }
    if let Some(minutes) = config.train.exit_duration_minutes {
        let (rule, fix) = ("a run takes more than 0 minutes", "set train.exit_duration_minutes = 235, or leave it out");
        mistakes.keep(within("train.exit_duration_minutes", minutes, minutes > 0.0, rule, fix));
    }
    mistakes.keep(at_least("logging.interval", config.logging.interval, 1));
    mistakes.keep(at_least("logging.trace_steps", config.logging.trace_steps, 1));
    mistakes.keep(within(
        "data.split",
        config.data.split,
        config.data.split > 0.0 && config.data.split <= 1.0,
        "a share is above 0 and at most 1",
        "set data.split = 0.9",
    ));
    let (model, data) = (&config.model, &config.data);
    let needs_distances = restart(data) == Some(Restart::Positions) && model.position != PositionEmbedding::Learned;
    mistakes.keep(require(!needs_distances, || {
        UserError::new(
            format!("data.reset_position_ids with model.position = \"{}\"", model.position),
            "learned positions can begin anew with each document; attention over the whole sample needs its distances",
            "add data.reset_attention_mask (--reset-attention-mask), or leave it out",
        )
    }));
    mistakes.keep(at_least("data.documents_per_sample", data.documents_per_sample, 1));
    mistakes.keep(at_most("data.documents_per_sample", data.documents_per_sample, Documents::MOST));
    mistakes.keep(at_least("data.sft_packing", data.sft_packing, 1));
    let documents = if data.dpo { 2 } else { 1 };
    mistakes.keep(at_most("data.sft_packing", data.sft_packing, (Documents::MOST - 1) / documents));
    mistakes.keep(at_least("train.threads", config.train.threads.unwrap_or(1), 1));
}

/// Fails on numbers of the configuration so large that only a typing mistake explains the numbers.
fn check_magnitudes(config: &RunConfig) -> Result<(), UserError> {
    let mut mistakes = Mistakes::default();
    mistakes.keep(check_model_magnitudes(config));
    let train = &config.train;
    for (key, value, most) in [
        ("recompute.layers", config.recompute.layers, 1 << 14),
        ("train.global_batch_size", train.global_batch_size, 1 << 24),
        ("train.micro_batch_size", train.micro_batch_size, 1 << 24),
        // The device counts steps in 32 bits.
        ("train.steps", train.steps, 1 << 31),
        ("train.eval_steps", train.eval_steps, 1 << 31),
        ("train.threads", train.threads.unwrap_or(1), 1 << 12),
        ("parallel.pipeline", config.parallel.pipeline, 1 << 14),
        ("parallel.virtual_pipeline", config.parallel.virtual_pipeline, 1 << 14),
        ("parallel.bucket_mib", config.parallel.bucket_mib, 1 << 20),
    ] {
        mistakes.keep(at_most(key, value, most));
    }
    mistakes.end()
}
