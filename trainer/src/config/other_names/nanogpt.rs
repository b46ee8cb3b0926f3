//! The settings of nanoGPT's `train.py`, with its defaults (github.com/karpathy/nanoGPT, `train.py`).

use toml::Value;

use super::settings::{
    Made, OtherName, Settings, becomes, betas_of, graphs, is_true, none, number, one, same, set, set_as, shown, text,
    with, without,
};

const WANDB: &str = "the client of Weights & Biases reads variables of its own";
const BATCH: &str = "--micro-batch-size, and --global-batch-size with batch_size x gradient_accumulation_steps";

pub(super) const NAMES: &[OtherName] = &[
    same("out_dir", "checkpoint.dir").by_default("\"out\""),
    same("eval_interval", "train.eval_interval").by_default("2000"),
    same("log_interval", "logging.interval").by_default("1"),
    becomes("eval_iters", "--eval-iters", batches).by_default("200"),
    becomes("eval_only", "trainer eval", evaluation_alone),
    becomes("always_save_checkpoint", "--save-interval", checkpoints).by_default("true"),
    becomes("init_from", "--init-from with a folder of a Hugging Face model", start).by_default("\"scratch\""),
    same("wandb_log", "logging.wandb"),
    without("wandb_project", WANDB, "--wandb with WANDB_PROJECT set"),
    without("wandb_run_name", WANDB, "--wandb with WANDB_NAME set"),
    becomes("dataset", "--data-path with the files that prepare.py wrote, and --raw-tokens u16", data)
        .by_default("\"openwebtext\""),
    with("gradient_accumulation_steps", "batch_size", BATCH).by_default("40"),
    becomes("batch_size", BATCH, batch).by_default("12"),
    same("block_size", "model.seq_length").by_default("1024"),
    same("n_layer", "model.layers").by_default("12"),
    same("n_head", "model.heads").by_default("12"),
    same("n_embd", "model.hidden").by_default("768"),
    becomes("dropout", "--hidden-dropout and --attention-dropout", dropout).by_default("0.0"),
    same("bias", "model.bias").by_default("false"),
    same("learning_rate", "optimizer.lr").by_default("6e-4"),
    same("max_iters", "train.steps").by_default("600000"),
    same("weight_decay", "optimizer.weight_decay").by_default("1e-1"),
    becomes("beta1", "--betas BETA1 BETA2", betas).by_default("0.9"),
    with("beta2", "beta1", "--betas BETA1 BETA2").by_default("0.95"),
    same("grad_clip", "optimizer.clip").by_default("1.0"),
    becomes("decay_lr", "--lr-decay-style cosine or constant", decay).by_default("true"),
    becomes("warmup_iters", "--lr-warmup-steps", warmup).by_default("2000"),
    becomes("lr_decay_iters", "leave it out: a decay ends with the run, --steps", decay_end).by_default("600000"),
    becomes("min_lr", "--min-lr", floor).by_default("6e-5"),
    without("backend", "ranks talk over NCCL on GPUs and over MPI on the host", "leave it out"),
    becomes("device", "--device", device),
    becomes("dtype", "--bf16, or --compute tf32 or f32", format).by_default("\"bfloat16\""),
    becomes("compile", "--enable-cuda-graph", graphs).by_default("true"),
];

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
