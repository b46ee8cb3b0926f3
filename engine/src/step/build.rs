//! Makes a stage: allocates its memory, and gives each of its parts the tensors that it needs.

use std::ops::Range;
use std::rc::Rc;

use device::ops::{Control, PairLoss, Rule};
use device::{Area, DType, Device, Home, Tensor};
use graph_manager::{Error, Result, SideStream};
use parallel::{Axes, Axis, PipelineStage, Purpose};

use super::Stage;
use super::first_forwards::FirstForwards;
use super::lengths::check_lengths;
use super::metrics::StepNumbers;
use super::program::StepProgram;
use crate::batch_sizes::{BatchSizes, sequence_share};
use crate::gradient_sync::GradientSync;
use crate::graph_options::{GraphOptions, Scope};
use crate::hooks::Hooks;
use crate::inputs::Inputs;
use crate::model::{Architecture, StepTensors, TokensHere};
use crate::optimizer::{MomentTypes, Optimizer, ParamGroup, SkipStep, StepControl};
use crate::params::{Division, MasterForm, ParamSpec, Params, Sharding, TURNS_OF_ENDS, with_state_on_host};
use crate::passes::{ExpertRowQueues, HostQueues, PassName, SavedOnHost, StateOnHost, Timing};
use crate::pipeline::Pipeline;
use crate::regions::Mode;
use crate::step_policy::{StepPolicy, StepShape};

/// How a [`Stage`] is made.
pub struct StageOptions {
    /// Seed of the first weights. `None`: they are 0 until a checkpoint is loaded.
    pub seed: Option<u64>,
    /// The largest number of microbatches in a step.
    pub microbatches: usize,
    /// Samples of a microbatch.
    pub micro_batch_size: usize,
    /// Lengths below that of [a row's samples](Architecture::sample) that the samples of a step may have instead,
    /// ascending. Each length has a list, a plan and graphs of its own; layers, parameters and planned memory are the
    /// same.
    pub shorter_lengths: Vec<usize>,
    /// The parameter groups. All parameters of a group are updated in the same way. Each parameter belongs to the first
    /// group that takes it.
    pub optimizer: Vec<ParamGroup>,
    /// How spikes are recognised. A step with a spike makes no update. `None`: all finite steps make one.
    pub skip_step: Option<SkipStep>,
    /// The types of the optimizer's moments.
    pub moments: MomentTypes,
    /// The smallest gradient bucket, in bytes.
    pub bucket_bytes: usize,
    /// What ranks with other tokens divide.
    pub sharding: Sharding,
    /// The number type of sums of gradients over data-parallel ranks: f32 or bf16.
    pub grad_reduce: DType,
    /// This rank's stage of a pipeline, with the order of the stage's work. If the schedule
    /// [overlaps](parallel::Schedule::overlapping), forwards run next to backwards, to the same bits. With tensor
    /// parallelism that needs a communicator in [`Purpose::Aside`].
    pub pipeline: PipelineStage,
    /// How steps are captured.
    pub graphs: GraphOptions,
    /// The user's code in forward.
    pub hooks: Hooks,
    /// The number of layers of each chunk whose large tensors for backward lie on the host between forward and backward,
    /// to the same bits. They are the first ones with blocks; the last one of a chunk keeps its tensors in any case.
    pub layers_on_host: usize,
    /// The share of master weights and of the optimizer's state that lies on the host, to the same bits: that of the last
    /// buckets, each whole. Weights that layers read, and gradients, are on the device.
    pub state_on_host: f64,
    /// The form of master weights of weights in bf16. Only rules that
    /// [take 16 bits](crate::optimizer::UpdateRule::takes_16_bits) go with remainders.
    pub master_form: MasterForm,
    /// The type of `main_grad` of the weights of blocks: f32, or bf16 if layers compute in bf16. Not for experts, and only for
    /// rules that [take 16 bits](crate::optimizer::UpdateRule::takes_16_bits).
    pub block_gradients: DType,
    /// Passes that a step does without, to the same bits.
    pub left_out: Vec<PassName>,
    /// Evaluations keep the loss of each target, or the results of each pair of answers, for [`Stage::losses`].
    pub keeps_losses: bool,
}

impl Default for StageOptions {
    /// One microbatch of one sample a step on one rank, AdamW with weight decay 0.1 for matrices, graphs per layer.
    fn default() -> StageOptions {
        StageOptions {
            seed: Some(0),
            microbatches: 1,
            micro_batch_size: 1,
            shorter_lengths: Vec::new(),
            optimizer: ParamGroup::decay_matrices(Rule::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 }, 0.1),
            skip_step: None,
            moments: MomentTypes::default(),
            bucket_bytes: 25 << 20,
            sharding: Sharding::Nothing,
            grad_reduce: DType::F32,
            pipeline: PipelineStage::single(),
            graphs: GraphOptions::default(),
            hooks: Hooks::default(),
            layers_on_host: 0,
            state_on_host: 0.0,
            master_form: MasterForm::Whole,
            block_gradients: DType::F32,
            left_out: Vec::new(),
            keeps_losses: false,
        }
    }
}

impl Stage {
    /// Allocates weights, gradients, optimizer state and inputs. Activations are allocated by the first step, or by
    /// [`Stage::record`].
    ///
    /// # Errors
    /// Out of memory; a parameter that no group takes; settings that do not go together.
    pub fn new(device: &Device, architecture: &Architecture, options: StageOptions) -> Result<Stage> {
        let ranks = &architecture.ranks;
        check_ranks(&options, architecture)?;
        check_lengths(&options, architecture)?;
        let compute = device.stream("compute");
        let rest = if options.sharding > Sharding::Nothing { ranks.mesh().that_divide() } else { Axes::NONE };
        let (bucket_bytes, master_form) = (options.bucket_bytes, options.master_form);
        let sharding = check_sharding(&options, architecture)?;
        let divided = divided_layers(architecture, rest);
        let spec = |spec: &ParamSpec| {
            let grad_type = if spec.is_block_weight { options.block_gradients } else { DType::F32 };
            let is_divided = divided.contains(&spec.layer) && !spec.stays_whole;
            let sharding = if is_divided { sharding } else { sharding.min(Sharding::State) };
            let is_end = is_divided && !architecture.layers.between_ends().contains(&spec.layer);
            let turns = if is_end && sharding >= Sharding::Gradients { TURNS_OF_ENDS } else { spec.turns };
            let group = options.optimizer.iter().find(|group| group.has(spec));
            let is_whole = group.is_some_and(|group| group.rule.updates_whole_parameters());
            let division = if is_whole { Division::Parameters } else { Division::Elements };
            ParamSpec { master_form, grad_type, sharding, division, turns, ..spec.clone() }
        };
        let specs = architecture.specs.iter().map(spec).collect();
        let specs = with_state_on_host(specs, options.state_on_host, bucket_bytes, ranks, rest);
        let params = Params::new(device, specs, options.seed, bucket_bytes, ranks.clone(), rest)?;
        let mut areas = Vec::new();
        let control = device.allocate_tensor(&mut areas, "control", [size_of::<Control>()], DType::U8)?;
        let sequence = sequence_share(ranks);
        let (microbatches, samples) = (options.microbatches, options.micro_batch_size);
        let sizes = BatchSizes { samples, tokens_per_sample: architecture.sample.length() / sequence.ranks };
        let lengths = [architecture.sample.length()].into_iter().chain(options.shorter_lengths.iter().copied());
        let here = TokensHere::new(sequence, lengths);
        let rotary = architecture.rotary.uploaded(device, &mut areas, &here)?;
        let positions = positions(device, &mut areas, &here, samples)?;
        let numbers = StepNumbers::allocate(device, &mut areas, architecture)?;
        let losses = numbers.losses.clone();
        let step = StepTensors {
            control,
            losses,
            mismatched_rewards: numbers.mismatched.map(|of| of.sum),
            expert_loads: numbers.loads.clone(),
            rows_beyond: numbers.beyond,
            rotary,
            here,
            positions,
        };
        let model = (architecture.build)(&params, step);
        let layers = &architecture.layers;
        let of_sample =
            architecture.sample.pairs.as_ref().map_or(sizes.tokens_per_sample, |pairs| pairs.most * PairLoss::RESULTS);
        let mut kept = |name: &str, is_kept: bool| {
            let shape = (is_kept && layers.has_last()).then_some([microbatches, samples * of_sample]);
            shape.map(|shape| device.allocate_tensor(&mut areas, name, shape, DType::F32)).transpose()
        };
        let kept_losses = kept("losses", options.keeps_losses)?;
        let first_mode = FirstForwards::mode_for(&architecture.sample);
        let first_results = kept("results of the first forwards", first_mode.is_some())?;
        let rewards = numbers.mismatched.map(|of| of.sum);
        let first = first_mode.map(|mode| FirstForwards { mode, results: first_results, rewards });
        let references = first_results.filter(|_| first_mode == Some(Mode::Reference));
        let inputs = Inputs::new(device, architecture, &model, control, microbatches, samples, references)?;
        let pipeline = Pipeline::new(device, options.pipeline, model.residual, sizes, &params)?;
        let step_control = StepControl { control, status: numbers.status };
        let mut optimizer = Optimizer::new(device, &params, &options.optimizer, options.moments, step_control)?;
        optimizer = optimizer.voiding(numbers.beyond);
        if let Some(skip) = options.skip_step {
            optimizer = optimizer.skipping_spikes(device, skip, numbers.losses.loss())?;
        }
        let gradients = GradientSync::new(device, &params, layers, options.grad_reduce)?;
        let divided_gradients = if sharding >= Sharding::Gradients { divided } else { 0..0 };
        let graphs = StepPolicy::manager(
            compute.clone(),
            &options.graphs,
            step_shape(architecture, options.hooks, sizes, divided_gradients),
        )?;
        let layers_are_graphs = graphs.policy().graphs() == Some(Scope::PerLayer);
        let is_away = options.layers_on_host > 0 || options.state_on_host > 0.0;
        let host_queues = is_away.then(|| HostQueues::new(device));
        let timing = Timing {
            left_out: options.left_out,
            gradients: params.gradient_buffer(),
            splits_backward: options.pipeline.schedule().splits_backward(),
            // Reductions read the gradients of the layer before, and no work goes on past the end of a graph.
            gradients_outlive_layers: architecture.gradients_outlive_layers
                && !gradients.has_sums()
                && !layers_are_graphs,
            weights_queue: SideStream::background(device, "weight gradients"),
            tensor_queue: SideStream::new(device, "tensor parallel"),
            buckets_queue: SideStream::new(device, "data parallel"),
            ranks: ranks.clone(),
            on_host: (host_queues.iter().filter(|_| options.layers_on_host > 0))
                .map(|queues| SavedOnHost::new(queues, options.layers_on_host))
                .next(),
            state: host_queues.filter(|_| options.state_on_host > 0.0).map(|queues| {
                let masters = params.iter().map(|(_, param)| param.master).filter(|master| params.is_on_host(*master));
                let away = params.specs.iter().enumerate().filter(|(_, spec)| spec.state_home == Home::Host);
                let moments = away.flat_map(|(index, _)| optimizer.state(index)).map(|state| state.tensor);
                let buffers = masters.chain(moments).map(|tensor: Tensor| tensor.buffer).collect();
                StateOnHost { buffers: Rc::new(buffers), queues }
            }),
            row_queues: ranks.at(Axis::Expert).has_others().then(|| ExpertRowQueues::new(device)),
        };
        Ok(Stage {
            graphs,
            measures: false,
            ran_again: false,
            program: StepProgram {
                model,
                inputs,
                pipeline,
                shorter_lengths: options.shorter_lengths,
                params,
                optimizer,
                gradients,
                control,
                numbers,
                timing,
                kept_losses,
                first,
            },
            compute,
            copies: None,
            params_elsewhere: architecture.elsewhere.clone(),
            _areas: areas,
        })
    }
}

/// The positions of the tokens here, i32: `(samples, tokens)` for each length. `None` if all tokens are here.
fn positions(device: &Device, areas: &mut Vec<Area>, here: &TokensHere, samples: usize) -> Result<Option<Tensor>> {
    let Some(values) = here.values(samples) else { return Ok(None) };
    let tensor = device.allocate_tensor(areas, "positions", [values.len()], DType::I32)?;
    if !device.is_dry() {
        device.upload(&tensor, &values)?;
    }
    Ok(Some(tensor))
}

/// What the policy of graphs knows of the model and the data.
fn step_shape(
    architecture: &Architecture,
    hooks: Hooks,
    microbatch: BatchSizes,
    divided_gradients: Range<usize>,
) -> StepShape {
    let layers = &architecture.layers;
    StepShape {
        layers: layers.total,
        modules: architecture.modules.clone(),
        recomputes_blocks: layers.recomputed.iter().any(Option::is_some),
        chunks: layers.chunks.iter().map(|chunk| chunk.start).collect(),
        hooks,
        microbatch,
        context_ranks: architecture.ranks.at(Axis::Context).count,
        divided_gradients,
    }
}

/// The layers whose gradients and weights ranks may divide: blocks, and with them embedding and head if these take less
/// memory divided. The buffer in which the two take turns is as large as the larger one, and a rank keeps its parts of
/// both. So an end alone on its stage stays whole, and so do both if they use one table.
fn divided_layers(architecture: &Architecture, rest: Axes) -> Range<usize> {
    let (layers, ranks) = (&architecture.layers, &architecture.ranks);
    let of_layer = |layer: usize| architecture.specs.iter().filter(move |spec| spec.layer == layer);
    let elements = |layer: usize| of_layer(layer).map(|spec| spec.shape.elements()).sum::<usize>();
    let [first, last] = [0, layers.total - 1].map(elements);
    let parts = of_layer(0).map(|spec| ranks.place(spec.spread.sums(ranks) & rest).count).max().unwrap_or(1);
    let takes_less = !architecture.shares_table && layers.total > 2 && first.min(last) * parts > first + last;
    if takes_less { 0..layers.total } else { layers.between_ends() }
}

/// What ranks with other tokens divide. A single rank divides no gradients and no weights.
///
/// # Errors
/// Settings that do not go together.
fn check_sharding(options: &StageOptions, architecture: &Architecture) -> Result<Sharding> {
    let ranks = &architecture.ranks;
    if options.sharding < Sharding::Gradients || !ranks.place(ranks.mesh().that_divide()).has_others() {
        return Ok(options.sharding.min(Sharding::State));
    }
    let schedule = options.pipeline.schedule();
    let refused = [
        (schedule.splits_backward(), "a split backward (zero bubble)"),
        (schedule.overlaps(), "microbatches that overlap"),
    ];
    match refused.into_iter().find(|(is_used, _)| *is_used) {
        Some((_, with)) => Err(Error::Usage {
            problem: format!("{:?} are divided over ranks, with {with}", options.sharding),
            fix: "leave out one of the two",
        }),
        None => Ok(options.sharding),
    }
}

/// Fails if ranks that work together were not connected.
fn check_ranks(options: &StageOptions, architecture: &Architecture) -> Result<()> {
    let ranks = &architecture.ranks;
    let overlaps = options.pipeline.schedule().overlaps();
    let loads = architecture.experts.as_ref().and_then(|experts| experts.loads_over);
    let has_experts = architecture.experts.is_some();
    let needed = [
        (Axis::Tensor, Purpose::Main, true, "ranks share layers"),
        (Axis::KeyHeadCopies, Purpose::Main, true, "ranks store copies of key heads"),
        (Axis::Context, Purpose::Keys, true, "ranks divide sequences"),
        (Axis::Tokens, Purpose::Main, true, "ranks have other tokens"),
        (Axis::Pipeline, Purpose::Main, true, "ranks have other layers"),
        (Axis::Expert, Purpose::Rows, true, "ranks have other experts"),
        (Axis::ExpertData, Purpose::Main, has_experts, "ranks have the same experts and other tokens"),
        (
            Axis::Tensor,
            Purpose::Aside,
            overlaps,
            "microbatches overlap, with transfers between ranks that share layers",
        ),
        (
            Axis::Expert,
            Purpose::RowsAside,
            overlaps,
            "microbatches overlap, with transfers between ranks that have other experts",
        ),
        (Axis::Context, Purpose::KeysAside, overlaps, "microbatches overlap, with transfers of keys"),
        (
            loads.unwrap_or(Axis::Tokens),
            Purpose::Loads,
            loads.is_some(),
            "a loss is about the loads of experts on all ranks",
        ),
    ];
    match needed.into_iter().find(|&(axis, purpose, asks, _)| asks && ranks.lacks(ranks.axes(axis), purpose)) {
        Some((axis, purpose, _, why)) => Err(Error::Usage {
            problem: format!("{why}, and the {} ranks have no communicator for it ({purpose:?})", axis.name()),
            fix: "add the group to Connections::groups",
        }),
        None => Ok(()),
    }
}
