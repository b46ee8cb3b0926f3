//! The plan in words, as a box.

use common::format::{boxed, bytes, count};
use data::Source;
use device::Device;
use engine::regions::Mode;
use engine::step::Stage;
use parallel::PipelineStage;

use crate::config::plan::RunPlan;
use crate::ranks::Ranks;

/// The plan as a box: what will be trained, on what, in how much memory.
pub fn plan_box(plan: &RunPlan, stage: &mut Stage, source: &dyn Source, device: &Device, ranks: &Ranks) -> String {
    let state = stage.optimizer().state_bytes();
    let activations = stage.graphs().memory();
    let planned: usize = activations.iter().map(|area| area.bytes).sum();
    let areas: Vec<String> = activations.iter().map(|area| format!("{} {}", area.area, bytes(area.bytes))).collect();
    let graphs = if plan.graphs.enable {
        let modes = [(Mode::Train, "training"), (Mode::Evaluate, "evaluation")];
        let counts = modes.map(|(mode, name)| format!("{} for {name}", stage.graphs().expected_graphs(mode)));
        format!("{}, {} pool: {}", plan.config.cuda_graph.scope, plan.config.cuda_graph.mempool, counts.join(", "))
    } else {
        "off".into()
    };
    let grads = bytes(stage.params().grads.bytes());
    let (weights, shards) = (bytes(stage.params().weight_bytes()), stage.params().optimizer_shard().ranks);
    let weights = match (stage.params().master_bytes(), shards) {
        (0, 1) => format!("{weights} master, {grads} main_grad"),
        (0, ranks) => format!("{weights}, 1/{ranks} of them master, {grads} main_grad"),
        (master, _) => {
            format!("{} master, {grads} main_grad, {weights} {}", bytes(master), plan.config.precision.compute)
        }
    };
    let divided = match shards {
        1 => String::new(),
        ranks => format!(": the part of one of {ranks} ranks"),
    };
    let shared = match (plan.grid.tensor, plan.config.parallel.sequence_parallel) {
        (1, _) => String::new(),
        (tensor, false) => format!("; {tensor} ranks share each layer"),
        (tensor, true) => format!("; {tensor} ranks share each layer and its tokens"),
    };
    let ramp = plan.batch_size.ramp_in_words().map_or(String::new(), |ramp| format!("; {ramp}"));
    let mut rows = vec![
        ("model", format!("{}, {} parameters", plan.config.model.preset, count(plan.parameters as f64))),
        ("data", source.describe()),
        (
            "batch",
            format!(
                "{} samples = {} ranks x {} microbatches x {}, {} tokens a step{shared}{ramp}",
                plan.config.train.global_batch_size,
                plan.grid.data,
                plan.microbatches,
                plan.config.train.micro_batch_size,
                count(plan.tokens_per_step as f64)
            ),
        ),
        (
            "steps",
            format!("{}, {} tokens", plan.config.train.steps, {
                count(plan.batch_size.samples_of(plan.config.train.steps) as f64 * plan.losses_per_sample as f64)
            }),
        ),
        ("device", format!("{}, {}", place(device, ranks), plan.config.precision.compute)),
        ("weights", weights),
        ("optimizer", format!("{}, {}{divided}", plan.config.optimizer.kind, bytes(state))),
        ("activations", format!("{}: {}", bytes(planned), areas.join(", "))),
        ("memory", memory(device)),
        ("graphs", graphs),
    ];
    if plan.grid.pipeline > 1 {
        let layers = plan.layers(ranks.rank).in_words();
        rows.splice(3..3, [("pipeline", pipeline_row(plan, ranks.rank)), ("layers", layers)]);
    }
    if let Some(floor) = source.floor() {
        rows.push(("loss floor", format!("{floor:.4} nats, the data's own entropy")));
    }
    boxed("plan of a rank", &rows)
}

/// The pipeline in words, with the time that a stage waits for others while the pipeline fills and drains: `stages - 1` of
/// `chunks * microbatches` parts (Narayanan et al., 2021), and a third of that where the gradients of weights are put off
/// and take as long as a forward does (Qi et al., 2023).
fn pipeline_row(plan: &RunPlan, rank: usize) -> String {
    let PipelineStage { stages, stage, chunks, zero_bubble, .. } = plan.stage(rank);
    let filled = if zero_bubble { 3 } else { 1 };
    let idle = (stages - 1) as f64 / (filled * chunks * plan.microbatches) as f64;
    format!("stage {} of {stages}, idle for {:.1} % of the time of its work", stage + 1, idle * 100.0)
}

/// What a rank needs of its device's memory, and on a GPU what libraries took of it already.
fn memory(device: &Device) -> String {
    let needed = device.allocated_bytes();
    let total = bytes(needed);
    match device.gpu_memory() {
        Ok(Some((free, all))) if device.is_dry() => {
            let before = all - free;
            format!(
                "{total}, with {} of libraries and others {} of {}",
                bytes(before),
                bytes(before + needed),
                bytes(all)
            )
        }
        Ok(Some((_, all))) => format!("{total} of {}", bytes(all)),
        _ => total,
    }
}

/// The device in words.
pub(crate) fn place(device: &Device, ranks: &Ranks) -> String {
    match device.gpu() {
        Some(gpu) => format!(
            "{}, compute capability {}.{}, CUDA {}.{}",
            gpu.name,
            gpu.capability.0,
            gpu.capability.1,
            gpu.driver_version / 1000,
            gpu.driver_version % 1000 / 10
        ),
        None => format!("host, {} threads a rank", ranks.threads),
    }
}
