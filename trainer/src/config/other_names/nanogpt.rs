//! The settings of nanoGPT's `train.py`, with its defaults (github.com/karpathy/nanoGPT, `train.py`).

use std::sync::LazyLock;

use toml::Value;

use super::settings::{
    Made, Make, OtherName, Settings, betas_of, graphs, is_true, names, none, number, one, set, set_as, shown, text,
};

/// What makes options of a value, by setting.
const MADE: &[(&str, Make)] = &[
    ("eval_iters", batches),
    ("eval_only", evaluation_alone),
    ("always_save_checkpoint", checkpoints),
    ("init_from", start),
    ("dataset", data),
    ("batch_size", batch),
    ("dropout", dropout),
    ("beta1", betas),
    ("decay_lr", decay),
    ("warmup_iters", warmup),
    ("lr_decay_iters", decay_end),
    ("min_lr", floor),
    ("device", device),
    ("dtype", format),
    ("compile", graphs),
];

pub(super) static NAMES: LazyLock<Vec<OtherName>> = LazyLock::new(|| names(include_str!("nanogpt.txt"), MADE));

fn checkpoints(value: &Value, settings: &Settings) -> Made {
    let interval = settings.number("eval_interval").unwrap_or(0.0);
    Ok(match is_true(value) {
        true => vec![set_as("checkpoint.interval", shown(interval), "a checkpoint is saved after each eval_interval")],
        false => vec![
            set("checkpoint.save_best", "true"),
            set_as("checkpoint.interval", "0", "the last state is saved too, to resume from"),
        ],
    })
}

fn evaluation_alone(value: &Value, _: &Settings) -> Made {
    if is_true(value) { Err("a training run trains; `trainer eval` evaluates a checkpoint".into()) } else { none() }
}

/// Samples of `eval_iters` batches are as many global batches.
fn batches(value: &Value, settings: &Settings) -> Made {
    let iterations = number(value).ok_or("it is not a number")?;
    let accumulated = settings.number("gradient_accumulation_steps").unwrap_or(1.0);
    let how = format!("eval_iters = {iterations} batches of batch_size, in global batches");
    Ok(vec![set_as("train.eval_steps", shown((iterations / accumulated).ceil()), how)])
}

fn start(value: &Value, _: &Settings) -> Made {
    match text(value).as_str() {
        "scratch" => none(),
        "resume" => Err("the same command again continues from the newest checkpoint in checkpoint.dir".into()),
        model => Err(format!(
            "weights are read from a folder: hf download openai-community/{model} --local-dir {model}, and model.init_from = \"{model}\""
        )),
    }
}

fn data(value: &Value, _: &Settings) -> Made {
    let folder = format!("data/{}", text(value));
    let how =
        if folder.ends_with("_char") { "its meta.pkl has the number of characters: set model.vocab to it" } else { "" };
    let mut sets = vec![
        set("data.path", format!("{folder}/train.bin")),
        set("data.validation_path", format!("{folder}/val.bin")),
        set_as("data.raw_tokens", "u16", how),
    ];
    if how.is_empty() {
        sets.push(set_as("model.vocab", "50257", "tokens of GPT-2; padded in memory"));
    }
    Ok(sets)
}

fn batch(value: &Value, settings: &Settings) -> Made {
    let micro = number(value).ok_or("it is not a number")?;
    let accumulated = settings.number("gradient_accumulation_steps").unwrap_or(1.0);
    let how = format!("batch_size {micro} x gradient_accumulation_steps {accumulated}, which counts all ranks");
    Ok(vec![
        set("train.micro_batch_size", shown(micro)),
        set_as("train.global_batch_size", shown(micro * accumulated), how),
    ])
}

fn dropout(value: &Value, _: &Settings) -> Made {
    Ok(vec![set("model.hidden_dropout", text(value)), set("model.attention_dropout", text(value))])
}

fn betas(_: &Value, settings: &Settings) -> Made {
    betas_of(settings, ["beta1", "beta2"], "beta1 and beta2")
}

fn decay(value: &Value, _: &Settings) -> Made {
    match is_true(value) {
        true => one("optimizer.schedule", "cosine"),
        false => Ok(vec![
            set("optimizer.schedule", "constant"),
            set_as("optimizer.warmup_steps", "0", "decay_lr = False leaves out the warm-up too"),
        ]),
    }
}

fn warmup(value: &Value, settings: &Settings) -> Made {
    if settings.is_true("decay_lr") { one("optimizer.warmup_steps", text(value)) } else { none() }
}

fn floor(value: &Value, settings: &Settings) -> Made {
    if settings.is_true("decay_lr") { one("optimizer.min_lr", text(value)) } else { none() }
}

fn decay_end(value: &Value, settings: &Settings) -> Made {
    let ends_with_the_run = number(value) == settings.number("max_iters") || !settings.is_true("decay_lr");
    if ends_with_the_run { none() } else { Err("a decay ends with the run, at train.steps".into()) }
}

fn device(value: &Value, _: &Settings) -> Made {
    match text(value).as_str() {
        "cpu" => one("train.device", "host"),
        cuda if cuda == "cuda" || cuda.starts_with("cuda:") => one("train.device", "cuda"),
        other => Err(format!("a run is on NVIDIA's GPUs or on the host, not on {other}")),
    }
}

fn format(value: &Value, settings: &Settings) -> Made {
    if settings.text("device") == Some("cpu") {
        let how = format!("train.py computes in f32 on a CPU, whatever dtype is: {}", text(value));
        return Ok(vec![set_as("precision.compute", "f32", how)]);
    }
    match text(value).as_str() {
        "bfloat16" => one("precision.compute", "bf16"),
        "float32" => Ok(vec![set_as("precision.compute", "tf32", "train.py allows TF32 in products of f32")]),
        other => Err(format!("layers compute in bf16, tf32 or f32, not in {other}")),
    }
}
