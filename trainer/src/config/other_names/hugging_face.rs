//! The settings of Hugging Face's `TrainingArguments` with its defaults, and of TRL's `SFTConfig`, `DPOConfig`, `KTOConfig`,
//! `ModelConfig` and `ScriptArguments`, with PEFT's LoRA (huggingface.co/docs/transformers, `main_classes/trainer`; huggingface.co/docs/trl).

use std::sync::LazyLock;

use toml::Value;

use super::settings::{
    Made, Make, OtherName, Settings, betas_of, graphs, is_true, names, none, number, one, set, set_as, shown, text,
};
use super::trl::{adapter_dropout, alpha, answer_weight, beta, length, pair_loss, rank, smoothing, targets};

const SHARDING: &str =
    "--data-parallel-sharding-strategy optim, optim_grads or optim_grads_params (ZeRO stages 1 to 3)";
const STEPS: &str = "logs, checkpoints and evaluations come after numbers of steps";

/// What makes options of a value, by setting.
const MADE: &[(&str, Make)] = &[
    ("per_device_train_batch_size", batch),
    ("adam_beta1", betas),
    ("num_train_epochs", epochs),
    ("max_steps", steps),
    ("lr_scheduler_type", decay),
    ("warmup_ratio", warmup_share),
    ("warmup_steps", warmup),
    ("optim", optimizer),
    ("tf32", tf32),
    ("dtype", dtype),
    ("torch_dtype", dtype),
    ("report_to", report),
    ("save_strategy", save_strategy),
    ("save_steps", save_steps),
    ("eval_steps", evaluations),
    ("resume_from_checkpoint", resume),
    ("model_name_or_path", model),
    ("validation_split_percentage", split),
    ("max_length", length),
    ("packing", packing),
    ("completion_only_loss", answers),
    ("assistant_only_loss", answers),
    ("lora_r", rank),
    ("lora_alpha", alpha),
    ("lora_dropout", adapter_dropout),
    ("lora_target_modules", targets),
    ("bnb_4bit_quant_type", quant_type),
    ("load_in_8bit", in_8_bits),
    ("beta", beta),
    ("loss_type", pair_loss),
    ("desirable_weight", |value, settings| answer_weight("dpo.desirable_weight", value, settings)),
    ("undesirable_weight", |value, settings| answer_weight("dpo.undesirable_weight", value, settings)),
    ("label_smoothing", smoothing),
    ("deepspeed", zero_stage),
    ("fsdp", fsdp),
    ("torch_compile", graphs),
];

pub(super) static NAMES: LazyLock<Vec<OtherName>> = LazyLock::new(|| names(include_str!("hugging_face.txt"), MADE));

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

/// The number of steps, if given.
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
