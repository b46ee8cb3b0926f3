//! The settings of nanoGPT's `train.py`, with its defaults (github.com/karpathy/nanoGPT, `train.py`).

use toml::Value;

use super::settings::Here::{Becomes, Same, With, Without};
use super::settings::{Made, OtherName, Settings, is_true, name, none, number, one, set, set_as, shown, text};

const WANDB: &str = "the client of Weights & Biases reads variables of its own";
const BATCH: &str = "--micro-batch-size, and --global-batch-size with batch_size x gradient_accumulation_steps";

pub(super) const NAMES: &[OtherName] = &[
    name("out_dir", "\"out\"", Same("checkpoint.dir")),
    name("eval_interval", "2000", Same("train.eval_interval")),
    name("log_interval", "1", Same("logging.interval")),
    name("eval_iters", "200", Becomes("--eval-iters", batches)),
    name("eval_only", "", Becomes("trainer eval", evaluation_alone)),
    name("always_save_checkpoint", "true", Becomes("--save-interval", checkpoints)),
    name("init_from", "\"scratch\"", Becomes("--init-from with a folder of a Hugging Face model", start)),
    name("wandb_log", "", Same("logging.wandb")),
    name("wandb_project", "", Without(WANDB, "--wandb with WANDB_PROJECT set")),
    name("wandb_run_name", "", Without(WANDB, "--wandb with WANDB_NAME set")),
    name(
        "dataset",
        "\"openwebtext\"",
        Becomes("--data-path with the files that prepare.py wrote, and --raw-tokens u16", data),
    ),
    name("gradient_accumulation_steps", "40", With("batch_size", BATCH)),
    name("batch_size", "12", Becomes(BATCH, batch)),
    name("block_size", "1024", Same("model.seq_length")),
    name("n_layer", "12", Same("model.layers")),
    name("n_head", "12", Same("model.heads")),
    name("n_embd", "768", Same("model.hidden")),
    name("dropout", "0.0", Becomes("--hidden-dropout and --attention-dropout", dropout)),
    name("bias", "false", Same("model.bias")),
    name("learning_rate", "6e-4", Same("optimizer.lr")),
    name("max_iters", "600000", Same("train.steps")),
    name("weight_decay", "1e-1", Same("optimizer.weight_decay")),
    name("beta1", "0.9", Becomes("--betas BETA1 BETA2", betas)),
    name("beta2", "0.95", With("beta1", "--betas BETA1 BETA2")),
    name("grad_clip", "1.0", Same("optimizer.clip")),
    name("decay_lr", "true", Becomes("--lr-decay-style cosine or constant", decay)),
    name("warmup_iters", "2000", Becomes("--lr-warmup-steps", warmup)),
    name("lr_decay_iters", "600000", Becomes("leave it out: a decay ends with the run, --steps", decay_end)),
    name("min_lr", "6e-5", Becomes("--min-lr", floor)),
    name("backend", "", Without("ranks talk over NCCL on GPUs and over MPI on the host", "leave it out")),
    name("device", "", Becomes("--device", device)),
    name("dtype", "\"bfloat16\"", Becomes("--bf16, or --compute tf32 or f32", format)),
    name("compile", "true", Becomes("--enable-cuda-graph", graphs)),
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
    let [first, second] = ["beta1", "beta2"].map(|name| settings.number(name).unwrap_or(0.0));
    Ok(vec![set_as("optimizer.betas", format!("[{first:?}, {second:?}]"), "beta1 and beta2")])
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

fn graphs(value: &Value, _: &Settings) -> Made {
    let how = if is_true(value) { "in place of torch.compile: nothing is compiled here" } else { "" };
    Ok(vec![set_as("cuda_graph.enable", is_true(value).to_string(), how)])
}
