//! The settings of Hugging Face's `TrainingArguments` with its defaults, and of TRL's `SFTConfig`, `ModelConfig` and
//! `ScriptArguments`, with PEFT's LoRA (huggingface.co/docs/transformers, `main_classes/trainer`; huggingface.co/docs/trl).

use common::escape::toml_strings;
use toml::Value;

use super::settings::Here::{Becomes, Same, With, Without};
use super::settings::{
    KERNELS, Made, NOT_HERE, OUT, OtherName, Settings, is_true, name, none, number, one, set, set_as, shown, text,
};

const BATCH: &str = "--micro-batch-size, and --global-batch-size with its product with gradient_accumulation_steps and the number of ranks";
const DIVIDED: &str = "state of the optimizer is divided over ranks (ZeRO stage 1), weights and gradients are not";
const DISTRIBUTED: &str = "--use-distributed-optimizer";
const REDUCED: &str = "gradients are always reduced in buckets, during backward";
const NOWHERE: &str = "nothing is sent anywhere";
const UPLOAD: &str = "trainer convert --to hf, then hf upload";
const LOADER: &str = "one thread reads batches ahead, and every sample has all its columns";
const COMPILED: &str = "nothing is compiled; layers are captured";
const FULL_WEIGHTS: &str = "weights are f32 or bf16 while they train, under adapters too";
const ONE_LORA: &str = "adapters are LoRA, scaled by lora_alpha / lora_rank";
const BY_LOSS: &str = "the best checkpoint is the one with the lowest validation loss";
const PLAIN_LOSS: &str = "the loss is the mean cross-entropy of the tokens";
const ONE_FORM: &str = "checkpoints are safetensors, with weights and optimizer";
const STEPS: &str = "logs, checkpoints and evaluations come after numbers of steps";
const LOGS: &str = "the log has a folder, and one form";
const HUB: &str = "data are files or folders of this machine";
const DOWNLOAD: &str = "--data-path with a folder; hf download NAME --repo-type dataset --local-dir FOLDER gets one";
const SFT: &str = "--sft: the loss is on the answers of the assistant alone";
const EVALUATES: &str = "a training run evaluates at an interval";

pub(super) const NAMES: &[OtherName] = &[
    name("output_dir", "", Same("checkpoint.dir")),
    name(
        "overwrite_output_dir",
        "",
        Without("a run never overwrites another's checkpoints", "--save with another folder"),
    ),
    name("per_device_train_batch_size", "8", Becomes(BATCH, batch)),
    name("gradient_accumulation_steps", "1", With("per_device_train_batch_size", BATCH)),
    name(
        "per_device_eval_batch_size",
        "",
        Without(
            "evaluations have the microbatches of training",
            "leave it out; --eval-iters is their number of batches",
        ),
    ),
    name("eval_accumulation_steps", "", Without("an evaluation keeps a sum of losses", OUT)),
    name(
        "auto_find_batch_size",
        "",
        Without("memory is planned before the first step", "--micro-batch-size; --dry-run shows the memory"),
    ),
    name("learning_rate", "5e-5", Same("optimizer.lr")),
    name("weight_decay", "0.0", Same("optimizer.weight_decay")),
    name("adam_beta1", "0.9", Becomes("--betas BETA1 BETA2", betas)),
    name("adam_beta2", "0.999", With("adam_beta1", "--betas BETA1 BETA2")),
    name("adam_epsilon", "1e-8", Same("optimizer.eps")),
    name("max_grad_norm", "1.0", Same("optimizer.clip")),
    name("num_train_epochs", "3.0", Becomes("--epochs", epochs)),
    name("max_steps", "-1", Becomes("--steps", steps)),
    name(
        "lr_scheduler_type",
        "\"linear\"",
        Becomes("--lr-decay-style constant, linear, cosine, inverse_sqrt or wsd", decay),
    ),
    name(
        "lr_scheduler_kwargs",
        "",
        With("lr_scheduler_type", "--min-lr; --lr-decay-steps is how long wsd's decay takes"),
    ),
    name("warmup_ratio", "0.0", Becomes("--lr-warmup-fraction", warmup_share)),
    name("warmup_steps", "0", Becomes("--lr-warmup-steps", warmup)),
    name("optim", "\"adamw_torch\"", Becomes("--optimizer adamw, muon, lion or sgd", optimizer)),
    name("optim_args", "", Without("an optimizer has options of its own", "--betas, --eps and --momentum")),
    name("optim_target_modules", "", Without("an optimizer updates all parameters that are not frozen", "--freeze")),
    name("adafactor", "", Without("there is no Adafactor", "--optimizer adamw, muon, lion or sgd")),
    name("bf16", "", Becomes("--bf16", half)),
    name("fp16", "", Without("layers compute in bf16, tf32 or f32", "--bf16, or leave it out for f32")),
    name("tf32", "", Becomes("--compute tf32", tf32)),
    name("bf16_full_eval", "", Without("evaluations have the format of training", OUT)),
    name("fp16_full_eval", "", Without("evaluations have the format of training", OUT)),
    name("fp16_opt_level", "", Without("layers compute in bf16, tf32 or f32", OUT)),
    name("fp16_backend", "", Without("layers compute in bf16, tf32 or f32", OUT)),
    name("half_precision_backend", "", Without(KERNELS, OUT)),
    name("dtype", "", Becomes("--bf16, or --compute f32", dtype)),
    name("torch_dtype", "", Becomes("--bf16, or --compute f32", dtype)),
    name("gradient_checkpointing", "", Becomes("--recompute-granularity full", recompute)),
    name(
        "gradient_checkpointing_kwargs",
        "",
        Without("full recompute has a number of blocks", "--recompute-num-layers"),
    ),
    name("logging_steps", "500", Same("logging.interval")),
    name("logging_dir", "", Same("logging.dir")),
    name("logging_strategy", "", Without(STEPS, "--log-interval")),
    name("logging_first_step", "", Without("the first step always has a line", OUT)),
    name("logging_nan_inf_filter", "", Without("a loss that is not finite ends the run", OUT)),
    name("log_level", "", Without(LOGS, "--log with a level")),
    name("log_level_replica", "", Without(LOGS, "--log with a level")),
    name("log_on_each_node", "", Without(LOGS, OUT)),
    name("disable_tqdm", "", Without("progress is shown on a terminal alone", OUT)),
    name(
        "run_name",
        "",
        Without("a run is named by the folder of its log", "--log-dir, or --wandb with WANDB_NAME set"),
    ),
    name("report_to", "", Becomes("--tensorboard or --wandb", report)),
    name("save_strategy", "", Becomes("--save-interval, 0 for one checkpoint at the end", save_strategy)),
    name("save_steps", "500", Becomes("--save-interval", save_steps)),
    name("save_total_limit", "0", Same("checkpoint.keep")),
    name("save_safetensors", "", Without(ONE_FORM, OUT)),
    name("save_on_each_node", "", Without(ONE_FORM, OUT)),
    name("save_only_model", "", Without(ONE_FORM, OUT)),
    name("eval_strategy", "", With("eval_steps", "--eval-interval, 0 for none")),
    name("evaluation_strategy", "", With("eval_steps", "--eval-interval, 0 for none")),
    name(
        "eval_steps",
        "0",
        Becomes("--eval-interval; --eval-iters is the number of batches of an evaluation", evaluations),
    ),
    name("eval_on_start", "", Without(EVALUATES, "--eval-interval")),
    name("eval_delay", "", Without(EVALUATES, "--eval-interval")),
    name("eval_do_concat_batches", "", Without(EVALUATES, OUT)),
    name("eval_use_gather_object", "", Without(EVALUATES, OUT)),
    name("do_train", "", Without("a run without a subcommand trains", OUT)),
    name("do_eval", "", Without(EVALUATES, "--eval-interval, or trainer eval for a checkpoint")),
    name("do_predict", "", Without(EVALUATES, "trainer sample, or trainer eval")),
    name("prediction_loss_only", "", Without("an evaluation has the loss", OUT)),
    name("load_best_model_at_end", "", Becomes("--save-best; its name is best, in the folder of --save", best)),
    name("metric_for_best_model", "", Without(BY_LOSS, NOT_HERE)),
    name("greater_is_better", "", Without(BY_LOSS, NOT_HERE)),
    name("early_stopping_patience", "", Same("train.early_stop_patience")),
    name("early_stopping_threshold", "", Without("any fall of the validation loss counts", "--early-stop-patience")),
    name("seed", "42", Same("train.seed")),
    name("data_seed", "", Same("data.seed")),
    name("full_determinism", "", Same("train.deterministic")),
    name("use_cpu", "", Becomes("--device host", cpu)),
    name("no_cuda", "", Becomes("--device host", cpu)),
    name("resume_from_checkpoint", "", Becomes("start the same command again, or --resume with a checkpoint", resume)),
    name("ignore_data_skip", "", Without("a resumed run continues at its place in the data", OUT)),
    name("restore_callback_states_from_checkpoint", "", Without("there are no callbacks", OUT)),
    name(
        "model_name_or_path",
        "",
        Becomes("--init-from with a folder; hf download MODEL --local-dir FOLDER gets one", model),
    ),
    name("model_revision", "", Without("weights are read from a folder", "--init-from")),
    name("trust_remote_code", "", Without("no code comes with a model", OUT)),
    name("attn_implementation", "", Without("attention is always one operation", OUT)),
    name("tokenizer_name", "", Same("data.tokenizer")),
    name("dataset_name", "", Without(HUB, DOWNLOAD)),
    name("dataset_config", "", Without(HUB, DOWNLOAD)),
    name("dataset_config_name", "", Without(HUB, DOWNLOAD)),
    name("dataset_train_split", "", Without(HUB, "--data-path with the files of the split")),
    name("dataset_test_split", "", Without(HUB, "--validation-path with the files of the split")),
    name("dataset_streaming", "", Without("data are read as they are needed", OUT)),
    name("dataset_text_field", "", Same("data.text_key")),
    name("dataset_num_proc", "", Without(LOADER, OUT)),
    name("dataset_kwargs", "", Without(LOADER, OUT)),
    name("train_file", "", Same("data.path")),
    name("validation_file", "", Same("data.validation_path")),
    name("validation_split_percentage", "", Becomes("--split with 1 - VALUE / 100", split)),
    name("max_seq_length", "", Same("model.seq_length")),
    name("max_length", "", Same("model.seq_length")),
    name(
        "packing",
        "",
        Becomes("--sft-packing with the most conversations of a sample; text is always packed", packing),
    ),
    name("packing_strategy", "", With("packing", "--sft-packing")),
    name("eval_packing", "", With("packing", "--sft-packing")),
    name("padding_free", "", Without("samples of a step have the same number of tokens", "--sft-packing")),
    name("pad_token", "", Without("the token that ends a text fills samples, and has no loss", OUT)),
    name("pad_to_multiple_of", "", Without("samples have one of a few lengths", "--seq-length-buckets")),
    name("completion_only_loss", "", Becomes(SFT, answers)),
    name("assistant_only_loss", "", Becomes(SFT, answers)),
    name("chat_template_path", "", Same("data.chat_template")),
    name("eos_token", "", Same("data.end_of_text")),
    name("use_peft", "", With("lora_r", "--lora-rank")),
    name("lora_r", "16", Becomes("--lora-rank", rank)),
    name("lora_alpha", "32", Becomes("--lora-alpha", alpha)),
    name("lora_dropout", "0.05", Becomes("--lora-dropout", adapter_dropout)),
    name("lora_target_modules", "", Becomes("--lora-target-modules", targets)),
    name("lora_modules_to_save", "", Without("with adapters all other parameters keep their values", NOT_HERE)),
    name("lora_task_type", "", Without(ONE_LORA, OUT)),
    name("use_rslora", "", Without(ONE_LORA, "--lora-alpha, lora_alpha x the root of lora_r")),
    name("use_dora", "", Without(ONE_LORA, NOT_HERE)),
    name("load_in_4bit", "", Without(FULL_WEIGHTS, NOT_HERE)),
    name("load_in_8bit", "", Without(FULL_WEIGHTS, NOT_HERE)),
    name("use_bnb_nested_quant", "", Without(FULL_WEIGHTS, NOT_HERE)),
    name("bnb_*", "", Without(FULL_WEIGHTS, NOT_HERE)),
    name("label_smoothing_factor", "", Without(PLAIN_LOSS, NOT_HERE)),
    name("neftune_noise_alpha", "", Without("embeddings have no noise", "--hidden-dropout")),
    name("average_tokens_across_devices", "", Without("the loss is the mean over the tokens of all ranks", OUT)),
    name("loss_type", "", Without(PLAIN_LOSS, NOT_HERE)),
    name("use_liger_kernel", "", Without(KERNELS, OUT)),
    name("liger_kernel_config", "", Without(KERNELS, OUT)),
    name("group_by_length", "", Same("data.group_by_length")),
    name("length_column_name", "", Without("lengths are counted", OUT)),
    name("remove_unused_columns", "", Without(LOADER, OUT)),
    name("label_names", "", Without(LOADER, OUT)),
    name("dataloader_*", "", Without(LOADER, OUT)),
    name("deepspeed", "", Without(DIVIDED, DISTRIBUTED)),
    name("fsdp", "", Without(DIVIDED, DISTRIBUTED)),
    name("fsdp_*", "", Without(DIVIDED, DISTRIBUTED)),
    name("accelerator_config", "", Without("ranks have a launcher of their own", "trainer launch -n RANKS -- FLAGS")),
    name(
        "parallelism_config",
        "",
        Without("ranks are divided by options", "--tensor-model-parallel-size and --pipeline-model-parallel-size"),
    ),
    name("ddp_bucket_cap_mb", "", Same("parallel.bucket_mib")),
    name("ddp_timeout", "", Without("the run ends when a rank stands still", "--distributed-timeout-seconds")),
    name("ddp_*", "", Without(REDUCED, OUT)),
    name("torch_compile", "", Becomes("--enable-cuda-graph", graphs)),
    name("torch_compile_*", "", Without(COMPILED, "--enable-cuda-graph")),
    name("torch_empty_cache_steps", "", Without("memory is planned once, before the first step", OUT)),
    name("torchdynamo", "", Without(COMPILED, "--enable-cuda-graph")),
    name("push_to_hub", "", Without(NOWHERE, UPLOAD)),
    name("push_to_hub_*", "", Without(NOWHERE, UPLOAD)),
    name("hub_*", "", Without(NOWHERE, UPLOAD)),
    name("include_inputs_for_metrics", "", Without(EVALUATES, OUT)),
    name("include_for_metrics", "", Without(EVALUATES, OUT)),
    name("include_tokens_per_second", "", Without("throughput is in the metrics of every step", OUT)),
    name("include_num_input_tokens_seen", "", Without("tokens are in the metrics of every step", OUT)),
    name("skip_memory_metrics", "", Without("memory is in the log", OUT)),
    name("use_legacy_prediction_loop", "", Without(EVALUATES, OUT)),
    name("past_index", "", Without("training keeps no keys and values of earlier steps", OUT)),
    name("jit_mode_eval", "", Without(COMPILED, OUT)),
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
    let [first, second] = ["adam_beta1", "adam_beta2"].map(|name| settings.number(name).unwrap_or(0.0));
    Ok(vec![set_as("optimizer.betas", format!("[{first:?}, {second:?}]"), "adam_beta1 and adam_beta2")])
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

fn half(value: &Value, _: &Settings) -> Made {
    if is_true(value) { one("precision.compute", "bf16") } else { none() }
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

fn recompute(value: &Value, _: &Settings) -> Made {
    if is_true(value) { one("recompute.granularity", "full") } else { none() }
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

fn best(value: &Value, _: &Settings) -> Made {
    if is_true(value) { one("checkpoint.save_best", "true") } else { none() }
}

fn cpu(value: &Value, _: &Settings) -> Made {
    if is_true(value) { one("train.device", "host") } else { none() }
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

fn answers(value: &Value, _: &Settings) -> Made {
    match is_true(value) {
        true => Ok(vec![set_as("data.sft", "true", "the loss is on the answers of the assistant alone")]),
        false => none(),
    }
}

/// Whether the run has adapters. A file without `use_peft` is that of a run with them, if it gives their rank.
fn has_adapters(settings: &Settings) -> bool {
    let has_rank = settings.value("lora_r").is_some_and(|(_, given)| given);
    settings.value("use_peft").map_or(has_rank, |(value, _)| is_true(value))
}

fn rank(value: &Value, settings: &Settings) -> Made {
    if has_adapters(settings) { one("model.lora_rank", text(value)) } else { none() }
}

fn alpha(value: &Value, settings: &Settings) -> Made {
    if has_adapters(settings) { one("model.lora_alpha", text(value)) } else { none() }
}

fn adapter_dropout(value: &Value, settings: &Settings) -> Made {
    if has_adapters(settings) { one("model.lora_dropout", text(value)) } else { none() }
}

fn targets(value: &Value, settings: &Settings) -> Made {
    if !has_adapters(settings) {
        return none();
    }
    let words: Vec<String> = match value {
        Value::Array(items) => items.iter().map(text).collect(),
        value => vec![text(value)],
    };
    one("model.lora_target_modules", toml_strings(words))
}

fn graphs(value: &Value, _: &Settings) -> Made {
    let how = if is_true(value) { "in place of torch.compile: nothing is compiled here" } else { "" };
    Ok(vec![set_as("cuda_graph.enable", is_true(value).to_string(), how)])
}
