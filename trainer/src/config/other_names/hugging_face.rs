//! The settings of Hugging Face's `TrainingArguments` with its defaults, and of TRL's `SFTConfig`, `DPOConfig`, `KTOConfig`,
//! `ModelConfig` and `ScriptArguments`, with PEFT's LoRA (huggingface.co/docs/transformers, `main_classes/trainer`; huggingface.co/docs/trl).

use toml::Value;

use super::settings::{
    KERNELS, Made, NOT_HERE, OUT, OtherName, Settings, becomes, betas_of, graphs, if_true, is_true, none, number, one,
    same, set, set_as, shown, text, with, without,
};
use super::trl::{
    PAIR_LOSS, PLAIN_LOSS, adapter_dropout, alpha, answer_weight, beta, length, pair_loss, rank, smoothing, targets,
};

const BATCH: &str = "--micro-batch-size, and --global-batch-size with its product with gradient_accumulation_steps and the number of ranks";
const SHARDING: &str =
    "--data-parallel-sharding-strategy optim, optim_grads or optim_grads_params (ZeRO stages 1 to 3)";
const UNITS: &str = "ranks divide the blocks one by one, in one way";
const REDUCED: &str = "gradients are always reduced in buckets, during backward";
const NOWHERE: &str = "nothing is sent anywhere";
const UPLOAD: &str = "trainer convert --to hf, then hf upload";
const LOADER: &str = "one thread reads batches ahead, and every sample has all its columns";
const COMPILED: &str = "nothing is compiled; layers are captured";
const ONE_LORA: &str = "adapters are LoRA, scaled by lora_alpha / lora_rank";
const BY_LOSS: &str = "the best checkpoint is the one with the lowest validation loss";
const ONE_FORM: &str = "checkpoints are safetensors, with weights and optimizer";
const STEPS: &str = "logs, checkpoints and evaluations come after numbers of steps";
const LOGS: &str = "the log has a folder, and one form";
const HUB: &str = "data are files or folders of this machine";
const DOWNLOAD: &str = "--data-path with a folder; hf download NAME --repo-type dataset --local-dir FOLDER gets one";
const SFT: &str = "--sft: the loss is on the answers of the assistant alone";
const REFERENCE: &str = "the reference is the model that training starts from, and its log-probabilities are computed before the first step, or with adapters in each (--dpo-references step)";
const EVALUATES: &str = "a training run evaluates at an interval";

pub(super) const NAMES: &[OtherName] = &[
    same("output_dir", "checkpoint.dir"),
    without("overwrite_output_dir", "a run never overwrites another's checkpoints", "--save with another folder"),
    becomes("per_device_train_batch_size", BATCH, batch).by_default("8"),
    with("gradient_accumulation_steps", "per_device_train_batch_size", BATCH).by_default("1"),
    without(
        "per_device_eval_batch_size",
        "evaluations have the microbatches of training",
        "leave it out; --eval-iters is their number of batches",
    ),
    without("eval_accumulation_steps", "an evaluation keeps a sum of losses", OUT),
    without(
        "auto_find_batch_size",
        "memory is planned before the first step",
        "--micro-batch-size; --dry-run shows the memory",
    ),
    same("learning_rate", "optimizer.lr").by_default("5e-5"),
    same("weight_decay", "optimizer.weight_decay").by_default("0.0"),
    becomes("adam_beta1", "--betas BETA1 BETA2", betas).by_default("0.9"),
    with("adam_beta2", "adam_beta1", "--betas BETA1 BETA2").by_default("0.999"),
    same("adam_epsilon", "optimizer.eps").by_default("1e-8"),
    same("max_grad_norm", "optimizer.clip").by_default("1.0"),
    becomes("num_train_epochs", "--epochs", epochs).by_default("3.0"),
    becomes("max_steps", "--steps", steps).by_default("-1"),
    becomes("lr_scheduler_type", "--lr-decay-style constant, linear, cosine, inverse_sqrt or wsd", decay)
        .by_default("\"linear\""),
    with("lr_scheduler_kwargs", "lr_scheduler_type", "--min-lr; --lr-decay-steps is how long wsd's decay takes"),
    becomes("warmup_ratio", "--lr-warmup-fraction", warmup_share).by_default("0.0"),
    becomes("warmup_steps", "--lr-warmup-steps", warmup).by_default("0"),
    becomes("optim", "--optimizer adamw, muon, lion or sgd", optimizer).by_default("\"adamw_torch\""),
    without("optim_args", "an optimizer has options of its own", "--betas, --eps and --momentum"),
    without("optim_target_modules", "an optimizer updates all parameters that are not frozen", "--freeze"),
    without("adafactor", "there is no Adafactor", "--optimizer adamw, muon, lion or sgd"),
    if_true("bf16", "--bf16", ("precision.compute", "bf16")),
    without("fp16", "layers compute in bf16, tf32 or f32", "--bf16, or leave it out for f32"),
    becomes("tf32", "--compute tf32", tf32),
    without("bf16_full_eval", "evaluations have the format of training", OUT),
    without("fp16_full_eval", "evaluations have the format of training", OUT),
    without("fp16_opt_level", "layers compute in bf16, tf32 or f32", OUT),
    without("fp16_backend", "layers compute in bf16, tf32 or f32", OUT),
    without("half_precision_backend", KERNELS, OUT),
    becomes("dtype", "--bf16, or --compute f32", dtype),
    becomes("torch_dtype", "--bf16, or --compute f32", dtype),
    if_true("gradient_checkpointing", "--recompute-granularity full", ("recompute.granularity", "full")),
    without("gradient_checkpointing_kwargs", "full recompute has a number of blocks", "--recompute-num-layers"),
    same("logging_steps", "logging.interval").by_default("500"),
    same("logging_dir", "logging.dir"),
    without("logging_strategy", STEPS, "--log-interval"),
    without("logging_first_step", "the first step always has a line", OUT),
    without("logging_nan_inf_filter", "a loss that is not finite ends the run", OUT),
    without("log_level", LOGS, "--log with a level"),
    without("log_level_replica", LOGS, "--log with a level"),
    without("log_on_each_node", LOGS, OUT),
    without("disable_tqdm", "progress is shown on a terminal alone", OUT),
    without("run_name", "a run is named by the folder of its log", "--log-dir, or --wandb with WANDB_NAME set"),
    becomes("report_to", "--tensorboard or --wandb", report),
    becomes("save_strategy", "--save-interval, 0 for one checkpoint at the end", save_strategy),
    becomes("save_steps", "--save-interval", save_steps).by_default("500"),
    same("save_total_limit", "checkpoint.keep").by_default("0"),
    without("save_safetensors", ONE_FORM, OUT),
    without("save_on_each_node", ONE_FORM, OUT),
    without("save_only_model", ONE_FORM, OUT),
    with("eval_strategy", "eval_steps", "--eval-interval, 0 for none"),
    with("evaluation_strategy", "eval_steps", "--eval-interval, 0 for none"),
    becomes("eval_steps", "--eval-interval; --eval-iters is the number of batches of an evaluation", evaluations)
        .by_default("0"),
    without("eval_on_start", EVALUATES, "--eval-interval"),
    without("eval_delay", EVALUATES, "--eval-interval"),
    without("eval_do_concat_batches", EVALUATES, OUT),
    without("eval_use_gather_object", EVALUATES, OUT),
    without("do_train", "a run without a subcommand trains", OUT),
    without("do_eval", EVALUATES, "--eval-interval, or trainer eval for a checkpoint"),
    without("do_predict", EVALUATES, "trainer sample, or trainer eval"),
    without("prediction_loss_only", "an evaluation has the loss", OUT),
    if_true(
        "load_best_model_at_end",
        "--save-best; its name is best, in the folder of --save",
        ("checkpoint.save_best", "true"),
    ),
    without("metric_for_best_model", BY_LOSS, NOT_HERE),
    without("greater_is_better", BY_LOSS, NOT_HERE),
    same("early_stopping_patience", "train.early_stop_patience"),
    without("early_stopping_threshold", "any fall of the validation loss counts", "--early-stop-patience"),
    same("seed", "train.seed").by_default("42"),
    same("data_seed", "data.seed"),
    same("full_determinism", "train.deterministic"),
    if_true("use_cpu", "--device host", ("train.device", "host")),
    if_true("no_cuda", "--device host", ("train.device", "host")),
    becomes("resume_from_checkpoint", "start the same command again, or --resume with a checkpoint", resume),
    without("ignore_data_skip", "a resumed run continues at its place in the data", OUT),
    without("restore_callback_states_from_checkpoint", "there are no callbacks", OUT),
    becomes("model_name_or_path", "--init-from with a folder; hf download MODEL --local-dir FOLDER gets one", model),
    without("model_revision", "weights are read from a folder", "--init-from"),
    without("trust_remote_code", "no code comes with a model", OUT),
    without("attn_implementation", "attention is always one operation", OUT),
    same("tokenizer_name", "data.tokenizer"),
    without("dataset_name", HUB, DOWNLOAD),
    without("dataset_config", HUB, DOWNLOAD),
    without("dataset_config_name", HUB, DOWNLOAD),
    without("dataset_train_split", HUB, "--data-path with the files of the split"),
    without("dataset_test_split", HUB, "--validation-path with the files of the split"),
    without("dataset_streaming", "data are read as they are needed", OUT),
    same("dataset_text_field", "data.text_key"),
    without("dataset_num_proc", LOADER, OUT),
    without("dataset_kwargs", LOADER, OUT),
    same("train_file", "data.path"),
    same("validation_file", "data.validation_path"),
    becomes("validation_split_percentage", "--split with 1 - VALUE / 100", split),
    same("max_seq_length", "model.seq_length"),
    becomes("max_length", "--seq-length; with --dpo of twice as many, for both answers of a pair", length),
    becomes("packing", "--sft-packing with the most conversations of a sample; text is always packed", packing),
    with("packing_strategy", "packing", "--sft-packing"),
    with("eval_packing", "packing", "--sft-packing"),
    without("padding_free", "samples of a step have the same number of tokens", "--sft-packing"),
    without("pad_token", "the token that ends a text fills samples, and has no loss", OUT),
    without("pad_to_multiple_of", "samples have one of a few lengths", "--seq-length-buckets"),
    becomes("completion_only_loss", SFT, answers),
    becomes("assistant_only_loss", SFT, answers),
    same("chat_template_path", "data.chat_template"),
    same("eos_token", "data.end_of_text"),
    with("use_peft", "lora_r", "--lora-rank"),
    becomes("lora_r", "--lora-rank", rank).by_default("16"),
    becomes("lora_alpha", "--lora-alpha", alpha).by_default("32"),
    becomes("lora_dropout", "--lora-dropout", adapter_dropout).by_default("0.05"),
    becomes("lora_target_modules", "--lora-target-modules", targets),
    without("lora_modules_to_save", "with adapters all other parameters keep their values", NOT_HERE),
    without("lora_task_type", ONE_LORA, OUT),
    without("use_rslora", ONE_LORA, "--lora-alpha, lora_alpha x the root of lora_r"),
    without("use_dora", ONE_LORA, NOT_HERE),
    if_true("load_in_4bit", "--frozen-weights nf4", ("precision.frozen_weights", "nf4")),
    becomes("bnb_4bit_quant_type", "--frozen-weights nf4", quant_type),
    becomes("load_in_8bit", "--frozen-weights int8", in_8_bits),
    without("use_bnb_nested_quant", "scales of blocks are bf16, without a second scale", OUT),
    without("bnb_4bit_use_double_quant", "scales of blocks are bf16, without a second scale", OUT),
    without("bnb_*", "values of codes are made in the type of --compute", OUT),
    without("label_smoothing_factor", PLAIN_LOSS, NOT_HERE),
    without("neftune_noise_alpha", "embeddings have no noise", "--hidden-dropout"),
    without("average_tokens_across_devices", "the loss is the mean over the tokens of all ranks", OUT),
    becomes("beta", "--dpo or --kto with --dpo-beta", beta),
    becomes("loss_type", "--dpo with --dpo-loss-type sigmoid or ipo, or --kto", pair_loss),
    becomes("desirable_weight", "--kto with --kto-desirable-weight", |value, settings| {
        answer_weight("dpo.desirable_weight", value, settings)
    }),
    becomes("undesirable_weight", "--kto with --kto-undesirable-weight", |value, settings| {
        answer_weight("dpo.undesirable_weight", value, settings)
    }),
    becomes("label_smoothing", "--dpo-label-smoothing", smoothing),
    without("loss_weights", PAIR_LOSS, NOT_HERE),
    without("f_*", PAIR_LOSS, NOT_HERE),
    without("ld_alpha", PAIR_LOSS, NOT_HERE),
    without("rpo_alpha", PAIR_LOSS, NOT_HERE),
    without("discopop_tau", PAIR_LOSS, NOT_HERE),
    without("use_weighting", PAIR_LOSS, NOT_HERE),
    without("reference_free", PAIR_LOSS, NOT_HERE),
    without("precompute_ref_*", REFERENCE, "--dpo-references for the file that keeps them"),
    without("ref_model_*", REFERENCE, NOT_HERE),
    without("sync_ref_model", REFERENCE, NOT_HERE),
    without("ref_adapter_name", REFERENCE, OUT),
    without("model_adapter_name", REFERENCE, OUT),
    without("force_use_ref_model", REFERENCE, OUT),
    without(
        "max_prompt_length",
        "the two answers of a pair, each with its prompt, are cut at their ends",
        "--seq-length",
    ),
    without(
        "max_completion_length",
        "the two answers of a pair, each with its prompt, are cut at their ends",
        "--seq-length",
    ),
    without("truncation_mode", "long samples are cut at their ends", OUT),
    without("disable_dropout", "there is no dropout unless it is asked for", OUT),
    without("use_liger_kernel", KERNELS, OUT),
    without("liger_kernel_config", KERNELS, OUT),
    same("group_by_length", "data.group_by_length"),
    without("length_column_name", "lengths are counted", OUT),
    without("remove_unused_columns", LOADER, OUT),
    without("label_names", LOADER, OUT),
    without("dataloader_*", LOADER, OUT),
    becomes("deepspeed", SHARDING, zero_stage),
    becomes("fsdp", SHARDING, fsdp),
    without("fsdp_*", UNITS, SHARDING),
    without("accelerator_config", "ranks have a launcher of their own", "trainer launch -n RANKS -- FLAGS"),
    without(
        "parallelism_config",
        "ranks are divided by options",
        "--tensor-model-parallel-size and --pipeline-model-parallel-size",
    ),
    same("ddp_bucket_cap_mb", "parallel.bucket_mib"),
    without("ddp_timeout", "the run ends when a rank stands still", "--distributed-timeout-seconds"),
    without("ddp_*", REDUCED, OUT),
    becomes("torch_compile", "--enable-cuda-graph", graphs),
    without("torch_compile_*", COMPILED, "--enable-cuda-graph"),
    without("torch_empty_cache_steps", "memory is planned once, before the first step", OUT),
    without("torchdynamo", COMPILED, "--enable-cuda-graph"),
    without("push_to_hub", NOWHERE, UPLOAD),
    without("push_to_hub_*", NOWHERE, UPLOAD),
    without("hub_*", NOWHERE, UPLOAD),
    without("include_inputs_for_metrics", EVALUATES, OUT),
    without("include_for_metrics", EVALUATES, OUT),
    without("include_tokens_per_second", "throughput is in the metrics of every step", OUT),
    without("include_num_input_tokens_seen", "tokens are in the metrics of every step", OUT),
    without("skip_memory_metrics", "memory is in the log", OUT),
    without("use_legacy_prediction_loop", EVALUATES, OUT),
    without("past_index", "training keeps no keys and values of earlier steps", OUT),
    without("jit_mode_eval", COMPILED, OUT),
];

fn batch(value: &Value, settings: &Settings) -> Made {
    let micro = number(value).ok_or("it is not a number")?;
    let accumulated = settings.number("gradient_accumulation_steps").unwrap_or(1.0);
    let ranks = settings.ranks as f64;
    let how = format!("{micro} per device x {accumulated} accumulated x {ranks} ranks");
    Ok(vec![
        set("train.micro_batch_size", shown(micro)),
        set_as("train.global_batch_size", shown(micro * accumulated * ranks), how),
    ])
}

fn betas(_: &Value, settings: &Settings) -> Made {
    betas_of(settings, ["adam_beta1", "adam_beta2"], "adam_beta1 and adam_beta2")
}

/// The number of steps, if it is given.
fn given_steps(settings: &Settings) -> Option<f64> {
    settings.number("max_steps").filter(|&steps| steps > 0.0)
}

fn epochs(value: &Value, settings: &Settings) -> Made {
    if given_steps(settings).is_some() { none() } else { one("train.epochs", text(value)) }
}

fn steps(_: &Value, settings: &Settings) -> Made {
    given_steps(settings).map_or(none(), |steps| one("train.steps", shown(steps)))
}

fn decay(value: &Value, settings: &Settings) -> Made {
    let style = match text(value).as_str() {
        "linear" => "linear",
        "cosine" | "cosine_with_min_lr" => "cosine",
        "constant" | "constant_with_warmup" => "constant",
        "inverse_sqrt" => "inverse_sqrt",
        "warmup_stable_decay" => "wsd",
        other => return Err(format!("a schedule is constant, linear, cosine, inverse_sqrt or wsd, not {other}")),
    };
    let extra = settings.value("lr_scheduler_kwargs").and_then(|(value, _)| value.as_table());
    let extra = |name: &str| extra.and_then(|table| number(table.get(name)?));
    let rate = settings.number("learning_rate").unwrap_or(0.0);
    let floor = extra("min_lr").or_else(|| extra("min_lr_rate").map(|share| share * rate)).unwrap_or(0.0);
    let mut sets = vec![set("optimizer.schedule", style)];
    if style != "constant" {
        sets.push(set_as("optimizer.min_lr", shown(floor), "the end of the schedule"));
    }
    if let ("wsd", Some(steps)) = (style, extra("num_decay_steps")) {
        sets.push(set_as("optimizer.decay_steps", shown(steps), "num_decay_steps"));
    }
    Ok(sets)
}

fn warmup(value: &Value, settings: &Settings) -> Made {
    match number(value) {
        None => Err("it is not a number".into()),
        Some(steps) if steps >= 1.0 => one("optimizer.warmup_steps", shown(steps.floor())),
        // Newer releases take a share of the steps here.
        Some(share) if share > 0.0 => share_of_steps(share, settings),
        // A share counts instead, if there is one.
        _ if settings.number("warmup_ratio").unwrap_or(0.0) > 0.0 => none(),
        _ => one("optimizer.warmup_steps", "0"),
    }
}

fn warmup_share(value: &Value, settings: &Settings) -> Made {
    let share = number(value).unwrap_or(0.0);
    let counts = share > 0.0 && settings.number("warmup_steps").unwrap_or(0.0) == 0.0;
    if counts { share_of_steps(share, settings) } else { none() }
}

fn share_of_steps(share: f64, settings: &Settings) -> Made {
    let steps = given_steps(settings).ok_or(format!(
        "the number of steps is not known: set optimizer.warmup_steps to {share} x the steps, or max_steps in the file"
    ))?;
    let how = format!("{share} x {steps} steps");
    Ok(vec![set_as("optimizer.warmup_steps", shown((share * steps).ceil()), how)])
}

fn tf32(value: &Value, settings: &Settings) -> Made {
    if is_true(value) && !settings.is_true("bf16") { one("precision.compute", "tf32") } else { none() }
}

fn dtype(value: &Value, settings: &Settings) -> Made {
    match text(value).trim_start_matches("torch.") {
        "bfloat16" => one("precision.compute", "bf16"),
        // The run's own format counts.
        "float32" | "auto" => none(),
        _ if settings.is_true("bf16") => none(),
        other => Err(format!("layers compute in bf16, tf32 or f32, not in {other}")),
    }
}

fn report(value: &Value, _: &Settings) -> Made {
    let words: Vec<String> = match value {
        Value::Array(items) => items.iter().map(text).collect(),
        value => vec![text(value)],
    };
    let mut sets = Vec::new();
    for word in words {
        match word.as_str() {
            "tensorboard" => sets.push(set("logging.tensorboard", "true")),
            "wandb" => sets.push(set("logging.wandb", "true")),
            "none" => {}
            other => {
                return Err(format!(
                    "logs are files, those of TensorBoard and of Weights & Biases among them, not for {other}"
                ));
            }
        }
    }
    Ok(sets)
}

/// A share of the run's steps, or a number of steps.
fn interval(value: &Value, settings: &Settings) -> Result<f64, String> {
    match number(value).ok_or("it is not a number")? {
        share if share > 0.0 && share < 1.0 => {
            Ok((share * given_steps(settings).ok_or("the number of steps is not known")?).ceil())
        }
        steps => Ok(steps),
    }
}

fn save_steps(value: &Value, settings: &Settings) -> Made {
    match settings.text("save_strategy").unwrap_or("steps") {
        "steps" => one("checkpoint.interval", shown(interval(value, settings)?)),
        _ => none(),
    }
}

fn save_strategy(value: &Value, _: &Settings) -> Made {
    match text(value).as_str() {
        "steps" => none(),
        "no" => Ok(vec![set_as("checkpoint.interval", "0", "one checkpoint, at the end")]),
        other => Err(format!("{STEPS}, not by {other}: set checkpoint.interval")),
    }
}

fn evaluations(value: &Value, settings: &Settings) -> Made {
    let strategy = settings.text("eval_strategy").or_else(|| settings.text("evaluation_strategy")).unwrap_or("no");
    match strategy {
        "no" => Ok(vec![set_as("train.eval_interval", "0", "eval_strategy is no")]),
        "steps" => match interval(value, settings)? {
            steps if steps > 0.0 => one("train.eval_interval", shown(steps)),
            _ => {
                let steps = settings.number("logging_steps").unwrap_or(500.0);
                Ok(vec![set_as("train.eval_interval", shown(steps), "as logging_steps")])
            }
        },
        other => Err(format!("{STEPS}, not by {other}: set train.eval_interval")),
    }
}

fn resume(value: &Value, _: &Settings) -> Made {
    match value {
        Value::Boolean(_) => none(),
        value if is_true(value) => none(),
        path => one("checkpoint.resume", text(path)),
    }
}

fn model(value: &Value, _: &Settings) -> Made {
    let path = text(value);
    if path.starts_with(['/', '.', '~']) {
        return one("model.init_from", path);
    }
    let folder = path.rsplit('/').next().unwrap_or(&path);
    Err(format!(
        "weights are read from a folder: hf download {path} --local-dir {folder}, and model.init_from = \"{folder}\""
    ))
}

fn split(value: &Value, _: &Settings) -> Made {
    let percent = number(value).ok_or("it is not a number")?;
    let how = format!("{percent} % for validation");
    Ok(vec![set_as("data.split", shown(1.0 - percent / 100.0), how)])
}

fn packing(value: &Value, _: &Settings) -> Made {
    match is_true(value) {
        true => {
            Err("text is always packed; conversations are with data.sft_packing, the most of them in a sample".into())
        }
        false => none(),
    }
}

fn in_8_bits(value: &Value, _: &Settings) -> Made {
    match is_true(value) {
        true => Ok(vec![set_as("precision.frozen_weights", "int8", "each 64 neighbours share a scale, not each row")]),
        false => none(),
    }
}

fn quant_type(value: &Value, _: &Settings) -> Made {
    match text(value).as_str() {
        "nf4" => none(),
        other => Err(format!("frozen weights in 4 bits are NF4, not {other}")),
    }
}

fn answers(value: &Value, _: &Settings) -> Made {
    match is_true(value) {
        true => Ok(vec![set_as("data.sft", "true", "the loss is on the answers of the assistant alone")]),
        false => none(),
    }
}

fn optimizer(value: &Value, _: &Settings) -> Made {
    match text(value).as_str() {
        "adamw_torch" | "adamw_torch_fused" | "adamw_hf" | "adamw_apex_fused" => one("optimizer.kind", "adamw"),
        "sgd" => one("optimizer.kind", "sgd"),
        "lion_32bit" => one("optimizer.kind", "lion"),
        other => {
            Err(format!("the optimizers are adamw, muon, lion and sgd, with moments of 32 or 16 bits, not {other}"))
        }
    }
}

/// Accelerate's strategies. Beside them words say how layers are wrapped.
fn fsdp(value: &Value, _: &Settings) -> Made {
    let words = text(value);
    let word = |name: &str| words.contains(name);
    match () {
        () if words.trim_matches(['[', ']', ' ']).is_empty() || word("no_shard") => none(),
        () if word("hybrid") => Err("all data-parallel ranks divide alike, on all nodes".into()),
        () if word("full_shard") => one("parallel.data_parallel_sharding", "optim_grads_params"),
        () if word("shard_grad_op") => one("parallel.data_parallel_sharding", "optim_grads"),
        () => Err(format!("{words} names no strategy that is known")),
    }
}

/// The stage of DeepSpeed's settings. They are mostly in a file of their own.
fn zero_stage(value: &Value, _: &Settings) -> Made {
    let stage = value.get("zero_optimization").and_then(|zero| number(zero.get("stage")?));
    match stage {
        Some(0.0) => none(),
        Some(1.0) => one("parallel.data_parallel_sharding", "optim"),
        Some(2.0) => one("parallel.data_parallel_sharding", "optim_grads"),
        Some(3.0) => one("parallel.data_parallel_sharding", "optim_grads_params"),
        _ => Err(format!("the ZeRO stage is in DeepSpeed's own file: {SHARDING}")),
    }
}
