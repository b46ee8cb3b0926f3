//! From a plan to a rank's stage that is ready to train.

use common::UserError;
use common::format::bytes;
use data::{SampleCounts, Source, new_tokens};
use device::Device;
use engine::model::{GptShape, TensorParallel};
use engine::step::{Stage, StageOptions, StepSettings};
use parallel::Axis;

use crate::checkpoint::{KeptFile, Writers, rank_bytes, start_folder, states_to_come};
use crate::config::RunConfig;
use crate::config::plan::{BatchShare, ModelPlan, OptimizerPlan, RunPlan};
use crate::error::RunError;
use crate::hf::Pretrained;
use crate::process_group::ProcessGroup;
use crate::run::cheaper::cheaper_settings;
use crate::run::host_memory::{Needs, fits_beside_gpus, fits_host};
use crate::run::state_on_host::resolved;
use crate::run::{activations, verify};
use crate::told::tell;

/// Creates this rank's stage, records its steps and allocates its memory. It has its first weights, unless the run `resumes`
/// from a checkpoint or begins with a model's weights: these are loaded afterwards. All ranks call it together.
///
/// # Errors
/// Out of memory, or settings that exclude each other.
pub fn stage(plan: &RunPlan, device: &Device, group: &ProcessGroup, resumes: bool) -> Result<Stage, RunError> {
    let plan = &state_resolved(plan, device, group)?;
    // A dry run on the host plans for another machine.
    if device.gpu().is_some() || !device.is_dry() {
        check_fits(plan, device, group)?;
        tracing::info!("start: products are chosen, and the run fits");
    }
    let seed = (!resumes && start_weights(&plan.config, &plan.model).is_none()).then_some(plan.config.train.seed);
    let mut stage = recorded_stage(plan, device, group, seed)?;
    tracing::info!(first_weights = seed.is_some(), "start: memory is allocated");
    if !device.is_dry() {
        verify::check_memory(plan, device, group, &stage)?;
    }
    // A step that is run again finds its graphs.
    let prepares = plan.parallel.mesh.size(Axis::Pipeline) > 1 || plan.model.row_budget().is_some();
    if device.gpu().is_some() && !device.is_dry() && prepares {
        match plan.frozen.are_all() {
            true => stage.rehearse_evaluation(plan.batch.microbatches())?,
            false => stage.rehearse(&plan.batch.microbatch_counts(), evaluates(plan))?,
        }
        device.synchronize()?;
    }
    Ok(stage)
}

/// Whether the run computes references before the first step.
fn keeps_references(plan: &RunPlan) -> bool {
    plan.config.data.kind().is_judged() && !plan.config.dpo.references_in_step()
}

/// Whether the run evaluates, if only to compute the references of pairs.
fn evaluates(plan: &RunPlan) -> bool {
    plan.evaluation.is_some() || keeps_references(plan)
}

/// The folder of the weights that a new run begins with, and the shape of the model; `None` for a run that begins with
/// first weights.
fn start_weights<'p>(config: &'p RunConfig, model: &'p ModelPlan) -> Option<(&'p str, &'p GptShape)> {
    match (&config.model.init_from, model) {
        (Some(folder), ModelPlan::Gpt(shape)) => Some((folder, shape)),
        _ => None,
    }
}

/// Fails unless the folder that `model.init_from` names, if set, has the weights of the model. Reads headers alone. A run
/// that goes on from a checkpoint does not read the folder, which may be gone.
///
/// # Errors
/// Weights that are missing, damaged, or do not fit.
pub fn check_start(config: &RunConfig, model: &ModelPlan) -> Result<(), UserError> {
    let Some((folder, shape)) = start_weights(config, model) else { return Ok(()) };
    if start_folder(&config.checkpoint).is_some() {
        return Ok(());
    }
    // The command line has compared its hashes.
    let model = Pretrained::open_checked(folder.as_ref())?;
    if config.dpo.references_in_step() && model.has_adapters() {
        return Err(UserError::new(
            format!("dpo.references = \"step\" with model.init_from = \"{folder}\", which has adapters"),
            "the reference is the model that training starts from, and a step computes it without adapters",
            "merge the adapters first (trainer convert), or leave --dpo-references out: a file then keeps the references",
        ));
    }
    model.check(shape, new_tokens(&config.data)?)
}

/// Loads the weights that `model.init_from` names, if set. A resumed run loads its checkpoint instead. Tokens that the
/// data add to the model's own have rows then too.
///
/// # Errors
/// Weights that are missing, damaged, or do not fit.
pub fn load_start(plan: &RunPlan, device: &Device, stage: &Stage) -> Result<(), RunError> {
    if let Some((folder, shape)) = start_weights(&plan.config, &plan.model).filter(|_| !device.is_dry()) {
        let new_tokens = new_tokens(&plan.config.data)?;
        // The command line has compared its hashes.
        let missing = Pretrained::open_checked(folder.as_ref())?.load(shape, stage.params(), device, new_tokens)?;
        let seed = plan.config.train.seed;
        stage.params().set_first(device, missing, seed)?;
        tracing::info!("start: the model's weights are loaded");
    }
    Ok(())
}

/// The files of the Hugging Face model that a new run begins with; none for a run without such a model. Prints a notice
/// if the data of `source` have another tokenizer, or if weights beside those that are read stay unread.
///
/// # Errors
/// A file that cannot be read or is damaged.
pub fn source_files(plan: &RunPlan, source: &dyn Source) -> Result<Vec<KeptFile>, UserError> {
    let Some(folder) = &plan.config.model.init_from else { return Ok(Vec::new()) };
    let model = Pretrained::open_checked(folder.as_ref())?;
    if let ModelPlan::Gpt(shape) = &plan.model {
        model.tell_of_unread(shape);
    }
    let mut files = model.source_files()?;
    let new_tokens = new_tokens(&plan.config.data)?;
    if let (false, Some(tokenizer)) = (new_tokens.is_empty(), source.tokenizer()) {
        files.add_tokens(tokenizer, &new_tokens);
    }
    if files.differs_from(source.tokenizer()) {
        tell(&format!(
            "notice: the data have another tokenizer than {folder}, so the model's tokens mean other text than they did, and \
             an export has the data's"
        ));
    }
    Ok(files.into_files())
}

/// Fails before anything is allocated if the run does not fit the memory of the GPU or the host. To find the need,
/// set-up runs without taking memory.
///
/// On a GPU this also times the algorithms of matrix products and chooses among them. The first rank of each stage does
/// that, one stage after the other, for the products that no earlier stage has. All other ranks take over its choices.
fn check_fits(plan: &RunPlan, device: &Device, group: &ProcessGroup) -> Result<(), RunError> {
    let needs = needs_of_all_ranks(plan, device, group)?;
    // A host device has no other memory for what leaves it.
    let taken = |needs: Needs| needs.device + if device.gpu().is_none() { needs.on_host } else { 0 };
    let needed = taken(needs);
    let cheaper = || cheaper_settings(plan, needed, |plan| Ok(taken(needs_of(plan, device, group)?)));
    if device.gpu().is_none() {
        return Ok(fits_host(needs, device, group, cheaper)?);
    }
    fits_beside_gpus(needs, device, group)?;
    match device.gpu_memory()? {
        Some((free, total)) if needed > free => Err(UserError::new(
            format!("a rank needs {} of GPU memory, {} of {} are free", bytes(needed), bytes(free), bytes(total)),
            "weights, optimizer state and activations fit a rank's GPU",
            format!(
                "set a smaller train.micro_batch_size or a smaller model{}; `--dry-run` shows what needs how much",
                cheaper()
            ),
        )
        .into()),
        _ => Ok(()),
    }
}

/// The plan with the share of the optimizer's state that lies on the host, if that share is as needed. All ranks call it
/// together.
pub(super) fn state_resolved(plan: &RunPlan, device: &Device, group: &ProcessGroup) -> Result<RunPlan, RunError> {
    resolved(plan, device, group, |plan| Ok(needs_of_all_ranks(plan, device, group)?.device))
}

/// Why a plan does not fit the memory of all ranks; `None` for a plan that fits. All ranks call it together and get the
/// same answer.
///
/// # Errors
/// Settings that exclude each other.
pub(super) fn lack_of_memory(
    plan: &RunPlan,
    device: &Device,
    group: &ProcessGroup,
) -> Result<Option<String>, RunError> {
    let needs = needs_of_all_ranks(plan, device, group)?;
    let needed = needs.device;
    let lacks = match device.gpu_memory()? {
        Some((free, _)) => {
            let beside = fits_beside_gpus(needs, device, group).is_err();
            needed.saturating_sub(free).max(usize::from(beside))
        }
        None => usize::from(fits_host(needs, device, group, String::new).is_err()),
    };
    let fits = group.control.max(lacks as u64) == 0;
    Ok((!fits).then(|| format!("a rank needs {}, more than is free", bytes(needed))))
}

/// The memory that this rank's stage needs. All ranks call it together.
fn needs_of_all_ranks(plan: &RunPlan, device: &Device, group: &ProcessGroup) -> Result<Needs, RunError> {
    let mut needed = None;
    // The pipeline group of rank 0 consists of the first rank of each stage.
    for first in plan.parallel.mesh.members_along(0, Axis::Pipeline) {
        if group.rank() == first {
            needed = Some(needs_of(plan, device, group));
            group.control.broadcast_text(first, device.export_choices().unwrap_or_default());
        } else {
            device.import_choices(&group.control.broadcast_text(first, String::new()))?;
        }
    }
    needed.unwrap_or_else(|| needs_of(plan, device, group))
}

/// The memory that a stage needs. Nothing is allocated.
fn needs_of(plan: &RunPlan, device: &Device, group: &ProcessGroup) -> Result<Needs, RunError> {
    let (dry, streams) = (device.is_dry(), device.streams_made());
    device.set_dry(true);
    let needed = recorded_stage(plan, device, group, None).map(|stage| {
        let state = rank_bytes(&stage, &Writers::new(plan, group)) as usize;
        let states = state * states_to_come(&plan.config.checkpoint);
        let needs = Needs { device: device.allocated_bytes(), on_host: device.bytes_on_host(), states };
        drop(stage);
        needs
    });
    device.free_scratch_since(streams)?;
    device.set_dry(dry);
    needed
}

/// A rank's stage with recorded steps and allocated memory; on a dry device no memory is taken. Without a seed of first
/// weights these are 0. All ranks call it together, unless their communicators are on paper.
///
/// # Errors
/// Out of memory, or settings that exclude each other.
pub fn recorded_stage(
    plan: &RunPlan,
    device: &Device,
    group: &ProcessGroup,
    seed: Option<u64>,
) -> Result<Stage, RunError> {
    let sequence = plan.parallel.sequence_parallel;
    let tensor = TensorParallel { ranks: group.ranks.clone(), sequence, context: plan.parallel.context_transfers };
    let options = StageOptions {
        seed,
        microbatches: plan.batch.microbatches(),
        micro_batch_size: plan.batch.micro,
        shorter_lengths: plan.buckets.shorter().to_vec(),
        optimizer: plan.optimizer.groups.clone(),
        skip_step: plan.optimizer.skip_step,
        moments: plan.optimizer.moments,
        bucket_bytes: plan.parallel.bucket_bytes,
        sharding: plan.parallel.sharding,
        grad_reduce: plan.parallel.grad_reduce,
        pipeline: plan.parallel.stage(group.rank()),
        graphs: plan.graphs.clone(),
        hooks: activations::hooks(plan, group),
        layers_on_host: plan.parallel.layers_on_host,
        state_on_host: plan.parallel.state_on_host.share(),
        master_form: plan.parallel.master_form,
        block_gradients: plan.parallel.block_gradients,
        keeps_losses: plan.keeps_losses || keeps_references(plan),
        left_out: Vec::new(),
    };
    let architecture = plan.architecture(&tensor, group.rank());
    let mut stage = Stage::new(device, &architecture, options)?;
    if plan.frozen.are_all() {
        stage.record_evaluation(plan.batch.microbatches())?;
    }
    let trained = if plan.frozen.are_all() { Vec::new() } else { plan.batch.microbatch_counts() };
    for (at, &microbatches) in trained.iter().enumerate() {
        stage.record(microbatches, at == 0 && evaluates(plan))?;
    }
    if plan.measures_fp8() {
        trained.iter().try_for_each(|&microbatches| stage.record_measured(microbatches))?;
    }
    stage.graphs().allocate()?;
    let control = group.control.clone();
    stage.graphs().before_capture(move || {
        control.barrier();
        Ok(())
    });
    Ok(stage)
}

/// The host's settings for a step on a rank's share of a batch. `counts` are those of the whole batch; `None`: all targets
/// have a loss. Its samples have the model's length.
pub fn step_settings(
    optimizer: &OptimizerPlan,
    step: usize,
    share: BatchShare,
    counts: Option<SampleCounts>,
) -> StepSettings {
    StepSettings {
        step: step as u32,
        microbatches: share.microbatches,
        first_sample: share.first_sample,
        learning_rate: optimizer.learning_rate.at(step) as f32,
        clip: optimizer.clip,
        targets: counts.map(|counts| counts.targets),
        tokens: counts.map(|counts| counts.tokens),
        documents: counts.map(|counts| counts.documents),
        length: None,
    }
}
