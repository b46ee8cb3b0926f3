//! The settings of torchtitan's job configuration, with its defaults (github.com/pytorch/torchtitan,
//! `torchtitan/config/job_config.py`, where a job is a TOML file).

use toml::Value;

use super::settings::Here::{Becomes, Same, With, Without};
use super::settings::{
    KERNELS, Made, NOT_HERE, OUT, OtherName, Settings, is_true, name, none, number, one, set, set_as, shown, text,
};

const WEIGHTS: &str = "state of the optimizer is divided over ranks, weights are not";
const EIGHT_BITS: &str = "--fp8-format hybrid with --fp8-recipe";
const LOGS: &str = "metrics.jsonl has a line for every step";
const EXPORT: &str = "a checkpoint always holds weights and optimizer; `trainer convert` writes weights alone";
const NO_SERVICE: &str = "a run is restarted as a whole, from its newest checkpoint";

pub(super) const NAMES: &[OtherName] = &[
    name("job.config_file", "", Without("a configuration has one flag", "--config")),
    name("job.dump_folder", "", Without("checkpoints and logs have a folder each", "--save and --log-dir")),
    name("job.*", "", Without("the log names the run by its folder", OUT)),
    name("profiling.enable_profiling", "", Becomes("--trace trace.json", trace)),
    name(
        "profiling.*",
        "",
        Without("a timeline has the kernels of a few steps", "--trace, --trace-after and --trace-steps"),
    ),
    name("metrics.log_freq", "10", Same("logging.interval")),
    name("metrics.enable_tensorboard", "", Same("logging.tensorboard")),
    name("metrics.enable_wandb", "", Same("logging.wandb")),
    name("metrics.*", "", Without(LOGS, OUT)),
    name("model.name", "", Becomes("--preset", preset)),
    name("model.flavor", "", With("model.name", "--preset")),
    name("model.hf_assets_path", "", Same("data.tokenizer")),
    name("model.tokenizer_path", "", Same("data.tokenizer")),
    name("model.converters", "", Becomes(EIGHT_BITS, converters)),
    name("model.norm_type", "", Same("model.norm")),
    name("model.print_after_conversion", "", Without("the plan is always printed", OUT)),
    name("optimizer.name", "\"AdamW\"", Becomes("--optimizer", optimizer)),
    name("optimizer.lr", "8e-4", Same("optimizer.lr")),
    name("optimizer.beta1", "0.9", Becomes("--betas BETA1 BETA2", betas)),
    name("optimizer.beta2", "0.95", With("optimizer.beta1", "--betas BETA1 BETA2")),
    name("optimizer.eps", "1e-8", Same("optimizer.eps")),
    name("optimizer.weight_decay", "0.1", Same("optimizer.weight_decay")),
    name("optimizer.implementation", "", Without(KERNELS, OUT)),
    name(
        "optimizer.early_step_in_backward",
        "",
        Without("gradients of all microbatches are summed before the update", OUT),
    ),
    name("lr_scheduler.warmup_steps", "200", Same("optimizer.warmup_steps")),
    name(
        "lr_scheduler.decay_ratio",
        "",
        With("lr_scheduler.decay_type", "--lr-decay-style wsd, and --lr-decay-steps with decay_ratio x steps"),
    ),
    name("lr_scheduler.decay_type", "\"linear\"", Becomes("--lr-decay-style", decay)),
    name("lr_scheduler.min_lr_factor", "0.0", Becomes("--min-lr with lr x min_lr_factor", floor)),
    name("lr_scheduler.lr_min", "", Without("it was a factor of lr", "--min-lr with lr x lr_min")),
    name("training.dataset", "", Becomes("--data-path with files of text, JSON lines, Parquet or tokens", dataset)),
    name("training.dataset_path", "", Same("data.path")),
    name("training.local_batch_size", "8", Becomes("--micro-batch-size", batch)),
    name("training.batch_size", "", With("training.local_batch_size", "--micro-batch-size")),
    name("training.global_batch_size", "-1", With("training.local_batch_size", "--global-batch-size")),
    name("training.seq_len", "2048", Same("model.seq_length")),
    name("training.max_norm", "1.0", Same("optimizer.clip")),
    name("training.steps", "10000", Same("train.steps")),
    name("training.mixed_precision_param", "\"bfloat16\"", Becomes("--bf16, or --compute f32", format)),
    name("training.mixed_precision_reduce", "\"float32\"", Becomes("--grad-reduce f32 or bf16", reduce)),
    name("training.dtype", "", Without("master weights are f32", "leave it out; --compute is the format of layers")),
    name("training.seed", "", Same("train.seed")),
    name("training.deterministic", "", Same("train.deterministic")),
    name("training.compile", "", Becomes("--enable-cuda-graph", graphs)),
    name("training.enable_cpu_offload", "", Without("weights and state of the optimizer stay on the GPU", NOT_HERE)),
    name("training.gc_freq", "", Without("there is no garbage collector", OUT)),
    name("training.gc_debug", "", Without("there is no garbage collector", OUT)),
    name("debug.seed", "", Same("train.seed")),
    name("debug.deterministic", "", Same("train.deterministic")),
    name(
        "parallelism.data_parallel_replicate_degree",
        "",
        Becomes("leave it out: ranks that share no layers divide the batch", replicate),
    ),
    name("parallelism.data_parallel_shard_degree", "-1", Becomes("--use-distributed-optimizer", shard)),
    name("parallelism.tensor_parallel_degree", "1", Same("parallel.tensor")),
    name("parallelism.pipeline_parallel_degree", "1", Same("parallel.pipeline")),
    name(
        "parallelism.pipeline_parallel_schedule",
        "",
        Becomes("--pipeline-schedule, and --virtual-pipeline-model-parallel-size for chunks", schedule),
    ),
    name(
        "parallelism.pipeline_parallel_microbatch_size",
        "",
        Without("microbatches have one size, in a pipeline too", "--micro-batch-size"),
    ),
    name(
        "parallelism.pipeline_parallel_layers_per_stage",
        "",
        Without("the option has the blocks of each stage", "--pipeline-layers"),
    ),
    name(
        "parallelism.context_parallel_degree",
        "",
        Becomes("--tensor-model-parallel-size with --sequence-parallel", only_one),
    ),
    name(
        "parallelism.expert_parallel_degree",
        "",
        Becomes("--tensor-model-parallel-size, which divides each expert", only_one),
    ),
    name("parallelism.fsdp_reshard_after_forward", "", Without(WEIGHTS, OUT)),
    name("parallelism.disable_loss_parallel", "", Without("ranks that share layers always divide the vocabulary", OUT)),
    name(
        "parallelism.enable_async_tensor_parallel",
        "",
        Without("transfers run beside products wherever they can", OUT),
    ),
    name("parallelism.enable_compiled_autograd", "", Without("there is no autograd", OUT)),
    name("parallelism.*", "", Without("ranks are divided into tensor, pipeline and data parallelism", OUT)),
    name("checkpoint.enable", "", With("checkpoint.folder", "--save")),
    name("checkpoint.enable_checkpoint", "", With("checkpoint.folder", "--save")),
    name("checkpoint.folder", "\"checkpoint\"", Becomes("--save", checkpoints)),
    name("checkpoint.interval", "500", Same("checkpoint.interval")),
    name("checkpoint.keep_latest_k", "10", Same("checkpoint.keep")),
    name("checkpoint.async_mode", "", Becomes("--async-save", async_save)),
    name("checkpoint.load_step", "", Becomes("--resume with the folder of the step", load_step)),
    name("checkpoint.initial_load_path", "", Same("model.init_from")),
    name("checkpoint.initial_load_*", "", Without("the folder tells its form itself", "--init-from")),
    name("checkpoint.last_save_*", "", Without(EXPORT, OUT)),
    name("checkpoint.export_dtype", "", Without(EXPORT, OUT)),
    name(
        "checkpoint.exclude_from_loading",
        "",
        Without("resuming restores all of a checkpoint's state", "--init-from for weights alone"),
    ),
    name("checkpoint.create_seed_checkpoint", "", Without("weights start the same on every layout", OUT)),
    name(
        "checkpoint.enable_first_step_checkpoint",
        "",
        Without("checkpoints are saved at an interval", "--save-interval"),
    ),
    name("checkpoint.*", "", Without("a checkpoint has one form", OUT)),
    name(
        "activation_checkpoint.mode",
        "\"selective\"",
        Becomes("--recompute-granularity none, selective or full", recompute),
    ),
    name(
        "activation_checkpoint.*",
        "",
        Without("selective recompute runs norms and activations again", "--recompute-granularity"),
    ),
    name("compile.enable", "", Becomes("--enable-cuda-graph", graphs)),
    name("compile.*", "", Without("nothing is compiled; layers are captured", "--enable-cuda-graph")),
    name("float8.*", "", Without("8-bit products have options of their own", EIGHT_BITS)),
    name("quantize.*", "", Without("8-bit products have options of their own", EIGHT_BITS)),
    name("mx.*", "", Without("8-bit products have options of their own", EIGHT_BITS)),
    name("comm.train_timeout_seconds", "", Same("parallel.distributed_timeout_seconds")),
    name("comm.init_timeout_seconds", "", Same("parallel.setup_timeout_seconds")),
    name("comm.*", "", Without("a run that stands still names the rank at fault", OUT)),
    name("validation.enable", "", With("validation.freq", "--eval-interval, 0 for none")),
    name("validation.freq", "10", Becomes("--eval-interval", validation)),
    name("validation.steps", "", Same("train.eval_steps")),
    name("validation.dataset_path", "", Same("data.validation_path")),
    name("validation.dataset", "", Becomes("--validation-path", dataset)),
    name("validation.*", "", Without("validation has the sizes of training", OUT)),
    name("fault_tolerance.*", "", Without(NO_SERVICE, "trainer supervise")),
    name("memory_estimation.*", "", Without("the plan has the memory", "trainer plan, or --dry-run")),
    name("experimental.*", "", Without("there is no code of users to import", NOT_HERE)),
];

fn trace(value: &Value, _: &Settings) -> Made {
    if is_true(value) { one("logging.trace", "trace.json") } else { none() }
}

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

fn optimizer(value: &Value, _: &Settings) -> Made {
    match text(value).as_str() {
        "AdamW" => one("optimizer.kind", "adamw"),
        other => Err(format!("the optimizers are adamw, muon, lion and sgd, not {other}")),
    }
}

fn betas(_: &Value, settings: &Settings) -> Made {
    let [first, second] = ["optimizer.beta1", "optimizer.beta2"].map(|name| settings.number(name).unwrap_or(0.0));
    Ok(vec![set_as("optimizer.betas", format!("[{first:?}, {second:?}]"), "beta1 and beta2")])
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
    let degrees = ["data_parallel_replicate", "data_parallel_shard", "tensor_parallel", "pipeline_parallel"];
    let number = |name: &str| settings.number(&format!("parallelism.{name}_degree")).unwrap_or(1.0).max(1.0);
    degrees.into_iter().map(number).product::<f64>().min(f64::from(1 << 17)) as usize
}

/// The ranks that divide the batch.
fn data_ranks(settings: &Settings) -> f64 {
    let degree = |name: &str| settings.number(name).unwrap_or(1.0).max(1.0);
    let shared = degree("parallelism.tensor_parallel_degree") * degree("parallelism.pipeline_parallel_degree");
    (settings.ranks as f64 / shared).max(1.0)
}

fn batch(value: &Value, settings: &Settings) -> Made {
    let local = settings.number("training.batch_size").or_else(|| number(value)).ok_or("it is not a number")?;
    let (global, ranks) = (settings.number("training.global_batch_size").unwrap_or(-1.0), data_ranks(settings));
    let global = match global > 0.0 {
        true => set("train.global_batch_size", shown(global)),
        false => set_as(
            "train.global_batch_size",
            shown(local * ranks),
            format!("local_batch_size {local} x {ranks} data-parallel ranks"),
        ),
    };
    Ok(vec![set("train.micro_batch_size", shown(local)), global])
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

fn graphs(value: &Value, _: &Settings) -> Made {
    let how = if is_true(value) { "in place of torch.compile: nothing is compiled here" } else { "" };
    Ok(vec![set_as("cuda_graph.enable", is_true(value).to_string(), how)])
}

fn replicate(value: &Value, settings: &Settings) -> Made {
    match number(value) {
        Some(1.0) => none(),
        _ => Err(format!("all {} ranks that share no layers divide the batch", data_ranks(settings))),
    }
}

fn shard(value: &Value, _: &Settings) -> Made {
    if number(value) == Some(1.0) {
        return none();
    }
    let how = format!("data_parallel_shard_degree {}: {WEIGHTS}", text(value));
    Ok(vec![set_as("parallel.distributed_optimizer", "true", how)])
}

fn only_one(value: &Value, _: &Settings) -> Made {
    match number(value) {
        Some(1.0) => none(),
        _ => Err("ranks are divided into tensor, pipeline and data parallelism".into()),
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

fn recompute(value: &Value, _: &Settings) -> Made {
    match text(value).as_str() {
        mode @ ("none" | "full" | "selective") => one("recompute.granularity", mode),
        other => Err(format!("recompute is none, selective or full, not {other}")),
    }
}

fn validation(value: &Value, settings: &Settings) -> Made {
    match settings.is_true("validation.enable") {
        true => one("train.eval_interval", text(value)),
        false => Ok(vec![set_as("train.eval_interval", "0", "validation is off")]),
    }
}
