//! The output of `trainer plan`.

use common::Choice;
use common::format::{bytes, count, counted};
use data::Source;
use engine::params::Sharding;
use parallel::{Axis, MeshSizes};
use serde_json::{Value, json};

use crate::predict::{Card, Fit, Forecast, Found, Memory, picture};
use trainer::config::model_name::describe;
use trainer::config::plan::RunPlan;
use trainer::config::plan::batches::epochs;
use trainer::config::{ContextTransfersChoice, PipelineSchedule, RecomputeGranularity};

/// Letters of the picture's lines.
const WIDTH: usize = 96;

/// The prediction as JSON.
pub(super) fn json(card: &Card, found: &Found) -> Value {
    let layouts: Vec<Value> = found.best.iter().map(|(plan, forecast)| layout(plan, forecast)).collect();
    json!({
        "gpu": card.name,
        "measured": card.measured,
        "layouts_allowed": found.allowed,
        "layouts_recorded": found.recorded,
        "layouts": layouts,
    })
}

fn layout(plan: &RunPlan, forecast: &Forecast) -> Value {
    let (mesh, config) = (plan.parallel.mesh, &plan.config);
    let memory = |memory: &Memory| {
        let mut kinds = json!(memory);
        kinds["bytes"] = memory.total().into();
        kinds
    };
    json!({
        "tensor": mesh.size(Axis::Tensor),
        "context": mesh.size(Axis::Context),
        "pipeline": mesh.size(Axis::Pipeline),
        "virtual_pipeline": config.parallel.virtual_pipeline,
        "pipeline_schedule": config.parallel.pipeline_schedule,
        "data": mesh.size(Axis::Data),
        "expert": mesh.size(Axis::Expert),
        "expert_tensor": mesh.sizes().expert_tensor,
        "sequence_parallel": config.parallel.sequence_parallel,
        "distributed_optimizer": plan.parallel.sharding > Sharding::Nothing,
        "data_parallel_sharding": plan.parallel.sharding.word(),
        "overlap_microbatches": plan.parallel.schedule.overlaps(),
        "recompute": config.recompute.granularity,
        "keeps_attention": keeps_attention(plan),
        "recomputed_blocks": config.recompute.blocks,
        "mlp_tiles": config.recompute.mlp_tiles,
        "activation_layers_on_host": plan.parallel.layers_on_host,
        "optimizer_share_on_host": plan.parallel.state_on_host.share(),
        "micro_batch_size": config.train.micro_batch_size,
        "microbatches": plan.batch.microbatches(),
        "fits": !matches!(forecast.fit, Fit::Lacks(_)),
        "leaves_headroom": forecast.fit == Fit::Fits,
        "memory_bytes": most(forecast),
        "memory_of_stages": forecast.memory.iter().map(memory).collect::<Vec<_>>(),
        "step_ms": forecast.step * 1e3,
        "tokens_per_s": forecast.tokens_per_second,
        "mfu": forecast.mfu,
        "days": forecast.days,
        "idle": forecast.idle,
        "exposed": forecast.exposed,
    })
}

/// The prediction as text: a table of layouts, then the first of them in detail.
pub(super) fn text(card: &Card, node: usize, found: &Found, source: Option<&dyn Source>) -> String {
    let Some((plan, forecast)) = found.best.first() else { return String::new() };
    let mut page = heading(plan, card, node, found);
    page.push_str(&table(&found.best));
    page.push_str("\nThe first of them\n");
    let (room, headroom) = (bytes(card.room()), bytes(card.headroom()));
    match forecast.fit {
        Fit::Fits => {}
        Fit::Tightly(left) => page.push_str(&format!(
            "  fits TIGHTLY: {} of the {room} of {} stay free, with {headroom} small errors have room\n",
            bytes(left),
            card.name
        )),
        Fit::Lacks(lacks) => {
            page.push_str(&format!("  does NOT FIT: {} more than the {room} of {}\n", bytes(lacks), card.name));
        }
    }
    page.push_str(&format!("  flags     {}\n", flags(plan).join(" ")));
    page.push_str(&format!(
        "  a step    {:.1} ms: {:.1} % waiting for other stages, {:.1} % transfers that nothing hides\n",
        forecast.step * 1e3,
        forecast.idle * 100.0,
        forecast.exposed * 100.0
    ));
    let epochs = source.and_then(|source| epochs::described(plan, source));
    let epochs = epochs.map_or(String::new(), |epochs| format!(", {epochs},"));
    page.push_str(&format!(
        "  the run   {}{epochs} in {:.1} days, without evaluations and checkpoints\n\n",
        counted(plan.steps, "step"),
        forecast.days
    ));
    page.push_str(&stages(forecast));
    page.push('\n');
    page + &picture(forecast, WIDTH) + WORDS
}

/// The words of the tables.
const WORDS: &str = "
tp ranks share a layer, pp stages in a pipeline, vp chunks of a stage, dp ranks with other samples; micro: samples
x microbatches; sp sequence parallel, do distributed optimizer, zb zero bubble; selective, full: recomputed, with ka
all but attention, oh what they save on the host, of N the first N blocks of a stage or chunk, tN feed-forward in
N tiles; os share of the optimizer's state on the host; cp ranks divide sequences, by keys, ring or heads; ep ranks
divide experts, with etp 1 whole ones; MFU: share of the GPUs' peak; idle: waits for other stages; exposed:
transfers that nothing hides. Layouts leave a 32nd of a GPU's memory free for errors of the prediction, if any does.
";

fn heading(plan: &RunPlan, card: &Card, node: usize, found: &Found) -> String {
    let ranks = plan.parallel.mesh.ranks();
    let sure = if card.measured {
        "rates measured"
    } else {
        "rates not measured: from the data sheet and the H200's efficiency"
    };
    let tokens = count(plan.tokens_per_step() as f64);
    let network = if ranks > node { "; between nodes nothing was measured" } else { "" };
    let experts = if plan.config.model.experts > 0 { "; experts were not measured" } else { "" };
    let longest = if plan.buckets.shorter().is_empty() { "" } else { ", as with the longest samples" };
    format!(
        "{}, {}; {} a step, {tokens} tokens{longest}\n{ranks} x {}, {node} on a node; {sure}{network}{experts}\n{} allowed, {} \
         recorded\n\n",
        describe(&plan.config.model),
        plan.size.words(),
        counted(plan.batch.global, "sample"),
        card.name,
        counted(found.allowed, "layout"),
        found.recorded,
    )
}

/// Bytes of the rank that needs most.
fn most(forecast: &Forecast) -> usize {
    forecast.memory.iter().map(Memory::total).max().unwrap_or(0)
}

fn table(layouts: &[(RunPlan, Forecast)]) -> String {
    let head = [
        "tp",
        "pp",
        "vp",
        "dp",
        "options",
        "micro",
        "GiB a rank",
        "ms a step",
        "tokens/s",
        "MFU",
        "days",
        "idle",
        "exposed",
    ];
    let mut rows = vec![head.map(String::from)];
    for (plan, forecast) in layouts {
        let mesh = plan.parallel.mesh;
        let size = |axis| mesh.size(axis).to_string();
        rows.push([
            size(Axis::Tensor),
            size(Axis::Pipeline),
            plan.config.parallel.virtual_pipeline.to_string(),
            size(Axis::Data),
            options(plan),
            format!("{} x {}", plan.batch.micro, plan.batch.microbatches()),
            format!("{:.1}", most(forecast) as f64 / f64::from(1 << 30)),
            format!("{:.1}", forecast.step * 1e3),
            count(forecast.tokens_per_second),
            format!("{:.1} %", forecast.mfu * 100.0),
            format!("{:.1}", forecast.days),
            format!("{:.1} %", forecast.idle * 100.0),
            format!("{:.1} %", forecast.exposed * 100.0),
        ]);
    }
    aligned(&rows)
}

/// The options of a layout in short words.
fn options(plan: &RunPlan) -> String {
    let config = &plan.config;
    let words = switches(plan).map(|switch| switch.word.to_string());
    let blocks = config.recompute.blocks.filter(|_| plan.parallel.recompute.is_some()).map(|most| format!("of {most}"));
    let tiles = Some(config.recompute.mlp_tiles).filter(|tiles| *tiles > 1).map(|tiles| format!("t{tiles}"));
    let state = Some(plan.parallel.state_on_host.share()).filter(|share| *share > 0.0);
    let words = words.chain(blocks).chain(tiles).chain(state.map(|share| format!("os {:.0} %", share * 100.0)));
    let mesh = plan.parallel.mesh;
    let sizes = [("cp", Axis::Context), ("ep", Axis::Expert)].map(|(word, axis)| (word, mesh.size(axis)));
    let sizes = sizes.into_iter().filter(|(_, ranks)| *ranks > 1).map(|(word, ranks)| format!("{word} {ranks}"));
    let sizes = sizes.chain(experts_are_whole(plan).then(|| "etp 1".to_string()));
    let words: Vec<String> = sizes.chain(context_transfers(plan).map(String::from)).chain(words).collect();
    if words.is_empty() { "-".into() } else { words.join(" ") }
}

/// An option that is on in a layout.
struct Switch {
    /// The option in short.
    word: &'static str,
    flag: String,
}

fn switches(plan: &RunPlan) -> impl Iterator<Item = Switch> + use<> {
    let (config, parallel) = (&plan.config, &plan.parallel);
    let (granularity, on_host) = (config.recompute.granularity, parallel.layers_on_host);
    let zero_bubble = config.parallel.pipeline_schedule == PipelineSchedule::ZeroBubble;
    let divides = |kind| parallel.sharding == kind;
    let recomputes = format!("--recompute-granularity {granularity}");
    let all = [
        (config.parallel.sequence_parallel, "sp", "--sequence-parallel".into()),
        (divides(Sharding::State), "do", "--use-distributed-optimizer".into()),
        (divides(Sharding::Gradients), "zero2", "--data-parallel-sharding-strategy optim_grads".into()),
        (divides(Sharding::Weights), "zero3", "--data-parallel-sharding-strategy optim_grads_params".into()),
        (zero_bubble, "zb", "--set parallel.pipeline_schedule=zero_bubble".into()),
        (parallel.schedule.overlaps(), "overlap", "--cuda-graph-overlap-microbatches".into()),
        (granularity == RecomputeGranularity::Selective, "selective", recomputes.clone()),
        (granularity == RecomputeGranularity::Full, "full", recomputes),
        (keeps_attention(plan), "ka", "--recompute-keep-attention".into()),
        (on_host > 0, "oh", format!("--offload-activation-layers {on_host}")),
    ];
    all.into_iter().filter(|(is_on, ..)| *is_on).map(|(_, word, flag)| Switch { word, flag })
}

/// What ranks that divide sequences exchange; `None` if none do.
fn context_transfers(plan: &RunPlan) -> Option<&'static str> {
    let way = ContextTransfersChoice::from(plan.parallel.context_transfers);
    (plan.parallel.mesh.size(Axis::Context) > 1).then_some(way.word())
}

/// Whether experts are whole on ranks that share the layers around experts.
fn experts_are_whole(plan: &RunPlan) -> bool {
    let MeshSizes { tensor, expert_tensor, .. } = plan.parallel.mesh.sizes();
    expert_tensor < tensor
}

/// Whether recomputed blocks keep the output of attention.
fn keeps_attention(plan: &RunPlan) -> bool {
    plan.parallel.recompute.is_some_and(|how| how.keeps_attention)
}

/// The flags that set a layout.
fn flags(plan: &RunPlan) -> Vec<String> {
    let (config, mesh) = (&plan.config, plan.parallel.mesh);
    let mut flags = vec![format!("--micro-batch-size {}", config.train.micro_batch_size)];
    for (flag, value) in [
        ("--tensor-model-parallel-size", mesh.size(Axis::Tensor)),
        ("--context-parallel-size", mesh.size(Axis::Context)),
        ("--expert-model-parallel-size", mesh.size(Axis::Expert)),
        ("--pipeline-model-parallel-size", mesh.size(Axis::Pipeline)),
        ("--set parallel.virtual_pipeline=", config.parallel.virtual_pipeline),
    ] {
        let between = if flag.ends_with('=') { "" } else { " " };
        flags.extend((value > 1).then(|| format!("{flag}{between}{value}")));
    }
    flags.extend(context_transfers(plan).map(|way| format!("--context-parallel-transfers {way}")));
    flags.extend(experts_are_whole(plan).then(|| "--expert-tensor-parallel-size 1".to_string()));
    flags.extend(switches(plan).map(|switch| switch.flag));
    let blocks = config.recompute.blocks.filter(|_| plan.parallel.recompute.is_some());
    flags.extend(blocks.map(|most| format!("--recompute-blocks {most}")));
    let tiles = config.recompute.mlp_tiles;
    flags.extend((tiles > 1).then(|| format!("--mlp-tiles {tiles}")));
    let pieces = config.model.loss_pieces.filter(|_| tiles > 1);
    flags.extend(pieces.map(|pieces| format!("--loss-pieces {pieces}")));
    let share = plan.parallel.state_on_host.share();
    flags.extend((share > 0.0).then(|| format!("--offload-optimizer --offload-optimizer-fraction {share}")));
    flags
}

/// Memory of a rank of each stage, by kind.
fn stages(forecast: &Forecast) -> String {
    let head = ["stage", "GiB", "weights", "gradients", "optimizer", "activations", "rest", "graphs", "libraries"];
    let gib = |bytes: usize| format!("{:.2}", bytes as f64 / f64::from(1 << 30));
    let mut rows = vec![head.map(String::from)];
    for (stage, memory) in forecast.memory.iter().enumerate() {
        let Memory { weights, gradients, optimizer, activations, rest, graphs, libraries, on_host: _ } = *memory;
        let kinds = [memory.total(), weights, gradients, optimizer, activations, rest, graphs, libraries];
        let [total, weights, gradients, optimizer, activations, rest, graphs, libraries] = kinds.map(gib);
        rows.push([stage.to_string(), total, weights, gradients, optimizer, activations, rest, graphs, libraries]);
    }
    let on_host = forecast.memory.iter().map(|memory| memory.on_host).max().unwrap_or(0);
    match on_host {
        0 => aligned(&rows),
        on_host => format!("{}  and up to {} GiB of the host's memory a rank\n", aligned(&rows), gib(on_host)),
    }
}

/// Rows with columns of one width, indented.
pub(super) fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[String; N]| {
        let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
        format!("  {}\n", cells.join("  "))
    };
    rows.iter().map(line).collect()
}
