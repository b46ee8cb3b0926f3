//! Several mistakes of different kinds in one command line are told at once: flags, values, rules between settings, files,
//! ranks and hardware.

use std::path::Path;
use std::process::Command;

use crate::harness::Folder;

/// A command line, and the beginnings of the lines about it, in order.
type Case = (&'static str, &'static [&'static str]);

const LINES: &[Case] = &[
    (
        "--stpes 5 --lr high --global-batch-size 15",
        &[
            "--stpes is unknown",
            "optimizer.lr = \"high\"",
            "train.global_batch_size = 15 with micro_batch_size = 2 on 1 rank",
        ],
    ),
    (
        "--learning_rate 1e-4 --fp16 --eval-interval many --data-path absent",
        &[
            "--learning_rate: it is nanoGPT and Hugging Face's name. Fix: --lr",
            "--fp16: layers",
            "train.eval_interval = \"many\"",
            "data.path = `absent`",
        ],
    ),
    (
        "--config several.toml --micro-batch-size 0 --log =x=",
        &[
            "train.seed = -1 (several.toml)",
            "unknown key `train.stpes`",
            "unknown key `trian.steps`",
            "train.micro_batch_size = 0",
            "--log =x=",
        ],
    ),
    (
        "--hidden 10 --heads 3 --norm-eps 0 --lr 0 --betas 0.9 --resume absent",
        &[
            "optimizer.betas = [0.9]",
            "optimizer.lr = 0",
            "model.norm_eps = 0",
            "model.hidden = 10",
            "checkpoint.resume = absent",
        ],
    ),
    (
        "--pipeline-model-parallel-size 2 --log-interval 0 --split 2 --threads 0 --layers 0",
        &[
            "logging.interval = 0",
            "data.split = 2",
            "train.threads = 0",
            "parallel.tensor = 1 with parallel.pipeline = 2 on 1 rank",
            "model.layers = 0",
        ],
    ),
    (
        "--bf16 --compute f32 --mock-data --data-path absent --expert-tensor-parallel-size 7",
        &[
            "--bf16 with precision.compute = f32",
            "--mock-data with data.path",
            "parallel.expert_tensor = 7 with",
            "data.path = `absent`",
        ],
    ),
    (
        "--device cuda --optimizer adagrad --steps 0",
        &["optimizer.kind = \"adagrad\"", "train.steps = 0", "train.device = \"cuda\""],
    ),
    (
        "launch -n 3 -- --stpes 5 --global-batch-size 16 --data-path absent --tokenizer lacking --device host",
        &[
            "--stpes is unknown",
            "train.global_batch_size = 16 with micro_batch_size = 2 on 3 ranks",
            "data.path = `absent`",
            "data.tokenizer = `lacking`",
        ],
    ),
    (
        "bench --steps 0 --trace t.json --wombat",
        &["--wombat is unknown", "bench with logging.trace", "train.steps = 0"],
    ),
    ("profile --lr x --html absent/page.html", &["optimizer.lr = \"x\"", "--html absent/page.html"]),
    (
        "job slurm --nodes 3 --time 1__h -- --stpes 5 --global-batch-size 10",
        &[
            "--time 1 h",
            "--stpes is unknown",
            "checkpoint.dir is unset",
            "train.global_batch_size = 10 with micro_batch_size = 2 on 24 ranks",
        ],
    ),
    (
        "supervise -- trainer --wombat 5 --heartbeat-seconds -1",
        &["--wombat is unknown", "parallel.heartbeat_seconds = -1", "checkpoint.dir is unset"],
    ),
    ("plan --ranks 8 --gpu h900 -- --wombat 5", &["--wombat is unknown", "--gpu h900"]),
    (
        "--init-from absent --steps 0 --set train.lr=1 --validation-path",
        &[
            "--validation-path <PATHS>... has no value",
            "unknown key `train.lr`",
            "model.init_from = absent",
            "train.steps = 0",
        ],
    ),
    (
        "sample --checkpoint absent --temperature -1 --top-p 2 --tokens many --wombat 3 --prompt-file gone",
        &[
            "--wombat is unknown",
            "`many` for --tokens",
            "--temperature -1",
            "--top-p 2",
            "--prompt-file gone cannot be read",
            "absent does not exist",
        ],
    ),
    ("sample --temperature -1 --samples 0", &["`0` for --samples", "missing: --checkpoint"]),
    (
        "chat --checkpoint absent --top-p 0 --tokenizer lacking",
        &["--top-p 0", "absent does not exist", "data.tokenizer = `lacking`"],
    ),
    (
        "tokenize --shard-tokens 0 --tokenizer lacking --output file gone.txt",
        &["`0` for --shard-tokens", "data.tokenizer = `lacking`", "--output file exists", "gone.txt cannot be read"],
    ),
    ("convert --to hf --from hf absent taken", &["--to <to> with --from <from>", "absent does not exist"]),
    ("convert --to hf --dtype f8 absent taken", &["`f8` for --dtype", "absent does not exist"]),
    ("--steps 1 --steps 2 --split 0", &["--steps <VALUE> is given twice", "data.split = 0"]),
    (
        "--model.flavor 8B --training.seq_len 5 --save= --log-dir file",
        &["--model.flavor:", "--training.seq_len:", "checkpoint.dir = \"\"", "logging.dir = file"],
    ),
    (
        "--optimizer.lr 1 --train-samples 100 --steps 5 --lr-warmup-fraction few",
        &[
            "--optimizer.lr is unknown. Rule: it is torchtitan's name",
            "--train-samples 100 with train.steps",
            "--lr-warmup-fraction few",
        ],
    ),
];

/// Mistakes that others follow from, which are not told.
const ALONE: &[(&str, &str)] = &[
    ("--global-batch-size many --micro-batch-size 32", "train.global_batch_size = \"many\""),
    ("--n_layer 12 --pipeline-layers [12]", "--n_layer is unknown"),
    ("--preset nope --steps 5 --pipeline-layers [12]", "model.preset = \"nope\""),
    ("--config absent.toml --pipeline-layers [12]", "config file absent.toml cannot be read"),
    ("--init-from absent --pipeline-layers [12]", "model.init_from = absent does not exist"),
];

fn refusal(folder: &Path, line: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
    command.current_dir(folder).args(line.split_whitespace().map(|flag| flag.replace("__", " ")));
    // No GPU is there, whatever the machine has.
    let output = command.env("CUDA_VISIBLE_DEVICES", "").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).trim_end().to_string();
    assert_eq!(output.status.code(), Some(2), "{line}: {text}");
    assert!(output.stdout.is_empty(), "{line}: it began before it was refused");
    text
}

fn folder() -> Folder {
    let folder = Folder::new("all-mistakes");
    let text = "[train]\nstpes = 1\nseed = -1\n[trian]\nsteps = 1\n";
    std::fs::write(folder.path("several.toml"), text).unwrap();
    std::fs::write(folder.path("file"), "").unwrap();
    folder
}

#[test]
fn all_mistakes_of_a_command_line_are_told_at_once() {
    let folder = folder();
    let mut wrong = Vec::new();
    for (line, parts) in LINES {
        let text = refusal(&folder.0, line);
        let head = format!("error: {} mistakes. Rule: nothing begins before", parts.len());
        let told: Vec<&str> = text.lines().skip(1).map(str::trim_start).collect();
        let as_told = told.len() == parts.len() && told.iter().zip(*parts).all(|(told, part)| told.starts_with(part));
        if !(text.starts_with(&head) && as_told && told.iter().all(|told| told.contains(". Fix: "))) {
            wrong.push(format!("trainer {line}\n{text}\n"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.concat());
    assert!(!folder.path("runs").exists() && !folder.path("t.json").exists(), "something was written");
}

#[test]
fn what_follows_from_a_mistake_is_not_told() {
    let folder = folder();
    for (line, what) in ALONE {
        let text = refusal(&folder.0, line);
        assert!(text.starts_with(&format!("error: {what}")) && text.lines().count() == 1, "{line}: {text}");
    }
}
