//! The settings of torchtitan's job configuration, with its defaults (github.com/pytorch/torchtitan,
//! `torchtitan/config/job_config.py`, where a job is a TOML file).

use parallel::{Axis, Mesh, MeshSizes};
use toml::Value;

use super::settings::{
    KERNELS, Made, NOT_HERE, OUT, OtherName, Settings, becomes, betas_of, graphs, if_true, none, number, one, same,
    set, set_as, shown, text, with, without,
};

const EIGHT_BITS: &str = "--fp8-format hybrid with --fp8-recipe";
const LOGS: &str = "metrics.jsonl has a line for every step";
const EXPORT: &str = "a checkpoint always holds weights and optimizer; `trainer convert` writes weights alone";
const NO_SERVICE: &str = "a run is restarted as a whole, from its newest checkpoint";

pub(super) const NAMES: &[OtherName] = &[
    without("job.config_file", "a configuration has one flag", "--config"),
    without("job.dump_folder", "checkpoints and logs have a folder each", "--save and --log-dir"),
    without("job.*", "the log names the run by its folder", OUT),
    if_true("profiling.enable_profiling", "--trace trace.json", ("logging.trace", "trace.json")),
    without("profiling.*", "a timeline has the kernels of a few steps", "--trace, --trace-after and --trace-steps"),
    same("metrics.log_freq", "logging.interval").by_default("10"),
    same("metrics.enable_tensorboard", "logging.tensorboard"),
    same("metrics.enable_wandb", "logging.wandb"),
    without("metrics.*", LOGS, OUT),
    becomes("model.name", "--preset", preset),
    with("model.flavor", "model.name", "--preset"),
    same("model.hf_assets_path", "data.tokenizer"),
    same("model.tokenizer_path", "data.tokenizer"),
    becomes("model.converters", EIGHT_BITS, converters),
    same("model.norm_type", "model.norm"),
    without("model.print_after_conversion", "the plan is always printed", OUT),
    becomes("optimizer.name", "--optimizer", optimizer).by_default("\"AdamW\""),
    same("optimizer.lr", "optimizer.lr").by_default("8e-4"),
    becomes("optimizer.beta1", "--betas BETA1 BETA2", betas).by_default("0.9"),
    with("optimizer.beta2", "optimizer.beta1", "--betas BETA1 BETA2").by_default("0.95"),
    same("optimizer.eps", "optimizer.eps").by_default("1e-8"),
    same("optimizer.weight_decay", "optimizer.weight_decay").by_default("0.1"),
    without("optimizer.implementation", KERNELS, OUT),
    without("optimizer.early_step_in_backward", "gradients of all microbatches are summed before the update", OUT),
    same("lr_scheduler.warmup_steps", "optimizer.warmup_steps").by_default("200"),
    with(
        "lr_scheduler.decay_ratio",
        "lr_scheduler.decay_type",
        "--lr-decay-style wsd, and --lr-decay-steps with decay_ratio x steps",
    ),
    becomes("lr_scheduler.decay_type", "--lr-decay-style", decay).by_default("\"linear\""),
    becomes("lr_scheduler.min_lr_factor", "--min-lr with lr x min_lr_factor", floor).by_default("0.0"),
    without("lr_scheduler.lr_min", "it was a factor of lr", "--min-lr with lr x lr_min"),
    becomes("training.dataset", "--data-path with files of text, JSON lines, Parquet or tokens", dataset),
    same("training.dataset_path", "data.path"),
    becomes("training.local_batch_size", "--micro-batch-size", batch).by_default("8"),
    with("training.batch_size", "training.local_batch_size", "--micro-batch-size"),
    with("training.global_batch_size", "training.local_batch_size", "--global-batch-size").by_default("-1"),
    same("training.seq_len", "model.seq_length").by_default("2048"),
    same("training.max_norm", "optimizer.clip").by_default("1.0"),
    same("training.steps", "train.steps").by_default("10000"),
    becomes("training.mixed_precision_param", "--bf16, or --compute f32", format).by_default("\"bfloat16\""),
    becomes("training.mixed_precision_reduce", "--grad-reduce f32 or bf16", reduce).by_default("\"float32\""),
    without("training.dtype", "master weights are f32", "leave it out; --compute is the format of layers"),
    same("training.seed", "train.seed"),
    same("training.deterministic", "train.deterministic"),
    becomes("training.compile", "--enable-cuda-graph", graphs),
    without("training.enable_cpu_offload", "weights and state of the optimizer stay on the GPU", NOT_HERE),
    without("training.gc_freq", "there is no garbage collector", OUT),
    without("training.gc_debug", "there is no garbage collector", OUT),
    same("debug.seed", "train.seed"),
    same("debug.deterministic", "train.deterministic"),
    becomes("parallelism.data_parallel_replicate_degree", "--num-distributed-optimizer-instances", replicate),
    becomes(
        "parallelism.data_parallel_shard_degree",
        "--data-parallel-sharding-strategy optim_grads_params, or optim_grads where blocks are kept between forward and backward",
        shard,
    )
    .by_default("-1"),
    same("parallelism.tensor_parallel_degree", "parallel.tensor").by_default("1"),
    same("parallelism.pipeline_parallel_degree", "parallel.pipeline").by_default("1"),
    becomes(
        "parallelism.pipeline_parallel_schedule",
        "--pipeline-schedule, and --virtual-pipeline-model-parallel-size for chunks",
        schedule,
    ),
    without(
        "parallelism.pipeline_parallel_microbatch_size",
        "microbatches have one size, in a pipeline too",
        "--micro-batch-size",
    ),
    without(
        "parallelism.pipeline_parallel_layers_per_stage",
        "the option has the blocks of each stage",
        "--pipeline-layers",
    ),
    same("parallelism.context_parallel_degree", "parallel.context").by_default("1"),
    becomes("parallelism.context_parallel_rotate_method", "--context-parallel-transfers", rotate)
        .by_default("\"allgather\""),
    without(
        "parallelism.context_parallel_load_balancer",
        "a rank has a part of each sequence from its beginning, and the mirrored one from its end",
        OUT,
    ),
    same("parallelism.expert_parallel_degree", "parallel.expert").by_default("1"),
    becomes("parallelism.expert_tensor_parallel_degree", "--expert-tensor-parallel-size", expert_tensor)
        .by_default("1"),
    with(
        "parallelism.fsdp_reshard_after_forward",
        "parallelism.data_parallel_shard_degree",
        "--data-parallel-sharding-strategy optim_grads for never",
    ),
    without("parallelism.disable_loss_parallel", "ranks that share layers always divide the vocabulary", OUT),
    without("parallelism.enable_async_tensor_parallel", "transfers run beside products wherever they can", OUT),
    without("parallelism.enable_compiled_autograd", "there is no autograd", OUT),
    without("parallelism.*", "ranks are divided into tensor, context, pipeline and data parallelism", OUT),
    with("checkpoint.enable", "checkpoint.folder", "--save"),
    with("checkpoint.enable_checkpoint", "checkpoint.folder", "--save"),
    becomes("checkpoint.folder", "--save", checkpoints).by_default("\"checkpoint\""),
    same("checkpoint.interval", "checkpoint.interval").by_default("500"),
    same("checkpoint.keep_latest_k", "checkpoint.keep").by_default("10"),
    becomes("checkpoint.async_mode", "--async-save", async_save),
    becomes("checkpoint.load_step", "--resume with the folder of the step", load_step),
    same("checkpoint.initial_load_path", "model.init_from"),
    without("checkpoint.initial_load_*", "the folder tells its form itself", "--init-from"),
    without("checkpoint.last_save_*", EXPORT, OUT),
    without("checkpoint.export_dtype", EXPORT, OUT),
    without(
        "checkpoint.exclude_from_loading",
        "resuming restores all of a checkpoint's state",
        "--init-from for weights alone",
    ),
    without("checkpoint.create_seed_checkpoint", "weights start the same on every layout", OUT),
    without("checkpoint.enable_first_step_checkpoint", "checkpoints are saved at an interval", "--save-interval"),
    without("checkpoint.*", "a checkpoint has one form", OUT),
    becomes("activation_checkpoint.mode", "--recompute-granularity none, selective or full", recompute)
        .by_default("\"selective\""),
    without(
        "activation_checkpoint.*",
        "selective recompute runs norms and activations again",
        "--recompute-granularity",
    ),
    becomes("compile.enable", "--enable-cuda-graph", graphs),
    without("compile.*", "nothing is compiled; layers are captured", "--enable-cuda-graph"),
    without("float8.*", "8-bit products have options of their own", EIGHT_BITS),
    without("quantize.*", "8-bit products have options of their own", EIGHT_BITS),
    without("mx.*", "8-bit products have options of their own", EIGHT_BITS),
    same("comm.train_timeout_seconds", "parallel.distributed_timeout_seconds"),
    same("comm.init_timeout_seconds", "parallel.setup_timeout_seconds"),
    without("comm.*", "a run that stands still names the rank at fault", OUT),
    with("validation.enable", "validation.freq", "--eval-interval, 0 for none"),
    becomes("validation.freq", "--eval-interval", validation).by_default("10"),
    same("validation.steps", "train.eval_steps"),
    same("validation.dataset_path", "data.validation_path"),
    becomes("validation.dataset", "--validation-path", dataset),
    without("validation.*", "validation has the sizes of training", OUT),
    without("fault_tolerance.*", NO_SERVICE, "trainer supervise"),
    without("memory_estimation.*", "the plan has the memory", "trainer plan, or --dry-run"),
    without("experimental.*", "there is no code of users to import", NOT_HERE),
];

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

/// The ranks of a job, as far as its degrees say it.
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

/// Ranks that divide nothing have no groups that divide it.
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
