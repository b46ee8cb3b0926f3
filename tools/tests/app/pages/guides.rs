//! The guides in docs/ are followed: a shell runs every command of a page, on models that are tiny.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use tokenizers::AddedToken;

use super::documents::fenced;
use crate::data_files::{LICENSES, small_tokenizer};
use crate::harness::{Folder, printed, set_mpi};

/// Stands before the trainer on the path. Training runs become small and short; other commands stay as they are.
const TINY: &str = r#"#!/bin/bash
sizes=(--set model.layers=2 --set model.hidden=64 --set model.heads=4 --set model.kv_heads=4 --set model.ffn=128
       --set model.vocab=402 --set model.seq_length=16)
batch=(--set train.micro_batch_size=1 --set train.global_batch_size=8 --set train.device=host)
run=(--set train.steps=4 --set optimizer.warmup_steps=1 --set train.eval_interval=2 --set train.eval_steps=1)
case " $* " in *" doctor "*) exit ;; esac # doctor.rs runs it: it takes seconds
arguments=()
length=16
case " $* " in *" --sft "*) length=128 ;; esac
for argument; do
    [ "$argument" = 1024 ] && argument=$length # --max-position-embeddings, --seq-length
    [ "$argument" = 256,512,1024 ] && argument=64,$length # --seq-length-buckets
    [ "$argument" = 6400 ] && argument=32 # --train-samples
    arguments+=("$argument")
done
case " $* " in
    *" --epochs "*) run=(--set optimizer.warmup_steps=1 --set train.eval_interval=2 --set train.eval_steps=1); sizes=() ;; # as long as it says
    *" --init-from "*) sizes=() ;; # the folder has them
    *" --train-samples "*) run=(--set train.eval_interval=2 --set train.eval_steps=1) ;;
esac
case " $* " in
    " import "* | *" sample "* | " chat "* | *" convert "* | *" tokenize "* | *" inspect "* | *" list "* | " supervise "*) added=() ;;
    " bench "*) added=("${sizes[@]}" "${batch[@]}") ;;
    *) added=("${sizes[@]}" "${batch[@]}" "${run[@]}") ;;
esac
exec "$TRAINER" "${arguments[@]}" "${added[@]}"
"#;

fn trainer(folder: &Path, arguments: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_trainer")).args(arguments).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", printed(&output));
}

/// A folder with the files that the guides begin with: texts, tokens of them, a tokenizer and a model of Hugging Face.
fn begin(name: &str) -> Folder {
    let folder = Folder::new(name);
    let here = &*folder.0;
    for made in ["texts", "gpt2", "bin"] {
        std::fs::create_dir(here.join(made)).unwrap();
    }
    let text = std::fs::read_to_string(format!("{LICENSES}/GPL-3")).unwrap();
    std::fs::write(here.join("texts/GPL-3"), &text).unwrap();
    let mut tokenizer = small_tokenizer(&here.join("gpt2/tokenizer.json"), &text);
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"].map(|token| AddedToken::from(token, true))).unwrap();
    tokenizer.save(here.join("gpt2/tokenizer.json"), false).unwrap();
    trainer(here, &["tokenize", "--tokenizer", "gpt2", "--output", "tokens", "texts"]);
    let sizes =
        ["--preset", "tiny-llama", "--vocab", "402", "--seq-length", "128", "--steps", "1", "--eval-interval", "0"];
    trainer(here, &[&["--data-path", "tokens", "--save", "first", "--log-dir", "first"][..], &sizes].concat());
    trainer(here, &["convert", "--to", "hf", "first", "llama-hf"]);
    let chat = "{\"messages\": [{\"role\": \"user\", \"content\": \"Who are you?\"}, \
                {\"role\": \"assistant\", \"content\": \"You.\"}]}\n";
    std::fs::write(here.join("chats.jsonl"), chat.repeat(20)).unwrap();
    let script = "LAYERS=2\ntorchrun pretrain_gpt.py --num-layers $LAYERS --micro-batch-size 1 --lr 1e-3\n";
    std::fs::write(here.join("pretrain.sh"), script).unwrap();
    let shim = here.join("bin/trainer");
    std::fs::write(&shim, TINY).unwrap();
    std::fs::set_permissions(&shim, std::fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

/// Runs every command of a page, one after the other. Returns the folder that they ran in.
fn follow(page: &str) -> Folder {
    let folder = begin(&page.replace('/', "-"));
    let commands = fenced(page, "sh");
    if commands.contains("--output tokens") {
        std::fs::remove_dir_all(folder.path("tokens")).unwrap();
    }
    assert!(commands.lines().count() >= 2, "{page}: {commands}");
    let mut shell = Command::new("bash");
    set_mpi(&mut shell, &folder.0);
    let path = format!("{}:{}", folder.path("bin").display(), std::env::var("PATH").unwrap());
    shell.env("PATH", path).env("TRAINER", env!("CARGO_BIN_EXE_trainer")).current_dir(&folder.0);
    let output = shell.args(["-euo", "pipefail", "-x", "-c", &commands]).output().unwrap();
    assert!(output.status.success(), "{page}: {}", printed(&output));
    folder
}

#[test]
fn a_model_is_pretrained_from_nothing_as_the_page_says() {
    let folder = follow("docs/pretrain.md");
    for file in ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"] {
        assert!(folder.path("gpt2-mine").join(file).exists(), "{file}");
    }
}

#[test]
fn a_model_of_hugging_face_is_continued_as_the_page_says() {
    let folder = follow("docs/continue-hf.md");
    let read = |name: &str| std::fs::read(folder.path(name)).unwrap();
    assert_eq!(read("llama-mine/tokenizer.json"), read("llama-hf/tokenizer.json"));
    assert_ne!(read("llama-mine/model.safetensors"), read("llama-hf/model.safetensors"));
}

#[test]
fn a_model_is_fine_tuned_on_conversations_as_the_page_says() {
    let folder = follow("docs/fine-tune.md");
    for file in
        ["llama-chat/chat_template.jinja", "llama-merged/model.safetensors", "llama-adapters/adapter_model.safetensors"]
    {
        assert!(folder.path(file).exists(), "{file}");
    }
}

#[test]
fn one_gpu_is_set_up_as_the_page_says() {
    let folder = follow("docs/one-gpu.md");
    assert!(folder.path("ckpt/step-00000004").exists());
}

#[test]
fn several_gpus_are_used_as_the_page_says() {
    let folder = follow("docs/several-gpus.md");
    assert!(folder.path("ckpt/step-00000004").exists());
}

#[test]
fn command_lines_of_other_trainers_become_ours_as_the_page_says() {
    let folder = follow("docs/switching.md");
    assert!(folder.path("ckpt/step-00000004").exists() && folder.path("out/step-00000004").exists());
}
