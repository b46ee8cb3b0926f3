//! The settings of torchtitan's job configuration, with its defaults (github.com/pytorch/torchtitan,
//! `torchtitan/config/job_config.py`, where a job is a TOML file).

use std::sync::LazyLock;

use parallel::{Axis, Mesh, MeshSizes};
use toml::Value;

use super::settings::{
    Made, Make, OtherName, Settings, betas_of, graphs, names, none, number, one, set, set_as, shown, text,
};

const EIGHT_BITS: &str = "--fp8-format hybrid with --fp8-recipe";

/// What makes options of a value, by setting.
const MADE: &[(&str, Make)] = &[
    ("model.name", preset),
    ("model.converters", converters),
    ("optimizer.name", optimizer),
    ("optimizer.beta1", betas),
    ("lr_scheduler.decay_type", decay),
    ("lr_scheduler.min_lr_factor", floor),
    ("training.dataset", dataset),
    ("training.local_batch_size", batch),
    ("training.mixed_precision_param", format),
    ("training.mixed_precision_reduce", reduce),
    ("training.compile", graphs),
    ("parallelism.data_parallel_replicate_degree", replicate),
    ("parallelism.data_parallel_shard_degree", shard),
    ("parallelism.pipeline_parallel_schedule", schedule),
    ("parallelism.context_parallel_rotate_method", rotate),
    ("parallelism.expert_tensor_parallel_degree", expert_tensor),
    ("checkpoint.folder", checkpoints),
    ("checkpoint.async_mode", async_save),
    ("checkpoint.load_step", load_step),
    ("activation_checkpoint.mode", recompute),
    ("compile.enable", graphs),
    ("validation.freq", validation),
    ("validation.dataset", dataset),
];

pub(super) static NAMES: LazyLock<Vec<OtherName>> = LazyLock::new(|| names(include_str!("torchtitan.txt"), MADE));

fn async_save(value: &Value, _: &Settings) -> Made {
    one("checkpoint.async_save", if text(value) == "disabled" { "false" } else { "true" })
}

fn preset(value: &Value, settings: &Settings) -> Made {
    let (model, flavor) = (text(value), settings.text("model.flavor").unwrap_or_default());
    let ours = match (model.as_str(), flavor) {
        ("llama3", "8B") => "llama-8b",
        ("llama3", "70B") => "llama-70b",
        ("qwen3", "0.6B") => "qwen3-0.6b",
        ("qwen3", "1.7B") => "qwen3-1.7b",
        ("qwen3", "4B") => "qwen3-4b",
        ("qwen3", "8B") => "qwen3-8b",
        _ => return Err(format!("no preset is {model} {flavor}: set model.preset, and sizes over it")),
    };
    Ok(vec![set_as("model.preset", ours, format!("{model} {flavor}"))])
}

fn converters(value: &Value, _: &Settings) -> Made {
    let wanted = value.as_array().is_some_and(|items| !items.is_empty());
    if wanted { Err(format!("8-bit products have options of their own: {EIGHT_BITS}")) } else { none() }
}

fn betas(_: &Value, settings: &Settings) -> Made {
    betas_of(settings, ["optimizer.beta1", "optimizer.beta2"], "beta1 and beta2")
}

fn decay(value: &Value, settings: &Settings) -> Made {
    let (kind, steps) = (text(value), settings.number("training.steps").unwrap_or(0.0));
    let style = match kind.as_str() {
        "linear" => "linear",
        "cosine" => "cosine",
        other => return Err(format!("a decay is linear or cosine, not {other}")),
    };
    let Some(share) = settings.number("lr_scheduler.decay_ratio") else { return one("optimizer.schedule", style) };
    if style != "linear" {
        return Err("wsd's decay, over the last part of a run, is linear".into());
    }
    let how = format!("decay_ratio {share} x {steps} steps");
    Ok(vec![set("optimizer.schedule", "wsd"), set_as("optimizer.decay_steps", shown((share * steps).round()), how)])
}

fn floor(value: &Value, settings: &Settings) -> Made {
    let (factor, rate) = (number(value).ok_or("it is not a number")?, settings.number("optimizer.lr").unwrap_or(0.0));
    Ok(vec![set_as("optimizer.min_lr", shown(factor * rate), format!("lr {rate} x min_lr_factor {factor}"))])
}

fn dataset(value: &Value, _: &Settings) -> Made {
    Err(format!("{} is loaded by torchtitan's own code; data here are files or folders", text(value)))
}

/// The ranks of a job, as far as the degrees of parallelism tell.
pub(super) fn ranks(settings: &Settings) -> usize {
    let degrees =
        ["data_parallel_replicate", "data_parallel_shard", "tensor_parallel", "context_parallel", "pipeline_parallel"];
    let number = |name: &str| settings.number(&format!("parallelism.{name}_degree")).unwrap_or(1.0).max(1.0);
    degrees.into_iter().map(number).product::<f64>().min(f64::from(1 << 17)) as usize
}

/// The number of ranks that divide the batch; 1 if the degrees do not divide the ranks.
fn data_ranks(settings: &Settings) -> usize {
    let degree = |name: &str| settings.number(&format!("parallelism.{name}_degree")).unwrap_or(1.0).max(1.0) as usize;
    let [tensor, context, pipeline] = ["tensor_parallel", "context_parallel", "pipeline_parallel"].map(degree);
    let mesh = Mesh::new(MeshSizes { tensor, context, pipeline, ..MeshSizes::of(settings.ranks) });
    mesh.map_or(1, |mesh| mesh.size(Axis::Data))
}

fn batch(value: &Value, settings: &Settings) -> Made {
    let local = settings.number("training.batch_size").or_else(|| number(value)).ok_or("it is not a number")?;
    let (global, ranks) = (settings.number("training.global_batch_size").unwrap_or(-1.0), data_ranks(settings));
    let global = match global > 0.0 {
        true => set("train.global_batch_size", shown(global)),
        false => set_as(
            "train.global_batch_size",
            shown(local * ranks as f64),
            format!("local_batch_size {local} x {ranks} data-parallel ranks"),
        ),
    };
    Ok(vec![set("train.micro_batch_size", shown(local)), global])
}

/// Without ranks that divide state there are no groups of such ranks.
fn replicate(value: &Value, settings: &Settings) -> Made {
    match (number(value), settings.number("parallelism.data_parallel_shard_degree")) {
        (Some(1.0), _) | (_, Some(1.0)) => none(),
        _ => one("parallel.optimizer_instances", text(value)),
    }
}

/// By default torchtitan gathers blocks again in backward, but not in a pipeline.
fn shard(value: &Value, settings: &Settings) -> Made {
    if number(value) == Some(1.0) {
        return none();
    }
    let in_a_pipeline = settings.number("parallelism.pipeline_parallel_degree").unwrap_or(1.0) > 1.0;
    let divided = match settings.text("parallelism.fsdp_reshard_after_forward").unwrap_or("default") {
        "never" => "optim_grads",
        "default" if in_a_pipeline => "optim_grads",
        _ => "optim_grads_params",
    };
    let how = format!("data_parallel_shard_degree {}", text(value));
    Ok(vec![set_as("parallel.data_parallel_sharding", divided, how)])
}

/// Without expert ranks torchtitan takes the tensor-parallel ranks, whatever is set.
fn expert_tensor(value: &Value, settings: &Settings) -> Made {
    let degree = |name: &str| settings.number(&format!("parallelism.{name}_parallel_degree")).unwrap_or(1.0);
    match number(value) {
        Some(size) if degree("expert") > 1.0 && size != degree("tensor") => one("parallel.expert_tensor", shown(size)),
        _ => none(),
    }
}

fn rotate(value: &Value, settings: &Settings) -> Made {
    if settings.number("parallelism.context_parallel_degree").unwrap_or(1.0) <= 1.0 {
        return none();
    }
    match text(value).as_str() {
        "allgather" => one("parallel.context_transfers", "keys"),
        "alltoall" => one("parallel.context_transfers", "ring"),
        other => Err(format!("keys are gathered or travel round, not {other}")),
    }
}

fn schedule(value: &Value, settings: &Settings) -> Made {
    if settings.number("parallelism.pipeline_parallel_degree").unwrap_or(1.0) <= 1.0 {
        return none();
    }
    match text(value).to_lowercase().as_str() {
        "1f1b" => one("parallel.pipeline_schedule", "1f1b"),
        "interleaved1f1b" => Ok(vec![set_as("parallel.virtual_pipeline", "2", "chunks of a stage, interleaved")]),
        other => Err(format!("the orders of a pipeline are 1f1b, interleaved 1f1b and zero_bubble, not {other}")),
    }
}

fn checkpoints(value: &Value, settings: &Settings) -> Made {
    let enabled = ["checkpoint.enable", "checkpoint.enable_checkpoint"].iter().any(|name| settings.is_true(name));
    if enabled { one("checkpoint.dir", text(value)) } else { none() }
}

fn load_step(value: &Value, _: &Settings) -> Made {
    match number(value) {
        Some(step) if step >= 0.0 => Err("a checkpoint is named by its folder: set checkpoint.resume".into()),
        _ => none(),
    }
}

fn validation(value: &Value, settings: &Settings) -> Made {
    match settings.is_true("validation.enable") {
        true => one("train.eval_interval", text(value)),
        false => Ok(vec![set_as("train.eval_interval", "0", "validation is off")]),
    }
}

fn optimizer(value: &Value, _: &Settings) -> Made {
    match text(value).as_str() {
        "AdamW" => one("optimizer.kind", "adamw"),
        other => Err(format!("the optimizers are adamw, muon, lion and sgd, not {other}")),
    }
}

fn format(value: &Value, _: &Settings) -> Made {
    match text(value).as_str() {
        "bfloat16" => one("precision.compute", "bf16"),
        "float32" => one("precision.compute", "f32"),
        other => Err(format!("layers compute in bf16, tf32 or f32, not in {other}")),
    }
}

fn reduce(value: &Value, _: &Settings) -> Made {
    match text(value).as_str() {
        "float32" => one("parallel.grad_reduce", "f32"),
        "bfloat16" => one("parallel.grad_reduce", "bf16"),
        other => Err(format!("gradients are summed in f32 or bf16, not in {other}")),
    }
}

fn recompute(value: &Value, _: &Settings) -> Made {
    match text(value).as_str() {
        mode @ ("none" | "full" | "selective") => one("recompute.granularity", mode),
        other => Err(format!("recompute is none, selective or full, not {other}")),
    }
}
