//! Checkpoints that are damaged or do not fit.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use launch::watch::activity::Activity;
use serde_json::Value;
use sha2::{Digest, Sha256};
use trainer::checkpoint::{MANIFEST, Manifest, verify};

use crate::harness::{
    Folder, arguments, assert_same, bits, checkpoint, copy_run, expect, metrics, mpirun_command, output_of, printed,
    run, saved, signal, start,
};

pub const FILES: [&str; 4] = ["model.safetensors", "optimizer.safetensors", "config.toml", "manifest.json"];
pub const FLAGS: &str = "--steps 6 --save-interval 2";

fn flip_a_bit(file: &Path) {
    let mut content = std::fs::read(file).unwrap();
    let middle = content.len() / 2;
    content[middle] ^= 1;
    std::fs::write(file, content).unwrap();
}

fn truncate(file: &Path) {
    let content = std::fs::read(file).unwrap();
    std::fs::write(file, &content[..content.len() - 7]).unwrap();
}

fn delete(file: &Path) {
    std::fs::remove_file(file).unwrap();
}

#[test]
fn a_damaged_checkpoint_is_named_with_its_file_and_the_one_before_is_continued() {
    let whole = Folder::new("damage-whole");
    expect(&run(1, &whole.0, FLAGS), 0, &[]);
    for (what, damage) in [("flipped", flip_a_bit as fn(&Path)), ("truncated", truncate), ("deleted", delete)] {
        for file in FILES {
            let folder = Folder::new("damaged");
            copy_run(&whole.0, &folder.0, 2);
            copy_run(&whole.0, &folder.0, 4);
            let newest = checkpoint(&folder.0, 4);
            damage(&newest.join(file));
            assert_eq!(verify(&newest, &Activity::default()).unwrap_err().file, file, "{file} {what}");
            let named = format!("{} is damaged and skipped: {file} ", newest.display());
            expect(&run(1, &folder.0, FLAGS), 0, &[&named, "step-00000002 at step 2"]);
            assert_same(&folder, &whole, &format!("{file} {what}"));
            assert_eq!(bits(&folder.0, 4), bits(&whole.0, 4), "the damaged one is replaced: {file} {what}");
        }
    }
}

#[test]
fn a_newest_checkpoint_that_cannot_be_read_now_may_be_complete_and_is_not_skipped() {
    let whole = Folder::new("unreadable-whole");
    expect(&run(1, &whole.0, FLAGS), 0, &[]);
    let newest = checkpoint(&whole.0, 6);
    let manifest = newest.join("manifest.json");
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, text.replace("\"format\": 2", "\"format\": 3")).unwrap();
    let further = "--steps 8 --save-interval 2";
    let refused = run(1, &whole.0, further);
    expect(
        &refused,
        3,
        &["step-00000006 is the newest, and manifest.json is of format 3; this build reads formats 1 to 2"],
    );
    std::fs::write(&manifest, text).unwrap();
    // Root may read anything, so the run is somebody else's.
    let all = |mode| std::fs::Permissions::from_mode(mode);
    for path in [&whole.0, &whole.path("log"), &whole.path("saved"), &newest] {
        std::fs::set_permissions(path, all(0o777)).unwrap();
        for entry in std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file()) {
            std::fs::set_permissions(entry, all(0o666)).unwrap();
        }
    }
    let weights = newest.join("model.safetensors");
    std::fs::set_permissions(&weights, all(0o000)).unwrap();
    let mut command = crate::harness::command(1, &whole.0, further);
    if std::fs::read(&weights).is_ok() {
        command.uid(65534);
    }
    let refused = command.output().unwrap();
    expect(&refused, 3, &["step-00000006 is the newest, and model.safetensors cannot be read: Permission denied"]);
    std::fs::set_permissions(&weights, all(0o644)).unwrap();
    expect(&run(1, &whole.0, further), 0, &["step-00000006 at step 6", "done: loss"]);
}

/// A manifest's content with the hash that belongs to it; `None` if it is no manifest.
pub fn resealed(mut manifest: Value) -> Option<Vec<u8>> {
    *manifest.get_mut("sha256")? = "".into();
    let mut manifest: Manifest = serde_json::from_value(manifest).ok()?;
    let hash = Sha256::digest(serde_json::to_vec(&manifest).ok()?);
    manifest.sha256 = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    serde_json::to_vec(&manifest).ok()
}

/// Changes the manifest of a checkpoint, and makes its hash right.
pub fn reseal(folder: &Path, change: impl Fn(&mut Value)) {
    let path = folder.join(MANIFEST);
    let mut manifest = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut manifest);
    std::fs::write(path, resealed(manifest).unwrap()).unwrap();
}

/// `trainer` with these arguments. It ends within a minute.
fn trainer(arguments: &[&str]) -> Output {
    let began = Instant::now();
    let output = Command::new(env!("CARGO_BIN_EXE_trainer")).args(arguments).output().unwrap();
    assert!(began.elapsed() < Duration::from_secs(60), "{arguments:?} took {:?}", began.elapsed());
    output
}

/// Fails unless the input is refused in one line that has all of `parts`, and nothing that a terminal would act on.
fn refused(output: &Output, parts: &[&str]) {
    let text = printed(output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("notice: ")).collect();
    let [line] = lines[..] else { panic!("it is not one line: {text}") };
    assert!(output.stdout.is_empty() && line.starts_with("error") && !line.contains(char::is_control), "{text:?}");
    for part in parts.iter().chain(&["Rule: ", "Fix: "]) {
        assert!(line.contains(part), "{part:?} is not in {line}");
    }
}

#[test]
fn weights_of_a_damaged_checkpoint_are_neither_converted_nor_started_from() {
    let whole = Folder::new("weights-whole");
    expect(&run(1, &whole.0, "--steps 2"), 0, &[]);
    for (what, damage) in [("flipped", flip_a_bit as fn(&Path)), ("truncated", truncate), ("deleted", delete)] {
        for file in FILES {
            let folder = Folder::new("weights");
            copy_run(&whole.0, &folder.0, 2);
            let step = checkpoint(&folder.0, 2);
            damage(&step.join(file));
            let (from, to) = (step.to_str().unwrap(), folder.path("hf"));
            let is_damaged = format!("step-00000002 is damaged: {file} ");
            refused(&trainer(&["convert", "--to", "hf", from, to.to_str().unwrap()]), &[&is_damaged]);
            refused(&trainer(&["--init-from", from, "--steps", "1"]), &[&is_damaged]);
            refused(&trainer(&["sample", "--checkpoint", from]), &[&is_damaged]);
            assert!(!to.exists(), "{file} {what}");
        }
    }
}

#[test]
fn a_checkpoint_whose_manifest_describes_none_is_refused_whoever_reads_it() {
    let whole = Folder::new("describes-whole");
    expect(&run(1, &whole.0, "--steps 2"), 0, &[]);
    let outside = whole.path("outside.safetensors");
    std::fs::copy(checkpoint(&whole.0, 2).join("model.safetensors"), &outside).unwrap();
    type Change = fn(&mut Value);
    let changes: [(&str, Change); 8] = [
        ("its folder's name says 2", |manifest| manifest["step"] = 1.into()),
        ("overlap", |manifest| {
            let part = manifest["tensors"][0].clone();
            manifest["tensors"].as_array_mut().unwrap().push(part);
            manifest["tensors"][0]["key"] = "other".into();
        }),
        ("outside its shape", |manifest| manifest["tensors"][0]["offset"] = vec![0; 9].into()),
        ("outside its shape", |manifest| manifest["tensors"][0]["shape"] = vec![usize::MAX; 2].into()),
        ("of the ", |manifest| manifest["tensors"][0]["sizes"][0] = 1.into()),
        ("no name of a file in its folder", |manifest| {
            manifest["files"][0]["name"] = "../../outside.safetensors".into()
        }),
        ("no name of a file in its folder", |manifest| manifest["files"][0]["name"] = "/dev/zero".into()),
        ("no name of a file in its folder", |manifest| manifest["files"][0]["name"] = "\u{1b}[2J\n".into()),
    ];
    for (says, change) in changes {
        let folder = Folder::new("describes");
        copy_run(&whole.0, &folder.0, 2);
        let step = checkpoint(&folder.0, 2);
        reseal(&step, change);
        let from = step.to_str().unwrap();
        let says = ["manifest.json ", says];
        refused(&run(1, &folder.0, "--steps 4"), &says);
        refused(&run(1, &folder.0, &format!("--steps 4 --save {}/other --resume {from}", folder.0.display())), &says);
        refused(&trainer(&["convert", "--to", "hf", from, folder.path("hf").to_str().unwrap()]), &says);
        refused(&trainer(&["--init-from", from, "--steps", "1"]), &says);
    }
}

#[test]
fn links_pipes_and_devices_in_place_of_a_checkpoints_files_are_refused_without_reading_them() {
    let whole = Folder::new("links-whole");
    expect(&run(1, &whole.0, "--steps 4 --save-interval 2"), 0, &[]);
    let zero = |path: &Path| symlink("/dev/zero", path).unwrap();
    let pipe = |path: &Path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    let copy = |path: &Path| {
        let (aside, name) = (path.ancestors().nth(3).unwrap(), path.file_name().unwrap());
        let target = aside.join(name);
        std::fs::copy(whole.path("saved/step-00000004").join(name), &target).unwrap();
        symlink(target, path).unwrap();
    };
    type Make<'m> = &'m dyn Fn(&Path);
    let all: [(&str, Make<'_>); 3] =
        [("it is a link", &zero), ("it is not a regular file", &pipe), ("it is a link", &copy)];
    for (says, make) in all {
        for file in FILES {
            let folder = Folder::new("links");
            copy_run(&whole.0, &folder.0, 2);
            copy_run(&whole.0, &folder.0, 4);
            let newest = checkpoint(&folder.0, 4);
            delete(&newest.join(file));
            make(&newest.join(file));
            let says = format!("{file} cannot be read: {says}, and checkpoints have regular files");
            // It may be complete, so the one before it is not continued in its place.
            refused(&run(1, &folder.0, "--steps 6"), &["step-00000004 is the newest, and ", &says]);
            refused(&trainer(&["--init-from", newest.to_str().unwrap(), "--steps", "1"]), &[&says]);
        }
    }
}

#[test]
fn a_lock_file_that_is_a_link_is_not_written_through() {
    for (key, lock) in [("checkpoint.dir", "saved/checkpoints.lock"), ("logging.dir", "log/run.lock")] {
        let folder = Folder::new("lock-link");
        let (victim, lock) = (folder.path("victim"), folder.path(lock));
        std::fs::write(&victim, "keep me").unwrap();
        std::fs::create_dir_all(lock.parent().unwrap()).unwrap();
        symlink(&victim, &lock).unwrap();
        refused(&run(1, &folder.0, "--steps 1"), &[key, "cannot be written: it is a link"]);
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "keep me");
        delete(&lock);
        std::fs::hard_link(&victim, &lock).unwrap();
        refused(&run(1, &folder.0, "--steps 1"), &[key, "cannot be written: it has 2 names (hard links)"]);
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "keep me");
        delete(&lock);
        assert!(Command::new("mkfifo").arg(&lock).status().unwrap().success());
        refused(&run(1, &folder.0, "--steps 1"), &[key, "cannot be written: it is not a regular file"]);
    }
}

#[test]
fn files_of_somebody_else_in_a_checkpoint_that_is_removed_stay() {
    let folder = Folder::new("somebody");
    let notes = ["saved/step-00000003.tmp/notes.txt", "saved/step-00000003.old.tmp/model-best.safetensors"];
    for name in notes {
        let path = folder.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path.with_file_name(MANIFEST), "{}").unwrap();
        std::fs::write(&path, "keep me").unwrap();
        refused(&run(1, &folder.0, "--steps 1"), &["is there and is not a checkpoint"]);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "keep me");
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
    // Beside a checkpoint's files they may lie. It is no longer removed to keep fewer.
    let flags = "--save-interval 1 --checkpoint-keep 1";
    expect(&run(1, &folder.0, &format!("--steps 1 {flags}")), 0, &[]);
    let notes = checkpoint(&folder.0, 1).join("notes.txt");
    std::fs::write(&notes, "keep me").unwrap();
    expect(&run(1, &folder.0, &format!("--steps 3 {flags}")), 0, &[]);
    assert_eq!((std::fs::read_to_string(&notes).unwrap(), saved(&folder.0)), ("keep me".into(), vec![1, 3]));
    // A damaged checkpoint is replaced, and other files in it are put aside.
    let newest = checkpoint(&folder.0, 3);
    std::fs::write(newest.join("notes.txt"), "keep me too").unwrap();
    flip_a_bit(&newest.join(FILES[0]));
    expect(&run(1, &folder.0, "--steps 3 --checkpoint-keep 0"), 0, &["is damaged and skipped", "at step 1"]);
    let aside = folder.path("saved/step-00000003.kept-1/notes.txt");
    assert_eq!(std::fs::read_to_string(aside).unwrap(), "keep me too");
    assert!(verify(&newest, &Activity::default()).is_ok());
}

#[test]
fn numbers_beyond_f32_are_refused() {
    for flags in [
        ["--eps", "1e39"],
        ["--eps", "1e-60"],
        ["--lr", "1e39"],
        ["--lr", "1e-60"],
        ["--weight-decay", "1e300"],
        ["--clip-grad", "1e39"],
        ["--norm-eps", "1e39"],
        ["--init-std", "1e39"],
        ["--hidden-dropout", "0.99999999999"],
        ["--betas", "0.99999999999"],
    ] {
        let mut arguments = vec!["--steps", "1", flags[0], flags[1]];
        if flags[0] == "--betas" {
            arguments.push("0.9");
        }
        refused(&trainer(&arguments), &["f32"]);
    }
    refused(&trainer(&["--position", "rotary", "--rope-base", "1e60"]), &["model.rope_base = 1", "f32"]);
}

#[test]
fn nothing_that_a_terminal_acts_on_comes_from_a_file_or_a_name() {
    let folder = Folder::new("escapes");
    let odd = folder.path("a\u{1b}[2J\u{202e}b\n.txt");
    std::fs::write(&odd, "some text to train on. ".repeat(40)).unwrap();
    let name = odd.to_str().unwrap();
    let steady = |text: &[u8]| {
        let text = String::from_utf8_lossy(text).into_owned();
        assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text:?}");
        text
    };
    let mut command = crate::harness::command(1, &folder.0, "--steps 1 --eval-interval 0");
    let output = command.args(["--data-path", name]).output().unwrap();
    expect(&output, 0, &["a\\u{1b}[2J\\u{202e}b", "done: loss"]);
    steady(printed(&output).as_bytes());
    assert!(steady(&std::fs::read(folder.path("log/run.log")).unwrap()).contains("\\u{1b}[2J"));
    refused(&trainer(&["--data-path", &format!("{name}x")]), &["a\\u{1b}[2J\\u{202e}b\\n.txtx"]);
    let model = folder.path("model");
    std::fs::create_dir(&model).unwrap();
    std::fs::write(model.join("config.json"), "{\"model_type\": \"\\u001b]0;title\\u0007\\n\"}").unwrap();
    refused(&trainer(&["--init-from", model.to_str().unwrap()]), &["model_type = "]);
    let config = folder.path("odd.toml");
    std::fs::write(&config, "[model]\n\"\\u001b[2J\" = 1\n").unwrap();
    refused(&trainer(&["--config", config.to_str().unwrap()]), &["unknown key `model.\\u{1b}[2J`"]);
    refused(&trainer(&["--config", "/dev/zero"]), &["it is not a regular file"]);
}

#[test]
fn metrics_have_each_step_once_though_their_folder_was_removed_under_the_run() {
    let folder = Folder::new("log-removed");
    let child = start(1, &folder.0, "--save-interval 1000000");
    std::fs::remove_dir_all(folder.path("log")).unwrap();
    signal(child.id(), "TERM");
    expect(&output_of(child), 0, &["asked to end: stops after step "]);
    let done = saved(&folder.0)[0];
    assert_eq!(metrics(&folder.0).len(), done);
    expect(&run(1, &folder.0, &format!("--steps {}", done + 2)), 0, &["done: loss"]);
    assert_eq!(metrics(&folder.0).len(), done + 2, "they are still the run's own");
}

#[test]
fn every_flipped_bit_of_a_manifest_that_still_parses_is_noticed_or_means_nothing() {
    let whole = Folder::new("manifest-whole");
    expect(&run(1, &whole.0, "--steps 1"), 0, &[]);
    let folder = checkpoint(&whole.0, 1);
    let manifest = verify(&folder, &Activity::default()).unwrap();
    let file = folder.join("manifest.json");
    let content = std::fs::read(&file).unwrap();
    for at in (0..content.len()).step_by(13) {
        let mut changed = content.clone();
        changed[at] ^= 1;
        std::fs::write(&file, &changed).unwrap();
        if let Ok(read) = verify(&folder, &Activity::default()) {
            assert_eq!(read, manifest, "byte {at} of the manifest changed it unnoticed");
        }
    }
}

#[test]
fn a_run_does_not_begin_anew_where_its_only_checkpoint_is_damaged() {
    let folder = Folder::new("only");
    expect(&run(1, &folder.0, "--steps 2"), 0, &[]);
    flip_a_bit(&checkpoint(&folder.0, 2).join(FILES[0]));
    let before = metrics(&folder.0);
    expect(&run(1, &folder.0, FLAGS), 2, &["holds no complete checkpoint", FILES[0], "Rule: ", "Fix: "]);
    let named = format!("{FLAGS} --resume {}", checkpoint(&folder.0, 2).display());
    expect(&run(1, &folder.0, &named), 2, &["is damaged: model.safetensors differs", "Rule: ", "Fix: "]);
    assert_eq!(metrics(&folder.0), before);
}

#[test]
fn the_list_says_which_checkpoints_are_complete() {
    let folder = Folder::new("list");
    expect(&run(1, &folder.0, FLAGS), 0, &[]);
    delete(&checkpoint(&folder.0, 4).join(FILES[1]));
    let list = |path: &Path| {
        Command::new(env!("CARGO_BIN_EXE_trainer")).args(["checkpoint", "list"]).arg(path).output().unwrap()
    };
    let output = list(&folder.path("saved"));
    expect(&output, 3, &["step-00000002  complete, 2 steps, 16 samples", "step-00000006  complete, 6 steps"]);
    expect(&output, 3, &["step-00000004  damaged: optimizer.safetensors is missing"]);
    expect(&list(&checkpoint(&folder.0, 2)), 0, &["complete, 2 steps"]);
    expect(&list(&folder.path("log")), 2, &["holds no checkpoint", "Rule: ", "Fix: "]);
}

#[test]
fn a_model_or_optimizer_of_another_shape_is_refused_with_both_shapes() {
    let folder = Folder::new("shapes");
    expect(&run(1, &folder.0, "--steps 2"), 0, &[]);
    for (flags, parts) in [
        ("--hidden 64", ["`wte.weight` is (256, 32), this run's is (256, 64)", "config.toml"]),
        ("--layers 2", ["has no `h.1.attn.c_attn.weight`", "config.toml"]),
        ("--optimizer sgd", ["`wte.weight.exp_avg` of (256, 32) is not in this run", "config.toml"]),
    ] {
        let output = run(1, &folder.0, &format!("{FLAGS} {flags}"));
        expect(&output, 2, &parts);
        assert_eq!(metrics(&folder.0).len(), 2, "{flags}: {}", printed(&output));
    }
}

#[test]
fn a_checkpoint_whose_weights_fit_and_mean_another_model_is_refused_and_other_training_is_not() {
    let folder = Folder::new("meaning");
    expect(&run(1, &folder.0, "--steps 1"), 0, &[]);
    for (flags, changed) in [
        ("--heads 4", "model.heads = 4 (was 2), model.kv_heads = 4 (was 2). Rule: "),
        ("--tie-embeddings=false", "model.tie_embeddings = false (was true). Rule: "),
        ("--attention=false", "model.attention = false (was true), "),
    ] {
        let parts = ["is of another model: ", changed, "set [model] as in ", "step-00000001/config.toml"];
        expect(&run(1, &folder.0, &format!("--steps 2 {flags}")), 2, &parts);
    }
    expect(&run(2, &folder.0, "--steps 2 --heads 4"), 2, &["is of another model: "]);
    let told = "changed since the checkpoint, so the numbers may differ: model.hidden_dropout = 0.2 (was 0.1)";
    expect(&run(1, &folder.0, "--steps 2 --kv-heads 2 --hidden-dropout 0.2"), 0, &[told]);
}

#[test]
fn nothing_in_the_folder_of_checkpoints_is_removed_but_checkpoints() {
    let folder = Folder::new("foreign");
    let (dir, flags) = (folder.path("saved"), "--steps 6 --save-interval 1 --checkpoint-keep 1");
    let theirs = ["step-1/best.txt", "step-3/notes.txt", "step-best.tmp/notes.txt", "step-2.tmp", "step-000000001/x"];
    for name in theirs {
        let path = dir.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "keep me").unwrap();
    }
    expect(&run(1, &folder.0, flags), 0, &["done: loss"]);
    for name in theirs {
        assert_eq!(std::fs::read_to_string(dir.join(name)).unwrap(), "keep me", "{name}");
    }
    assert!(checkpoint(&folder.0, 6).exists() && !checkpoint(&folder.0, 5).exists(), "its own are pruned");
}

#[test]
fn a_folder_or_file_with_a_checkpoints_name_that_is_none_is_refused_and_stays() {
    for name in ["step-00000003/my-notes.txt", "step-00000003.tmp/my-notes.txt", "step-00000003", "step-00000003.tmp"] {
        let folder = Folder::new("named");
        let path = folder.path("saved").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "keep me").unwrap();
        let parts = ["step-00000003", " is there and is not a checkpoint. Rule: ", "Fix: "];
        expect(&run(1, &folder.0, "--steps 1"), 2, &parts);
        assert_eq!(std::fs::read_to_string(path).unwrap(), "keep me", "{name}");
    }
}

#[test]
fn damaged_lines_of_metrics_are_left_out_and_told_of_and_all_others_stay() {
    let folder = Folder::new("lines");
    expect(&run(1, &folder.0, "--steps 4"), 0, &[]);
    let path = folder.path("log/metrics.jsonl");
    let content = std::fs::read(&path).unwrap();
    let mut lines: Vec<Vec<u8>> = content.split_inclusive(|byte| *byte == b'\n').map(Vec::from).collect();
    let last = lines[1].len() - 1;
    lines[1][..last].fill(0);
    lines[2][5] = 0xff;
    std::fs::write(&path, lines.concat()).unwrap();
    let warning = format!("WARNING: {} is damaged: line 2, and 1 more was removed", path.display());
    expect(&run(1, &folder.0, "--steps 6"), 0, &[&warning, "at step 4"]);
    let text = std::fs::read_to_string(path).unwrap();
    let steps = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["step"].as_u64());
    assert_eq!(steps.collect::<Vec<_>>(), [1, 4, 5, 6].map(Some));
    assert!(text.as_bytes().starts_with(&lines[0]));
}

#[test]
fn ranks_that_see_different_folders_for_checkpoints_are_refused_at_the_start() {
    let folder = Folder::new("not-shared");
    let nodes = ["a", "b"].map(|node| folder.path(node));
    nodes.iter().for_each(|node| std::fs::create_dir(node).unwrap());
    let run = |nodes: [&Path; 2], flags: &str| {
        let mut command = mpirun_command(&folder.0);
        for (number, node) in nodes.into_iter().enumerate() {
            command.args([":"].iter().take(number)).args(["-n", "1", "-wdir"]).arg(node);
            command.arg(env!("CARGO_BIN_EXE_trainer")).args(arguments(&folder.0, flags));
        }
        command.output().unwrap()
    };
    for flags in ["--save ck", "--save ck --use-distributed-optimizer", "--save ck --heartbeat-seconds 0"] {
        let flags = format!("--steps 2 {flags}");
        let output = run([&nodes[0], &nodes[1]], &flags);
        let sees = "checkpoint.dir = ck: rank 1 does not see in ";
        expect(
            &output,
            2,
            &[sees, "b/ck what rank 0 wrote in ", "Rule: all ranks see the same checkpoints. Fix: put "],
        );
        let text = printed(&output);
        assert!(flags.contains("heartbeat") || text.matches(sees).count() == 1, "it is said once: {text}");
        assert!(!folder.path("log/metrics.jsonl").exists(), "{flags}: steps were done");
        let left = [nodes[0].join("ck"), folder.path("log/run.lock")];
        assert!(left.iter().all(|path| !path.exists()), "a start that is refused takes what it made with it");
    }
    expect(&run([&nodes[0], &nodes[0]], "--steps 2 --save ck"), 0, &["done: loss"]);
}
