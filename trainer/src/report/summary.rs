//! The summary of a plan, printed before a run: the model, the data, the ranks and the memory.

use common::format::{bytes, count, counted};
use data::Source;
use device::{Device, Home};
use engine::model::ContextTransfers;
use engine::params::Sharding;
use engine::regions::Mode;
use engine::step::Stage;
use parallel::Axis;

use crate::checkpoint::{MOST_STATES, Writers, rank_bytes, state_folder};
use crate::config::model_name::describe;
use crate::config::plan::batches::{bucket_shares, epochs};
use crate::config::plan::{ParallelPlan, RunPlan, graph_scope};
use crate::config::{Fp8Choice, GraphScope, RunConfig};
use crate::process_group::ProcessGroup;

/// The title of the summary.
pub const PLAN: &str = "plan of a rank";

/// The summary of one rank's plan: labels and values.
pub fn summary(
    plan: &RunPlan,
    stage: &mut Stage,
    source: &dyn Source,
    device: &Device,
    group: &ProcessGroup,
) -> Vec<(&'static str, String)> {
    let config = &plan.config;
    let compute = config.precision.compute;
    let model = describe(&config.model);
    let tokens = plan.batch.samples_of(plan.steps) as f64 * plan.size.losses_per_sample as f64;
    let epochs = epochs::described(plan, source).map_or(String::new(), |epochs| format!(", {epochs}"));
    let most = if plan.buckets.shorter().is_empty() { "" } else { "up to " };
    let mut rows = vec![
        ("model", format!("{model}, {}{}", plan.size.words(), additions(config))),
        ("data", source.describe()),
        ("batch", batch(plan, group)),
        ("steps", format!("{}, {most}{} tokens{epochs}", plan.steps, count(tokens))),
        ("device", format!("{}, {compute}{}", describe_device(device, group), fp8(config))),
        ("weights", weights(plan, stage)),
        ("optimizer", optimizer(plan, stage)),
        ("activations", activations(stage)),
        ("memory", memory(device)),
        ("graphs", graphs(plan, stage)),
    ];
    if plan.parallel.mesh.size(Axis::Pipeline) > 1 {
        let layers = plan.layers(group.rank()).in_words();
        let pipeline = pipeline(&plan.parallel, plan.batch.microbatches(), group.rank());
        rows.splice(3..3, [("pipeline", pipeline), ("layers", layers)]);
    }
    if let Some(shares) = bucket_shares::described(plan, source) {
        rows.insert(3, ("lengths", shares));
    }
    let named = |key| config.own.text(key).map(|name| format!("{key} {name}"));
    let own: Vec<String> = ["part", "loss"].into_iter().filter_map(named).collect();
    if !own.is_empty() {
        rows.insert(1, ("own", own.join(", ")));
    }
    let checkpoint = &config.checkpoint;
    let state = rank_bytes(stage, &Writers::new(plan, group)) as usize;
    // A dry run plans for a supervised one.
    let in_memory = checkpoint.keeps_states() && (device.is_dry() || state_folder(checkpoint).is_some());
    if checkpoint.dir.is_some() && checkpoint.saves_meanwhile(in_memory) {
        let kept = if device.gpu().is_some() { "for copies" } else { "for a copy meanwhile" };
        rows.push(("saves", format!("while training goes on; {} of the machine's memory {kept}", bytes(state))));
    }
    if in_memory {
        let (interval, most) = (counted(checkpoint.memory_interval, "step"), bytes(MOST_STATES * state));
        let twice = "twice its part of the state, while a newer one is written";
        rows.push(("states", format!("in shared memory every {interval}; {most} of it: {twice}")));
    }
    if let Some(floor) = source.floor() {
        rows.push(("loss floor", format!("{floor:.4} nats, the entropy of the data")));
    }
    rows
}

fn batch(plan: &RunPlan, group: &ProcessGroup) -> String {
    let batch = &plan.batch;
    let (data, tensor) = (plan.parallel.mesh.size(Axis::Data), plan.parallel.mesh.size(Axis::Tensor));
    let by = if group.ranks.along(Axis::Tensor).is_some_and(|tensor| tensor.peers().is_some()) {
        " through GPU memory"
    } else {
        ""
    };
    let shared = match (tensor, plan.parallel.sequence_parallel) {
        (1, _) => String::new(),
        (tensor, false) => format!("; {tensor} ranks share each layer{by}"),
        (tensor, true) => format!("; {tensor} ranks share each layer and its tokens{by}"),
    };
    let divided = match plan.parallel.mesh.size(Axis::Context) {
        1 => String::new(),
        context => {
            let exchange = match plan.parallel.context_transfers {
                ContextTransfers::Keys => "gather keys",
                ContextTransfers::Ring => "pass keys round",
                ContextTransfers::Heads => "exchange heads",
            };
            format!("; {context} ranks divide each sequence and {exchange}")
        }
    };
    let is_whole = tensor > 1 && plan.parallel.mesh.sizes().expert_tensor == 1;
    let experts = match (plan.parallel.mesh.size(Axis::Expert), is_whole) {
        (1, false) => String::new(),
        (1, true) => "; each rank has all experts whole".into(),
        (ranks, false) => format!("; {ranks} ranks divide the experts of each layer"),
        (ranks, true) => format!("; {ranks} ranks divide the experts of each layer, which are whole"),
    };
    let ramp = batch.describe_ramp().map_or(String::new(), |ramp| format!("; {ramp}"));
    format!(
        "{} = {} x {} x {}, {} tokens a step{shared}{divided}{experts}{ramp}",
        counted(batch.global, "sample"),
        counted(data, "rank"),
        counted(batch.microbatches(), "microbatch"),
        batch.micro,
        count(plan.tokens_per_step() as f64)
    )
}

/// The model's adapters, or the layers for further tokens, if any.
fn additions(config: &RunConfig) -> String {
    match (config.model.lora_rank, config.model.mtp_layers) {
        (0, 0) => String::new(),
        (0, layers) => format!(", {} for further tokens", counted(layers, "layer")),
        (rank, _) => format!(", adapters of rank {rank}"),
    }
}

/// How layers multiply in 8 bits; empty for other layers.
fn fp8(config: &RunConfig) -> String {
    let precision = &config.precision;
    match precision.fp8 {
        Fp8Choice::None => String::new(),
        format => format!(", 8-bit products ({format}, {})", precision.fp8_recipe),
    }
}

fn weights(plan: &RunPlan, stage: &Stage) -> String {
    let (params, precision) = (stage.params(), &plan.config.precision);
    let compute = precision.compute;
    let frozen = match params.frozen_bytes() {
        0 => String::new(),
        frozen if precision.frozen_weights.codes().is_some() => {
            format!(", {} frozen ({})", bytes(frozen), precision.frozen_weights)
        }
        frozen => format!(", {} frozen", bytes(frozen)),
    };
    let (grads, weights) = (bytes(params.grads.bytes()), params.weight_bytes() - params.frozen_bytes());
    let masters = params.master_bytes_in(Home::Device) + params.master_bytes_in(Home::Host);
    let trained = match (masters, params.state_ranks()) {
        (0, 1) => format!("{} master, {grads} main_grad", bytes(weights)),
        (0, _) if plan.parallel.sharding == Sharding::Weights => format!("{}, {grads} main_grad", bytes(weights)),
        (0, ranks) => format!("{}, 1/{ranks} of them master, {grads} main_grad", bytes(weights)),
        (master, _) => {
            let own = params.own_master_bytes();
            let eight_bit = match params.fp8_bytes() {
                0 => String::new(),
                copies => format!(", {} in 8 bits", bytes(copies)),
            };
            let (masters, weights) = (bytes(master + own), bytes(weights - own));
            format!("{masters} master, {grads} main_grad, {weights} {compute}{eight_bit}")
        }
    };
    let ends_are_divided = params.specs.iter().all(|spec| spec.sharding >= Sharding::Gradients || spec.stays_whole);
    let of = if ends_are_divided { "" } else { " of blocks" };
    let divided = match params.state_ranks() {
        1 => String::new(),
        _ if plan.parallel.sharding == Sharding::Weights => format!("; gradients and weights{of} divided over ranks"),
        _ if plan.parallel.sharding == Sharding::Gradients => format!("; gradients{of} divided over ranks"),
        _ => String::new(),
    };
    trained + &frozen + &divided
}

fn optimizer(plan: &RunPlan, stage: &Stage) -> String {
    let (params, optimizer) = (stage.params(), stage.optimizer());
    let state = optimizer.state_bytes_in(Home::Device) + optimizer.state_bytes_in(Home::Host);
    let part = match params.state_ranks() {
        1 => String::new(),
        ranks => format!(": the part of one of {ranks} ranks"),
    };
    let named: String = plan.optimizer.named.iter().map(|group| format!("; {group}")).collect();
    let away = match params.master_bytes_in(Home::Host) + optimizer.state_bytes_in(Home::Host) {
        0 => String::new(),
        away => format!("; {} of it and of master weights on the host", bytes(away)),
    };
    format!("{}, {}{part}{away}{named}", plan.config.optimizer.kind, bytes(state))
}

fn activations(stage: &mut Stage) -> String {
    let areas = stage.graphs().memory();
    let total: usize = areas.iter().map(|area| area.bytes).sum();
    let areas: Vec<String> = areas.iter().map(|area| format!("{} {}", area.area, bytes(area.bytes))).collect();
    let on_host: usize = stage.graphs().memory_in(Home::Host).iter().map(|area| area.bytes).sum();
    let on_host = if on_host > 0 { format!("; {} on the host", bytes(on_host)) } else { String::new() };
    format!("{}: {}{on_host}", bytes(total), areas.join(", "))
}

fn graphs(plan: &RunPlan, stage: &mut Stage) -> String {
    if !plan.graphs.enable {
        return "off".into();
    }
    let mut modes = vec![(Mode::Train, "training"), (Mode::Evaluate, "evaluation")];
    if plan.measures_fp8() {
        modes.insert(1, (Mode::Measure, "measuring"));
    }
    modes.extend(stage.first_forwards().map(|mode| match mode {
        Mode::Reference => (mode, "references"),
        mode => (mode, "mismatched answers"),
    }));
    let count = |(mode, name): (Mode, &str)| format!("{} for {name}", stage.graphs().expected_graphs(mode.into()));
    let mut counts = modes.into_iter().map(count).collect::<Vec<String>>().join(", ");
    if !plan.buckets.shorter().is_empty() {
        counts += &format!("; as many for each of {} lengths", 1 + plan.buckets.shorter().len());
    }
    let graph = &plan.config.cuda_graph;
    match graph.scope {
        GraphScope::PerLayer | GraphScope::PerChunk | GraphScope::Auto => {
            format!("{}, {} pool: {counts}", graph_scope(graph), graph.mempool)
        }
        // The pool has no effect on the plan over the whole step.
        GraphScope::FullIteration => format!("{}: {counts}", graph.scope),
    }
}

/// The rank's stage, and the stage's share of idle time while the pipeline fills and drains. Relative to the time of its
/// work that is `(stages - 1) / (chunks * microbatches)` (Narayanan et al., 2021), and a third of it with zero bubble, if
/// a microbatch's weight gradients take as long as its forward pass (Qi et al., 2023).
fn pipeline(parallel: &ParallelPlan, microbatches: usize, rank: usize) -> String {
    let (stage, stages) = (parallel.stage(rank), parallel.schedule.placement().stages());
    let filled = if parallel.schedule.splits_backward() { 3 } else { 1 };
    let idle = (stages - 1) as f64 / (filled * stage.chunks() * microbatches) as f64;
    format!("stage {} of {stages}, idle for {:.1} % of the time of its work", stage.stage(), idle * 100.0)
}

/// The device memory that a rank needs. In a dry run on a GPU also the memory that libraries and other processes use
/// already. And the memory of the host for what leaves the device.
fn memory(device: &Device) -> String {
    let needed = device.allocated_bytes();
    let total = bytes(needed);
    let on_host = match (device.bytes_on_host(), device.locking_time().as_secs_f64()) {
        (0, _) => String::new(),
        (away, 0.0) => format!("; {} of the host's memory", bytes(away)),
        (away, seconds) => format!("; {} of the host's memory, page-locked in {seconds:.1} s", bytes(away)),
    };
    let here = match device.gpu_memory() {
        Ok(Some((free, all))) if device.is_dry() => {
            let used = all - free;
            let (used, sum, all) = (bytes(used), bytes(used + needed), bytes(all));
            format!("{total}; with the {used} of libraries and other processes {sum} of {all}")
        }
        Ok(Some((_, all))) => format!("{total} of {}", bytes(all)),
        _ => total,
    };
    here + &on_host
}

/// The device in words.
pub(crate) fn describe_device(device: &Device, group: &ProcessGroup) -> String {
    match device.gpu() {
        Some(gpu) => format!(
            "{}, compute capability {}.{}, CUDA {}.{}",
            gpu.name,
            gpu.capability.0,
            gpu.capability.1,
            gpu.driver_version / 1000,
            gpu.driver_version % 1000 / 10
        ),
        None => format!("host, {} a rank", counted(group.threads, "thread")),
    }
}
