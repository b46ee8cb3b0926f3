//! How a run's ranks are laid out, checked against the model.

use common::UserError;
use engine::layer_partition::balanced_blocks;
use engine::model::GptShape;
use parallel::Grid;

use crate::config::{ParallelConfig, RunConfig};

/// The grid of a configuration on `ranks` ranks.
///
/// # Errors
/// A layer that cannot be shared, or ranks that cannot be divided.
pub fn grid(config: &RunConfig, ranks: usize) -> Result<Grid, UserError> {
    let (tensor, pipeline) = (config.parallel.tensor, config.parallel.pipeline);
    for (key, value) in [
        ("parallel.tensor", tensor),
        ("parallel.pipeline", pipeline),
        ("parallel.virtual_pipeline", config.parallel.virtual_pipeline),
    ] {
        if value == 0 {
            return Err(UserError::new(format!("{key} = 0"), "it is at least 1", format!("set {key} = 1")));
        }
    }
    for (key, value) in [("parallel.tensor", tensor), ("parallel.pipeline", pipeline)] {
        if value > 1 && config.model.kind == "mlp" {
            return Err(UserError::new(
                format!("{key} = {value} with model.kind = \"mlp\""),
                "only transformers have layers that ranks can share, or hand on to each other",
                format!("set {key} = 1"),
            ));
        }
    }
    Grid::new(ranks, tensor, pipeline).ok_or_else(|| {
        let fitting = |most: usize, of: usize| (1..=most.min(of)).rev().find(|&fewer| of.is_multiple_of(fewer));
        if pipeline == 1 {
            let fitting = fitting(tensor, ranks).unwrap_or(1);
            return UserError::new(
                format!("parallel.tensor = {tensor} on {ranks} ranks"),
                "the number of ranks is a multiple of parallel.tensor, which is at least 1",
                format!("set parallel.tensor = {fitting}, or start another number of ranks"),
            );
        }
        let multiple = format!("start a multiple of {} ranks", tensor * pipeline);
        let fix = match ranks.is_multiple_of(tensor).then(|| fitting(pipeline, ranks / tensor)).flatten() {
            Some(fitting) => format!("set parallel.pipeline = {fitting}, or {multiple}"),
            None => format!("{multiple}, or set another parallel.tensor"),
        };
        UserError::new(
            format!("parallel.tensor = {tensor} with parallel.pipeline = {pipeline} on {ranks} ranks"),
            "the number of ranks is a multiple of parallel.tensor x parallel.pipeline",
            fix,
        )
    })
}

/// Blocks of each part of a transformer of `layers` blocks.
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
            "chunks of one stage are interleaved with those of others",
            "set parallel.virtual_pipeline = 1, or a parallel.pipeline of 2 or more",
        ));
    }
    if parts > layers {
        return Err(UserError::new(
            format!("parallel.pipeline x virtual_pipeline = {parts} with model.layers = {layers}"),
            "each part of the model has at least one block",
            format!("set parallel.pipeline x virtual_pipeline to at most {layers}, or more layers"),
        ));
    }
    let balanced = balanced_blocks(layers, parts, shape.head_in_blocks());
    if pipeline_layers.is_empty() {
        return Ok(balanced);
    }
    let sum = pipeline_layers.iter().try_fold(0_usize, |sum, &blocks| sum.checked_add(blocks));
    if pipeline_layers.len() != parts || sum != Some(layers) || pipeline_layers.contains(&0) {
        return Err(UserError::new(
            format!("parallel.pipeline_layers = {pipeline_layers:?}"),
            format!(
                "it has pipeline x virtual_pipeline = {parts} numbers, none 0, that add up to model.layers = {layers}"
            ),
            format!("set parallel.pipeline_layers = {balanced:?}, or []"),
        ));
    }
    Ok(pipeline_layers.clone())
}

/// Fails on a pipeline schedule that has nothing to order, or that other settings do not go with.
///
/// # Errors
/// Zero bubble with one stage, with several chunks a stage, or with full recompute where every slot would hold what is
/// computed again.
pub fn check_schedule(config: &RunConfig) -> Result<(), UserError> {
    let ParallelConfig { pipeline, virtual_pipeline, ref pipeline_schedule, .. } = config.parallel;
    if pipeline_schedule != "zero_bubble" {
        return Ok(());
    }
    let refuse = |with: String, rule: &str, fix: &str| {
        Err(UserError::new(format!("parallel.pipeline_schedule = \"zero_bubble\" with {with}"), rule, fix))
    };
    if virtual_pipeline > 1 {
        return refuse(
            format!("parallel.virtual_pipeline = {virtual_pipeline}"),
            "backwards are split where each stage has one chunk of layers",
            "set parallel.virtual_pipeline = 1, or parallel.pipeline_schedule = \"1f1b\"",
        );
    }
    if pipeline == 1 {
        return refuse(
            format!("parallel.pipeline = {pipeline}"),
            "it fills the time in which stages wait for each other",
            "set parallel.pipeline_schedule = \"1f1b\", or a parallel.pipeline of 2 or more",
        );
    }
    let graph = &config.cuda_graph;
    let slots = graph.mempool == "per_microbatch" && !(graph.enable && graph.scope == "full_iteration");
    if slots && config.recompute.granularity == "full" {
        return refuse(
            "recompute.granularity = \"full\" and cuda_graph.mempool = \"per_microbatch\"".into(),
            "what is computed again stays until the gradients of weights are made: every slot would have room for all of it",
            "set recompute.granularity = \"selective\", cuda_graph.mempool = \"single\", or \
             parallel.pipeline_schedule = \"1f1b\"",
        );
    }
    Ok(())
}

/// Microbatches that go through one chunk of a stage before the next, as asked for or as many as stages. `counts` are the
/// numbers of microbatches that steps have, the global batch's first.
///
/// # Errors
/// A step whose microbatches the interleaved schedule does not take.
pub fn microbatch_group(config: &RunConfig, counts: &[usize]) -> Result<usize, UserError> {
    let ParallelConfig { pipeline, virtual_pipeline, microbatch_group, .. } = config.parallel;
    if virtual_pipeline > 1 {
        let group = microbatch_group.unwrap_or(pipeline);
        counts.iter().try_for_each(|&microbatches| interleaves(config, group, microbatches, counts[0]))?;
        return Ok(group);
    }
    match microbatch_group {
        None => Ok(pipeline),
        Some(group) => Err(UserError::new(
            format!("parallel.microbatch_group = {group} with parallel.virtual_pipeline = 1"),
            "microbatches are grouped where stages have several chunks",
            "leave it unset, or set a parallel.virtual_pipeline of 2 or more",
        )),
    }
}

/// Fails unless stages with several chunks can take so many microbatches, in such groups, in one step; the global batch has
/// `most`.
fn interleaves(config: &RunConfig, group: usize, microbatches: usize, most: usize) -> Result<(), UserError> {
    let pipeline = config.parallel.pipeline;
    let samples = config.train.global_batch_size / most;
    // A number that only steps of a ramp have is not the global batch's to mend.
    let enough = |count: usize| match microbatches < most {
        true => format!("let train.rampup_batch_size begin with and grow by multiples of {}", samples * group),
        false => format!("set train.global_batch_size = {}", samples * count),
    };
    if microbatches < pipeline {
        return Err(UserError::new(
            format!("{microbatches} microbatches of a step with parallel.pipeline = {pipeline}"),
            "with parallel.virtual_pipeline a step has at least as many microbatches as stages",
            format!("{}, or a smaller train.micro_batch_size", enough(pipeline)),
        ));
    }
    if !(pipeline..=microbatches).contains(&group) {
        return Err(UserError::new(
            format!("parallel.microbatch_group = {group}"),
            format!("it is from parallel.pipeline = {pipeline} to the step's microbatches = {microbatches}"),
            format!("set parallel.microbatch_group = {pipeline}, or leave it unset"),
        ));
    }
    let rest = microbatches % group;
    if rest > 0 && rest < pipeline {
        return Err(UserError::new(
            format!("{microbatches} microbatches of a step in groups of {group} on {pipeline} stages"),
            "the last group has as many microbatches as stages, or more",
            format!("{}, or another parallel.microbatch_group", enough(microbatches - rest)),
        ));
    }
    Ok(())
}

/// Fails unless what layers are cut into is the same for all ranks that share them.
///
/// # Errors
/// The first size that is not a multiple of `parallel.tensor`.
pub fn check(config: &RunConfig, shape: &GptShape) -> Result<(), UserError> {
    let tensor = config.parallel.tensor;
    for (key, value) in [("heads", shape.heads), ("kv_heads", shape.kv_heads), ("ffn", shape.ffn)] {
        if !value.is_multiple_of(tensor) {
            return Err(UserError::new(
                format!("model.{key} = {value} with parallel.tensor = {tensor}"),
                format!("model.{key} is a multiple of parallel.tensor: each rank has as many"),
                format!("set model.{key} = {}, or a smaller parallel.tensor", value.next_multiple_of(tensor)),
            ));
        }
    }
    let tokens = shape.batch * shape.seq;
    if config.parallel.sequence_parallel && !tokens.is_multiple_of(tensor) {
        return Err(UserError::new(
            format!("train.micro_batch_size x model.seq_length = {tokens} with parallel.tensor = {tensor}"),
            "with parallel.sequence_parallel the tokens of a microbatch are a multiple of parallel.tensor",
            format!(
                "set model.seq_length = {}, or parallel.sequence_parallel = false",
                shape.seq.next_multiple_of(tensor)
            ),
        ));
    }
    Ok(())
}
