//! Checks of the parallel settings against the number of ranks and the model.

use common::UserError;
use common::format::counted;
use engine::layer_partition::balanced_blocks;
use engine::model::GptShape;
use parallel::{Axis, Mesh, MeshSizes, Schedule};

use super::context::check_context;
use crate::config::checks::{at_least, require};
use crate::config::{
    GraphMempool, GraphScope, ModelKind, ParallelConfig, PipelineSchedule, RecomputeGranularity, RunConfig,
};

/// The mesh of a configuration on `ranks` ranks.
///
/// # Errors
/// A model with layers that ranks cannot share, or a number of ranks that the settings do not divide.
pub fn mesh(config: &RunConfig, ranks: usize) -> Result<Mesh, UserError> {
    let ParallelConfig { tensor, context, expert, pipeline, .. } = config.parallel;
    for (key, value) in [
        ("parallel.tensor", tensor),
        ("parallel.context", context),
        ("parallel.expert", expert),
        ("parallel.expert_tensor", config.parallel.ranks_of_an_expert()),
        ("parallel.pipeline", pipeline),
        ("parallel.virtual_pipeline", config.parallel.virtual_pipeline),
        ("parallel.optimizer_instances", config.parallel.optimizer_instances),
    ] {
        at_least(key, value, 1)?;
    }
    for (key, value) in [
        ("parallel.tensor", tensor),
        ("parallel.context", context),
        ("parallel.expert", expert),
        ("parallel.pipeline", pipeline),
    ] {
        if value > 1 && config.model.kind == ModelKind::Mlp {
            return Err(UserError::new(
                format!("{key} = {value} with model.kind = \"mlp\""),
                "ranks can only divide the layers of a transformer",
                format!("set {key} = 1"),
            ));
        }
    }
    check_experts(config)?;
    let expert_tensor = if brings_own_tokens(config) { 1 } else { tensor };
    let dense = MeshSizes { tensor, context, pipeline, expert_tensor, ..MeshSizes::of(ranks) };
    let mesh = Mesh::new(dense).map_err(|_| {
        if context > 1 {
            let needed = tensor.saturating_mul(context).saturating_mul(pipeline);
            return UserError::new(
                format!(
                    "parallel.tensor = {tensor} with parallel.context = {context} and parallel.pipeline = {pipeline} on {}",
                    counted(ranks, "rank")
                ),
                "the number of ranks is a multiple of parallel.tensor x parallel.context x parallel.pipeline",
                format!("start a multiple of {needed} ranks, or set another parallel.context"),
            );
        }
        let divisor = |most: usize, of: usize| (1..=most.min(of)).rev().find(|&fewer| of.is_multiple_of(fewer));
        if pipeline == 1 {
            let divisor = divisor(tensor, ranks).unwrap_or(1);
            return UserError::new(
                format!("parallel.tensor = {tensor} on {}", counted(ranks, "rank")),
                "the number of ranks is a multiple of parallel.tensor, which is at least 1",
                format!("set parallel.tensor = {divisor}, or start another number of ranks"),
            );
        }
        let multiple = format!("start a multiple of {} ranks", tensor * pipeline);
        let fix = match ranks.is_multiple_of(tensor).then(|| divisor(pipeline, ranks / tensor)).flatten() {
            Some(divisor) => format!("set parallel.pipeline = {divisor}, or {multiple}"),
            None => format!("{multiple}, or set another parallel.tensor"),
        };
        UserError::new(
            format!("parallel.tensor = {tensor} with parallel.pipeline = {pipeline} on {}", counted(ranks, "rank")),
            "the number of ranks is a multiple of parallel.tensor x parallel.pipeline",
            fix,
        )
    })?;
    let copies = config.parallel.optimizer_instances;
    let data = mesh.size(Axis::Data);
    require(data.is_multiple_of(copies), || {
        UserError::new(
            format!("parallel.optimizer_instances = {copies} on {}", counted(data, "data-parallel rank")),
            "the groups that divide the optimizer are equal parts of these ranks",
            "set a number that divides that of the ranks",
        )
    })?;
    let dense = MeshSizes { copies, ..dense };
    let with = |expert: usize| Mesh::new(MeshSizes { expert, ..dense });
    with(expert).map_err(|_| {
        let (tokens, stage) = (mesh.size(Axis::Tokens), mesh.ranks() / pipeline);
        let (of, rule) = match (brings_own_tokens(config), context) {
            (true, _) => (
                format!("parallel.expert_tensor = 1 on {} of a stage", counted(stage, "rank")),
                "the ranks of a stage divide whole experts: parallel.expert divides their number, and it and \
                 parallel.tensor x parallel.context divide each other",
            ),
            (false, 1) => (counted(tokens, "data-parallel rank"), SHARE_THE_BATCH),
            (false, _) => (counted(tokens, "rank that has other tokens"), SHARE_THE_BATCH),
        };
        let sizes = sizes_that_work(config.model.experts, |size| with(size).is_ok());
        let whole = Mesh::new(MeshSizes { expert, expert_tensor: 1, ..dense }).is_ok();
        let or = if whole { ", or parallel.expert_tensor = 1" } else { "" };
        UserError::new(
            format!("parallel.expert = {expert} with {of}"),
            rule,
            format!("set parallel.expert to one of {sizes}{or}"),
        )
    })
}

const SHARE_THE_BATCH: &str =
    "the ranks that share the batch divide the experts: their number is a multiple of parallel.expert";

/// Whether experts are whole, and each of several ranks that share a layer brings a part of the tokens to the experts.
pub(super) fn brings_own_tokens(config: &RunConfig) -> bool {
    let ParallelConfig { tensor, .. } = config.parallel;
    config.model.experts > 0 && config.parallel.ranks_of_an_expert() != tensor
}

impl ParallelConfig {
    /// The number of ranks that share each expert.
    pub fn ranks_of_an_expert(&self) -> usize {
        self.expert_tensor.unwrap_or(self.tensor)
    }
}

/// The number of ranks with other samples; 1 if the settings do not divide the ranks.
pub fn data_ranks(config: &RunConfig, ranks: usize) -> usize {
    mesh(config, ranks).map_or(1, |mesh| mesh.size(Axis::Data))
}

/// The numbers of ranks that can divide so many experts and are possible, in words.
fn sizes_that_work(experts: usize, is_possible: impl Fn(usize) -> bool) -> String {
    let works = |size: &usize| experts.is_multiple_of(*size) && is_possible(*size);
    (1..=experts).filter(works).map(|size| size.to_string()).collect::<Vec<_>>().join(", ")
}

/// Fails on expert ranks that cannot have equal numbers of experts, and on experts that some ranks of a layer share.
fn check_experts(config: &RunConfig) -> Result<(), UserError> {
    let (tensor, within) = (config.parallel.tensor, config.parallel.ranks_of_an_expert());
    require(within == 1 || within == tensor, || {
        UserError::new(
            format!("parallel.expert_tensor = {within} with parallel.tensor = {tensor}"),
            "an expert is whole on its rank, or all ranks that share a layer share it",
            format!("set parallel.expert_tensor = 1, or leave it out for {tensor}"),
        )
    })?;
    let (expert, experts) = (config.parallel.expert, config.model.experts);
    let refused = |with: String, rule: &str, fix: String| {
        Err(UserError::new(format!("parallel.expert = {expert} with {with}"), rule, fix))
    };
    if expert > 1 && experts == 0 {
        let fix = "set parallel.expert = 1, or model.experts".into();
        return refused("model.experts = 0".into(), "ranks divide the experts of layers that have some", fix);
    }
    if !experts.is_multiple_of(expert) {
        let fix = format!("set parallel.expert to one of {}", sizes_that_work(experts, |_| true));
        return refused(format!("model.experts = {experts}"), "each rank has as many experts as another", fix);
    }
    Ok(())
}

/// The same ranks with the copies of key heads that a model of this shape has.
///
/// # Errors
/// Sizes that cut the numbers of ranks in different places.
pub fn with_key_heads(mesh: Mesh, shape: &GptShape) -> Result<Mesh, UserError> {
    let sizes = mesh.sizes();
    let key_head_copies = shape.key_head_copies(sizes.tensor);
    Mesh::new(MeshSizes { key_head_copies, ..sizes }).map_err(|none| {
        let rule = "each size of the layout divides the next, so that ranks form groups";
        UserError::new(none.to_string(), rule, "set a parallel.tensor that is a multiple of model.kv_heads")
    })
}

/// The number of blocks in each of the `pipeline * virtual_pipeline` parts of a transformer.
///
/// # Errors
/// A part without blocks, or a list that does not fit.
pub fn blocks(config: &RunConfig, shape: &GptShape) -> Result<Vec<usize>, UserError> {
    let layers = shape.layers;
    let ParallelConfig { pipeline, virtual_pipeline, ref pipeline_layers, .. } = config.parallel;
    let parts = pipeline * virtual_pipeline;
    if virtual_pipeline > 1 && pipeline == 1 {
        return Err(UserError::new(
            format!("parallel.virtual_pipeline = {virtual_pipeline} with parallel.pipeline = 1"),
            "the chunks of a stage are interleaved with those of other stages",
            "set parallel.virtual_pipeline = 1, or a parallel.pipeline of 2 or more",
        ));
    }
    if parts > layers {
        return Err(UserError::new(
            format!("parallel.pipeline x virtual_pipeline = {parts} with model.layers = {layers}"),
            "each part of the model has at least one block",
            format!("set parallel.pipeline x virtual_pipeline to at most {layers}, or a larger model.layers"),
        ));
    }
    let balanced = balanced_blocks(layers, parts, shape.head_in_blocks(shape.max_seq_len));
    if pipeline_layers.is_empty() {
        return Ok(balanced);
    }
    let sum = pipeline_layers.iter().try_fold(0_usize, |sum, &blocks| sum.checked_add(blocks));
    if pipeline_layers.len() != parts || sum != Some(layers) || pipeline_layers.contains(&0) {
        return Err(UserError::new(
            format!("parallel.pipeline_layers = {pipeline_layers:?}"),
            format!(
                "the list has pipeline x virtual_pipeline = {parts} numbers, none 0, that add up to model.layers = {layers}"
            ),
            format!("set parallel.pipeline_layers = {balanced:?}, or []"),
        ));
    }
    Ok(pipeline_layers.clone())
}

/// Fails on a pipeline schedule that other settings exclude.
///
/// # Errors
/// Zero bubble with one stage, with several chunks a stage, or with full recompute that gives every slot room for
/// recomputed activations.
pub fn check_schedule(config: &RunConfig) -> Result<(), UserError> {
    let ParallelConfig { pipeline, virtual_pipeline, pipeline_schedule, .. } = config.parallel;
    if pipeline_schedule != PipelineSchedule::ZeroBubble {
        return Ok(());
    }
    let refuse = |with: String, rule: &str, fix: &str| {
        Err(UserError::new(format!("parallel.pipeline_schedule = \"zero_bubble\" with {with}"), rule, fix))
    };
    if virtual_pipeline > 1 {
        return refuse(
            format!("parallel.virtual_pipeline = {virtual_pipeline}"),
            "zero bubble is for stages with one chunk of layers",
            "set parallel.virtual_pipeline = 1, or parallel.pipeline_schedule = \"1f1b\"",
        );
    }
    if pipeline == 1 {
        return refuse(
            format!("parallel.pipeline = {pipeline}"),
            "zero bubble fills the time in which stages wait for each other",
            "set parallel.pipeline_schedule = \"1f1b\", or a parallel.pipeline of 2 or more",
        );
    }
    let graph = &config.cuda_graph;
    let whole_step = graph.enable && graph.scope == GraphScope::FullIteration;
    let slots = graph.mempool == GraphMempool::PerMicrobatch && !whole_step;
    if slots && config.recompute.granularity == RecomputeGranularity::Full {
        return refuse(
            "recompute.granularity = \"full\" and cuda_graph.mempool = \"per_microbatch\"".into(),
            "recomputed activations stay until the weight gradients are computed, so every slot would have room for all of them",
            "set recompute.granularity = \"selective\", cuda_graph.mempool = \"single\", or \
             parallel.pipeline_schedule = \"1f1b\"",
        );
    }
    Ok(())
}

/// The pipeline schedule. `counts` are the numbers of microbatches that steps can have, the global batch's first.
///
/// # Errors
/// A number of microbatches that the interleaved schedule does not take. [`check_schedule`] refuses the rest.
pub fn schedule(config: &RunConfig, counts: &[usize]) -> Result<Schedule, UserError> {
    let schedule = schedule_in_turn(config, counts)?;
    let overlaps = config.cuda_graph.enable && config.cuda_graph.overlap_microbatches;
    Ok(schedule.overlapping().filter(|_| overlaps).unwrap_or(schedule))
}

/// The pipeline schedule without overlap.
fn schedule_in_turn(config: &RunConfig, counts: &[usize]) -> Result<Schedule, UserError> {
    let ParallelConfig { pipeline, virtual_pipeline, microbatch_group, pipeline_schedule, .. } = config.parallel;
    if virtual_pipeline > 1 {
        let group = microbatch_group.unwrap_or(pipeline);
        counts.iter().try_for_each(|&microbatches| interleaves(config, group, microbatches, counts[0]))?;
        return Ok(Schedule::interleaved(pipeline, virtual_pipeline, group));
    }
    if let Some(group) = microbatch_group {
        return Err(UserError::new(
            format!("parallel.microbatch_group = {group} with parallel.virtual_pipeline = 1"),
            "microbatches are grouped only if stages have several chunks",
            "leave it unset, or set a parallel.virtual_pipeline of 2 or more",
        ));
    }
    Ok(match pipeline_schedule {
        PipelineSchedule::ZeroBubble => Schedule::zero_bubble(pipeline),
        PipelineSchedule::OneForwardOneBackward => Schedule::one_f_one_b(pipeline),
    })
}

/// Fails unless stages with several chunks can take `microbatches` microbatches in a step, in groups of `group`. A step of the
/// global batch has `most`.
fn interleaves(config: &RunConfig, group: usize, microbatches: usize, most: usize) -> Result<(), UserError> {
    let pipeline = config.parallel.pipeline;
    let samples = config.train.global_batch_size / most;
    // A number that only steps of a ramp have is a matter of the ramp, not of the global batch.
    let enough = |count: usize| match microbatches < most {
        true => format!("let train.rampup_batch_size begin with and grow by multiples of {}", samples * group),
        false => format!("set train.global_batch_size = {}", samples * count),
    };
    if microbatches < pipeline {
        return Err(UserError::new(
            format!("{} of a step with parallel.pipeline = {pipeline}", counted(microbatches, "microbatch")),
            "with parallel.virtual_pipeline a step has at least as many microbatches as stages",
            format!("{}, or a smaller train.micro_batch_size", enough(pipeline)),
        ));
    }
    if !(pipeline..=microbatches).contains(&group) {
        return Err(UserError::new(
            format!("parallel.microbatch_group = {group}"),
            format!("the group is from parallel.pipeline = {pipeline} to the step's microbatches = {microbatches}"),
            format!("set parallel.microbatch_group = {pipeline}, or leave it unset"),
        ));
    }
    let rest = microbatches % group;
    if rest > 0 && rest < pipeline {
        return Err(UserError::new(
            format!("{microbatches} microbatches of a step in groups of {group} on {pipeline} stages"),
            "the last group has at least as many microbatches as stages",
            format!("{}, or another parallel.microbatch_group", enough(microbatches - rest)),
        ));
    }
    Ok(())
}

/// Fails unless all ranks that share layers get equal parts. Several ranks may get copies of a key and value head.
///
/// # Errors
/// The first size that is not a multiple of `parallel.tensor`.
pub fn check_shape(config: &RunConfig, shape: &GptShape) -> Result<(), UserError> {
    let tensor = config.parallel.tensor;
    for (key, value) in [("heads", shape.heads), ("ffn", shape.ffn)] {
        if !value.is_multiple_of(tensor) {
            return Err(UserError::new(
                format!("model.{key} = {value} with parallel.tensor = {tensor}"),
                format!("model.{key} is a multiple of parallel.tensor, so that all ranks get equal parts"),
                format!("set model.{key} = {}, or a smaller parallel.tensor", value.next_multiple_of(tensor)),
            ));
        }
    }
    let kv_heads = shape.kv_heads;
    if !kv_heads.is_multiple_of(tensor) && !tensor.is_multiple_of(kv_heads) {
        return Err(UserError::new(
            format!("model.kv_heads = {kv_heads} with parallel.tensor = {tensor}"),
            "one of them is a multiple of the other: ranks have equal numbers of heads, or several ranks copies of one",
            format!("set model.kv_heads = {}, or another parallel.tensor", kv_heads.next_multiple_of(tensor)),
        ));
    }
    check_context(config, shape)?;
    let tokens = config.train.micro_batch_size * config.model.seq_length;
    let divides = [
        ("parallel.sequence_parallel = true", config.parallel.sequence_parallel, "parallel.sequence_parallel = false"),
        ("parallel.expert_tensor = 1", brings_own_tokens(config), "leave parallel.expert_tensor out"),
    ];
    if let Some((with, _, fix)) = divides.into_iter().find(|(_, asks, _)| *asks && !tokens.is_multiple_of(tensor)) {
        return Err(UserError::new(
            format!("train.micro_batch_size x model.seq_length = {tokens} with parallel.tensor = {tensor}"),
            format!("with {with} the tokens of a microbatch are a multiple of parallel.tensor"),
            format!("set model.seq_length = {}, or {fix}", config.model.seq_length.next_multiple_of(tensor)),
        ));
    }
    Ok(())
}
