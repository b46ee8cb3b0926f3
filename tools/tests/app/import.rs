//! `trainer import`: configurations of other trainers become ours. What is printed loads, has the values of the file, and says
//! what it leaves out. Then three people come from other trainers, each with a script of commands.

use std::path::Path;
use std::process::{Command, Output};

use toml::{Table, Value};

use crate::data_files::LICENSES;
use crate::harness::{Folder, expect, printed, set_mpi, trainer};

/// A file of another trainer, or the values that it means.
fn example(name: &str) -> String {
    std::fs::read_to_string(format!("{}/tests/app/imported/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn import(folder: &Path, name: &str, text: &str, flags: &str) -> Output {
    std::fs::write(folder.join(name), text).unwrap();
    trainer(folder, &format!("import {name} {flags}"))
}

/// The configuration that is printed, which loads for so many ranks, and its lines.
fn imported(name: &str, text: &str, flags: &str, ranks: usize) -> (Table, String) {
    let folder = Folder::new("import");
    let output = import(&folder.0, name, text, flags);
    expect(&output, 0, &[]);
    let page = String::from_utf8(output.stdout).unwrap();
    std::fs::write(folder.path("run.toml"), &page).unwrap();
    let planned = trainer(&folder.0, &format!("plan --ranks {ranks} --gpu h200 --as-given -- --config run.toml"));
    assert!(planned.status.success(), "{page}\n{}", printed(&planned));
    (page.parse().unwrap(), page)
}

#[track_caller]
fn assert_values(table: &Table, expected: &str) {
    let expected: Table = expected.parse().unwrap();
    for (section, values) in &expected {
        for (name, value) in values.as_table().unwrap() {
            let found = table.get(section).and_then(|found| found.get(name));
            let near =
                |a: &Value, b: &Value| a.as_float().zip(b.as_float()).is_some_and(|(a, b)| (a - b).abs() < 1e-12);
            assert!(
                found.is_some_and(|found| found == value || near(found, value)),
                "{section}.{name} = {found:?}, not {value}"
            );
        }
    }
}

/// Fails unless one comment has each of these texts.
#[track_caller]
fn assert_comments(page: &str, comments: &[&[&str]]) {
    for parts in comments {
        let has = |line: &&str| line.contains("# ") && parts.iter().all(|part| line.contains(part));
        assert_eq!(page.lines().filter(has).count(), 1, "{parts:?} in\n{page}");
    }
}

#[test]
fn a_launch_script_of_megatron_becomes_a_configuration() {
    let (table, page) = imported("train.sh", &example("megatron.txt"), "", 2);
    assert_values(&table, &example("megatron.toml"));
    assert!(table["checkpoint"].get("dir").is_none() && table["logging"].get("tensorboard").is_none(), "{page}");
    assert_comments(
        &page,
        &[
            &["from train.sh, a run of Megatron on 2 ranks"],
            &["hidden_dropout = 0.1", "default of Megatron"],
            &["steps = 4", "--train-samples 32"],
            &["line 11", "EXTRA may be set under a condition"],
            &["$EXTRA", "not known"],
            &["--save $1", "not known"],
            &["--tensorboard-dir $TENSORBOARD_LOGS_PATH", "not known"],
            &["--fp16", "Fix: --bf16"],
            &["--lr-decay-samples", "a decay ends with the run"],
            &["warmup_steps = 2", "--lr-warmup-fraction 0.25 x --lr-decay-samples 64"],
            &["--attention-backend has no effect"],
        ],
    );
    // Other forms of the same.
    let list = "--num-layers 2\n--hidden-size 64 --num-attention-heads 4 \\\n --seq-length 32 --micro-batch-size 2 --bf16\n\
                --lr 1e-3 --train-iters 10 --vocab-size 256 --optimizer adamm --tensor-model-parallel-size 2";
    let (table, page) = imported("arguments.txt", list, "--ranks 8", 8);
    assert_values(
        &table,
        "[model]\nlayers = 2\n[train]\nsteps = 10\nglobal_batch_size = 8\n[precision]\ncompute = \"bf16\"\n\
         [optimizer]\nschedule = \"linear\"\nmin_lr = 0.0\n",
    );
    assert_comments(
        &page,
        &[
            &["optimizer.kind = \"adamm\"", "did you mean `adamw`?"],
            &["global_batch_size = 8", "2 x 4 data-parallel ranks"],
        ],
    );
}

#[test]
fn values_of_a_megatron_script_are_those_of_the_run() {
    let base = "--num-layers 8 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 2 --lr 1e-3 \
                --train-iters 100 --vocab-size 256 --data-path tokens --global-batch-size 8 ";
    let page =
        |more: &str, ranks: usize| imported("list.txt", &format!("{base}{more}"), &format!("--ranks {ranks}"), ranks);
    let (table, said) = page("--split 949,50,1", 1);
    assert_values(&table, "[data]\nsplit = 0.949\n");
    assert_comments(&said, &[&["--split 949,50,1", "test data, is for validation"]]);
    let (table, _) =
        page("--tensor-model-parallel-size 2 --context-parallel-size 2 --attention-dropout 0 --cp-comm-type p2p", 4);
    assert_values(&table, "[parallel]\ntensor = 2\ncontext = 2\ncontext_transfers = \"ring\"\n");
    // A share of warm-up is one of the decay's 400 steps.
    let (table, _) = page("--lr-warmup-fraction 0.1 --lr-decay-iters 400", 1);
    assert_values(&table, "[optimizer]\nwarmup_steps = 40\n");
    let (table, _) = page("--lr-warmup-fraction 0.1", 1);
    assert_values(&table, "[optimizer]\nwarmup_steps = 10\n");
    let (table, _) = page("--cuda-graph-impl transformer_engine --cuda-graph-scope attn mlp", 1);
    assert_values(&table, "[cuda_graph]\nenable = true\nmodules = [\"attention\", \"mlp\"]\n");
    let (table, _) = page("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2", 2);
    assert_values(&table, "[parallel]\npipeline = 2\nvirtual_pipeline = 2\n");
    // Flags of Megatron that nothing takes the place of are named with the reason; those without effect come last.
    let (_, said) = page("--log-straggler --mtp-use-repeated-layer --init-model-with-meta-device", 1);
    let lines: Vec<&str> = said.lines().filter(|line| line.starts_with("# --")).collect();
    let named = ["--mtp-use-repeated-layer: ", "--init-model-with-meta-device: ", "--log-straggler has no effect"];
    assert!(named.iter().all(|part| lines.iter().any(|line| line.contains(part))), "{said}");
    assert!(lines[lines.len() - 1..].iter().all(|line| line.contains("has no effect")), "{said}");
}

#[test]
fn settings_of_other_trainers_keep_their_meaning() {
    let (table, _) =
        imported("job.toml", "[parallelism]\ndata_parallel_shard_degree = 4\n[training]\nsteps = 20\n", "", 4);
    assert_values(
        &table,
        "[parallel]\ndata_parallel_sharding = \"optim_grads_params\"\n[train]\nglobal_batch_size = 32\n",
    );
    let never = "[parallelism]\ndata_parallel_shard_degree = 4\nfsdp_reshard_after_forward = \"never\"\n";
    let (table, _) = imported("job.toml", never, "", 4);
    assert_values(&table, "[parallel]\ndata_parallel_sharding = \"optim_grads\"\n");
    let (table, page) = imported("job.toml", "[training]\nsteps = 20\n[metrics]\nlog_freq = 7\n", "", 1);
    assert_values(&table, "[parallel]\ndata_parallel_sharding = \"optim_grads_params\"\n");
    assert_comments(&page, &[&["data_parallel_shard_degree = -1: the number of ranks is not known", "--ranks N"]]);
    let (table, _) = imported("cpu.py", "device = 'cpu'\nmax_iters = 20\nlr_decay_iters = 20\n", "", 1);
    assert_values(&table, "[train]\ndevice = \"host\"\n[precision]\ncompute = \"f32\"\n");
    // The arguments of Hugging Face name no data.
    let folder = Folder::new("import-epochs");
    let output = import(&folder.0, "args.json", r#"{"num_train_epochs": 2.5, "warmup_ratio": 0.03}"#, "");
    expect(&output, 0, &[]);
    let page = String::from_utf8(output.stdout).unwrap();
    assert_values(&page.parse().unwrap(), "[train]\nepochs = 2.5\n");
    assert_comments(&page, &[&["warmup_ratio = 0.03", "0.03 x the steps"]]);
    let (table, _) =
        imported("args.json", r#"{"max_steps": 5, "output_dir": "a\ud83d\udc4b\u202e\udb40\udc41b"}"#, "", 1);
    assert_values(&table, "[checkpoint]\ndir = \"a\u{1f44b}\u{202e}\u{e0041}b\"\n");
}

#[test]
fn a_configuration_of_nanogpt_becomes_ours_with_the_defaults_of_its_trainer() {
    let (table, page) = imported("train_mini.py", &example("nanogpt.txt"), "", 1);
    assert_values(&table, &example("nanogpt.toml"));
    assert_comments(
        &page,
        &[
            &["weight_decay = 0.1", "default of nanoGPT"],
            &["global_batch_size = 16", "batch_size 4 x gradient_accumulation_steps 4"],
            &["line 2: `import time` is not evaluated"],
            &["wandb_run_name", "is not evaluated"],
            &["wandb_project", "Instead: --wandb with WANDB_PROJECT set"],
            &["raw_tokens", "its meta.pkl has the number of characters"],
            &["GELU in its exact form", "has the tanh form"],
        ],
    );
    let (table, page) = imported("empty.py", "init_from = 'gpt2-xl'\nlr_decay_iters = 7\n", "", 1);
    assert_values(&table, "[model]\nlayers = 12\nvocab = 50257\n[train]\nglobal_batch_size = 480\nsteps = 600000\n");
    assert_comments(
        &page,
        &[&["hf download openai-community/gpt2-xl"], &["lr_decay_iters = 7: a decay ends with the run"]],
    );
}

#[test]
fn a_job_of_torchtitan_becomes_a_configuration() {
    let (table, page) = imported("llama3_8b.toml", &example("torchtitan.txt"), "--ranks 8", 8);
    assert_values(&table, &example("torchtitan.toml"));
    assert_comments(
        &page,
        &[
            &["global_batch_size = 2", "local_batch_size 1 x 2 data-parallel ranks"],
            &["decay_steps = 500", "decay_ratio 0.5 x 1000 steps"],
            &["training.dataset", "files or folders"],
            &["wombat.eats", "no setting of this name is known"],
        ],
    );
}

#[test]
fn arguments_of_hugging_face_become_a_configuration() {
    let (table, page) = imported("args.json", &example("hugging_face.txt"), "--ranks 2", 2);
    assert_values(&table, &example("hugging_face.toml"));
    assert!(!page.contains("push_to_hub") && !page.contains("hub_token") && !page.contains("fsdp"), "{page}");
    assert_comments(
        &page,
        &[
            &["global_batch_size = 16", "2 per device x 4 accumulated x 2 ranks"],
            &["warmup_steps = 5", "0.1 x 50 steps"],
            &["deepspeed = \"ds.json\"", "DeepSpeed's own file", "--data-parallel-sharding-strategy"],
            &["optim = \"adafactor\""],
            &["model_name_or_path", "hf download meta-llama/Llama-3.2-1B --local-dir Llama-3.2-1B"],
            &["new_thing = 3: no setting of this name is known"],
        ],
    );
}

#[test]
fn arguments_of_trl_for_pairs_become_a_run_on_pairs() {
    let text = r#"{"output_dir": "out", "per_device_train_batch_size": 2, "learning_rate": 1e-6, "max_steps": 50,
        "beta": 0.2, "loss_type": ["ipo"], "label_smoothing": 0.0, "max_length": 512, "precompute_ref_log_probs": true,
        "ld_alpha": 0.5, "disable_dropout": true}"#;
    let (table, page) = imported("args.json", text, "--ranks 1", 1);
    let expected = "[data]\ndpo = true\n[dpo]\nbeta = 0.2\nloss_type = \"ipo\"\n[model]\nseq_length = 1024\n";
    assert_values(&table, expected);
    assert_comments(&page, &[&["ld_alpha = 0.5", "that of IPO"], &["precompute_ref_log_probs", "--dpo-references"]]);
    let more = text.replace("\"ipo\"", "\"sigmoid\", \"sft\"");
    let (_, page) = imported("args.json", &more, "--ranks 1", 1);
    assert_comments(&page, &[&["loss_type", "not sigmoid and sft"]]);
}

#[test]
fn arguments_of_trl_for_labels_become_a_run_on_answers_with_a_label() {
    let text = r#"{"output_dir": "out", "per_device_train_batch_size": 4, "max_steps": 50, "beta": 0.2, "loss_type": "kto",
        "desirable_weight": 1.0, "undesirable_weight": 1.5, "max_length": 512}"#;
    let (table, _) = imported("args.json", text, "--ranks 1", 1);
    let expected = "[data]\nkto = true\n[dpo]\nbeta = 0.2\nundesirable_weight = 1.5\n[model]\nseq_length = 512\n";
    assert_values(&table, expected);
    let (_, page) = imported("args.json", &text.replace("\"kto\"", "\"apo_zero_unpaired\""), "--ranks 1", 1);
    assert_comments(&page, &[&["loss_type", "not apo_zero_unpaired"]]);
}

#[test]
fn files_that_are_no_configurations_are_refused_with_the_fix() {
    let folder = Folder::new("import-refused");
    std::fs::create_dir(folder.path("model")).unwrap();
    std::fs::write(folder.path("training_args.bin"), [0xff, 0xfe]).unwrap();
    for (name, text, needles) in [
        ("none.sh", "echo hello\n", &["none.sh has no arguments of Megatron", "torchrun pretrain_gpt.py"][..]),
        ("list.json", "[1, 2]", &["list.json: it is no object", "to_json_string()"]),
        ("cut.json", "{\"a\": ", &["cut.json: ", "Fix: correct it"]),
        ("cut.toml", "[training\n", &["cut.toml is not TOML"]),
    ] {
        let output = import(&folder.0, name, text, "");
        assert!(output.stdout.is_empty());
        expect(&output, 2, needles);
    }
    for (name, needle) in [
        ("model", "trainer convert --from hf"),
        ("training_args.bin", "args.to_json_string()"),
        ("absent.py", "check the path"),
    ] {
        expect(&trainer(&folder.0, &format!("import {name}")), 2, &[needle, ". Fix: "]);
    }
}

/// Runs a script with the trainer on the path.
fn follow(folder: &Folder, script: &str) -> String {
    let bin = folder.path("bin");
    std::fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_trainer"), bin.join("trainer")).unwrap();
    let mut shell = Command::new("bash");
    set_mpi(&mut shell, &folder.0);
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    shell.env("PATH", path).env("OMPI_MCA_rmaps_base_oversubscribe", "1").current_dir(&folder.0);
    let output = shell.args(["-euo", "pipefail", "-x", "-c", script]).output().unwrap();
    assert!(output.status.success(), "{}", printed(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_user_of_megatron_comes_from_a_launch_script_to_a_run_and_a_job() {
    let folder = Folder::new("from-megatron");
    std::fs::write(folder.path("train.sh"), example("megatron.txt")).unwrap();
    follow(
        &folder,
        "trainer import train.sh > run.toml
         trainer launch -n 2 -- --config run.toml --save ckpt --device host
         trainer checkpoint list ckpt
         trainer job slurm --nodes 2 --ranks-per-node 2 -- --config run.toml --save ckpt > job.sh
         bash -n job.sh
         grep -q -- '--config .*run.toml --save .*ckpt' job.sh",
    );
    assert!(folder.path("ckpt/step-00000004").exists());
}

#[test]
fn a_user_of_nanogpt_comes_from_a_text_and_a_configuration_to_samples() {
    let folder = Folder::new("from-nanogpt");
    let data = folder.path("data/gpl_char");
    std::fs::create_dir_all(&data).unwrap();
    let text = std::fs::read(format!("{LICENSES}/GPL-3")).unwrap();
    let tokens: Vec<u8> = text.iter().flat_map(|byte| u16::from(*byte).to_le_bytes()).collect();
    // As prepare.py writes them: nine parts to train on, one to validate on.
    let (train, validation) = tokens.split_at(tokens.len() / 20 * 18);
    std::fs::write(data.join("train.bin"), train).unwrap();
    std::fs::write(data.join("val.bin"), validation).unwrap();
    std::fs::write(folder.path("train_mini.py"), example("nanogpt.txt")).unwrap();
    let printed = follow(
        &folder,
        "trainer import train_mini.py > run.toml
         trainer --config run.toml > log
         grep -q 'done: loss' log
         if trainer sample --out_dir out --num_samples 2 --start free 2> refused; then exit 1; fi
         grep -q -- '--num_samples: it is nanoGPT.s name. Fix: --samples' refused
         trainer sample --checkpoint out --samples 2 --prompt free --tokens 20",
    );
    assert_eq!(printed.matches("free").count(), 2, "{printed}");
}

#[test]
fn a_user_of_hugging_face_comes_from_training_arguments_to_a_model_for_transformers() {
    let folder = Folder::new("from-hugging-face");
    let arguments = r#"{"output_dir": "out", "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2,
        "learning_rate": 1e-3, "max_steps": 3, "warmup_steps": 1, "eval_strategy": "no", "model_name_or_path": "./llama",
        "max_length": 32}"#;
    std::fs::write(folder.path("args.json"), arguments).unwrap();
    std::fs::write(folder.path("text.txt"), "Some text to train on. ".repeat(200)).unwrap();
    follow(
        &folder,
        "trainer --preset tiny-llama --seq-length 32 --steps 1 --eval-interval 0 --save first --device host
         trainer convert --to hf first llama
         trainer import args.json > run.toml
         if trainer --per_device_train_batch_size 2 --num_train_epochs 1 2> refused; then exit 1; fi
         grep -q -- '--per_device_train_batch_size: it is Hugging Face' refused
         trainer --config run.toml --data-path text.txt --device host
         trainer convert --to hf out mine",
    );
    assert!(folder.path("mine/model.safetensors").exists() && folder.path("out/step-00000003").exists());
}
