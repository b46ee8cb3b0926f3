//! The files that a run writes beside `metrics.jsonl`, read back by a reader that shares no code with the writer.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::checkpoints::disk_shim::{Fault, break_file};
use crate::harness::{
    Folder, command, expect, logged_steps, metrics, output_of, printed, rank_ids, run, signal, start, steps_done,
    wait_for,
};

/// CRC-32C bit by bit (Castagnoli's polynomial, reversed), masked as TensorFlow does.
fn masked_crc(data: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in data {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    let crc = !crc;
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// A field of a protobuf message: its number, and its value as a number or as bytes.
enum Field<'m> {
    Number(u64, u64),
    Bytes(u64, &'m [u8]),
}

fn varint(data: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let byte = data[0];
        *data = &data[1..];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    value
}

fn fields(mut data: &[u8]) -> Vec<Field<'_>> {
    let mut fields = Vec::new();
    while !data.is_empty() {
        let key = varint(&mut data);
        let fixed = |data: &mut &[u8], size: usize| {
            let (head, rest) = data.split_at(size);
            *data = rest;
            head.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
        };
        fields.push(match key & 7 {
            0 => Field::Number(key >> 3, varint(&mut data)),
            1 => Field::Number(key >> 3, fixed(&mut data, 8)),
            5 => Field::Number(key >> 3, fixed(&mut data, 4)),
            2 => {
                let length = varint(&mut data) as usize;
                let (content, rest) = data.split_at(length);
                data = rest;
                Field::Bytes(key >> 3, content)
            }
            other => panic!("wire type {other}"),
        });
    }
    fields
}

#[derive(Debug, Default, PartialEq)]
struct Event {
    time: f64,
    step: u64,
    version: String,
    starts_anew: bool,
    scalars: Vec<(String, f32)>,
}

fn event(data: &[u8]) -> Event {
    let mut event = Event::default();
    for field in fields(data) {
        match field {
            Field::Number(1, bits) => event.time = f64::from_bits(bits),
            Field::Number(2, step) => event.step = step,
            Field::Bytes(3, version) => event.version = String::from_utf8(version.to_vec()).unwrap(),
            Field::Bytes(7, status) => event.starts_anew = matches!(fields(status)[..], [Field::Number(1, 1)]),
            Field::Bytes(5, summary) => {
                for value in fields(summary) {
                    let Field::Bytes(1, value) = value else { panic!("a summary has values") };
                    let [Field::Bytes(1, tag), Field::Number(2, bits)] = fields(value)[..] else {
                        panic!("tag, value")
                    };
                    let tag = String::from_utf8(tag.to_vec()).unwrap();
                    event.scalars.push((tag, f32::from_bits(bits as u32)));
                }
            }
            _ => panic!("an event has no such field"),
        }
    }
    event
}

/// All events of a file, every checksum compared.
fn events(path: &Path) -> Vec<Event> {
    let file = std::fs::read(path).unwrap();
    let mut rest = &file[..];
    let mut events = Vec::new();
    let word = |at: &[u8]| u32::from_le_bytes(at[..4].try_into().unwrap());
    while !rest.is_empty() {
        let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
        assert_eq!(word(&rest[8..]), masked_crc(&rest[..8]), "checksum of a length");
        let message = &rest[12..12 + length];
        assert_eq!(word(&rest[12 + length..]), masked_crc(message), "checksum of an event");
        events.push(event(message));
        rest = &rest[16 + length..];
    }
    events
}

fn event_files(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder.join("log")).unwrap().map(|entry| entry.unwrap().path());
    let named =
        |path: &std::path::PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("events.out.tfevents.");
    let mut files: Vec<_> = entries.filter(named).collect();
    files.sort();
    files
}

fn rows(folder: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join("log/wandb-history.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The folders inside `log` for the metrics of earlier runs, in order.
fn earlier(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder.join("log")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.retain(|name| name.starts_with("earlier-"));
    names.sort();
    names
}

#[test]
fn the_reader_of_this_test_knows_the_published_checksum() {
    // RFC 3720, B.4: 32 bytes of zeros have CRC-32C 8a9136aa.
    let unmasked = masked_crc(&[0; 32]).wrapping_sub(0xa282_ead8);
    assert_eq!(unmasked.rotate_left(15), 0x8a91_36aa);
}

#[test]
fn tensorboard_and_wandb_files_have_the_numbers_of_metrics_jsonl_and_go_on_where_a_run_does() {
    let folder = Folder::new("run-log");
    let both = "--tensorboard --wandb --save-interval 3";
    expect(&run(1, &folder.0, &format!("--steps 4 {both}")), 0, &[]);
    let truth = |at: usize, key: usize| metrics(&folder.0)[at][key].as_f64();
    let check = |events: &[Event], first: usize| {
        for (event, step) in events.iter().zip(first..) {
            assert_eq!(event.step, step as u64 + 1);
            let scalar = |name: &str| event.scalars.iter().find(|(tag, _)| tag == name).map(|(_, value)| *value);
            for (key, name) in [(0, "train/loss"), (1, "train/grad_norm"), (2, "train/lr"), (3, "validation/loss")] {
                assert_eq!(scalar(name), truth(step, key).map(|value| value as f32), "{name} of step {step}");
            }
            let perplexity = truth(step, 3).map(|loss| loss.exp() as f32);
            assert_eq!(scalar("validation/perplexity"), perplexity, "perplexity of step {step}");
            assert!(scalar("speed/tokens_per_s").unwrap() > 0.0 && scalar("speed/mfu").is_none());
        }
    };
    let files = event_files(&folder.0);
    assert_eq!(files.len(), 1);
    let first = events(&files[0]);
    assert_eq!((first[0].version.as_str(), first.len()), ("brain.Event:2", 5));
    assert!(first[0].time > 1.7e9 && first.iter().all(|event| !event.starts_anew));
    check(&first[1..], 0);
    // A run that goes on after step 3 with step 4 done before: its files have steps 4 to 6 once.
    std::fs::remove_dir_all(crate::harness::checkpoint(&folder.0, 4)).unwrap();
    expect(&run(1, &folder.0, &format!("--steps 6 {both}")), 0, &["at step 3"]);
    let files = event_files(&folder.0);
    let second: Vec<Event> = files.iter().flat_map(|file| events(file)).skip(first.len()).collect();
    assert_eq!((files.len(), second.len()), (2, 5));
    assert!(second[1].starts_anew && second[1].step == 4, "TensorBoard is told to forget step 4 of the first file");
    check(&second[2..], 3);
    let rows = rows(&folder.0);
    assert_eq!(rows.len(), 6);
    for (step, row) in rows.iter().enumerate() {
        assert_eq!(row["_step"], step + 1);
        assert_eq!(row["train/loss"].as_f64(), truth(step, 0), "step {step}");
        assert_eq!(row["validation/loss"].as_f64(), truth(step, 3), "step {step}");
        assert!(row["_timestamp"].as_f64().unwrap() > 1.7e9);
        assert!(step == 0 || row["_runtime"].as_f64() > rows[step - 1]["_runtime"].as_f64(), "time goes on");
    }
    let summary = std::fs::read_to_string(folder.path("log/wandb-summary.json")).unwrap();
    let summary: Value = serde_json::from_str(&summary).unwrap();
    assert_eq!((&summary["_step"], &summary["train/loss"]), (&rows[5]["_step"], &rows[5]["train/loss"]));
    assert_eq!(summary["validation/loss"], rows[5]["validation/loss"]);
}

#[test]
fn neither_is_written_unless_it_is_wanted() {
    let folder = Folder::new("run-log-off");
    expect(&run(1, &folder.0, "--steps 1"), 0, &[]);
    assert!(event_files(&folder.0).is_empty() && !folder.path("log/wandb-history.jsonl").exists());
}

#[test]
fn metrics_of_two_runs_never_mix_and_none_are_lost() {
    let folder = Folder::new("run-log-two");
    let text = |name: &str| std::fs::read_to_string(folder.path("log").join(name).join("metrics.jsonl")).unwrap();
    let steps = || -> Vec<u64> {
        let step = |line: &str| serde_json::from_str::<Value>(line).unwrap()["step"].as_u64().unwrap();
        text("").lines().map(step).collect()
    };
    let told = format!("metrics of another run were moved to {}/earlier-", folder.path("log").display());
    let moved = |number: usize| {
        let names = earlier(&folder.0);
        assert_eq!(names.len(), number, "{names:?}");
        names[number - 1].clone()
    };
    let other = |name: &str, steps: usize| format!("--steps {steps} --wandb --save {}", folder.path(name).display());
    expect(&run(1, &folder.0, "--steps 4 --wandb"), 0, &[]);
    let first = text("");
    expect(&run(1, &folder.0, &other("b", 2)), 0, &[&told]);
    assert_eq!((text(&moved(1)), steps()), (first, vec![1, 2]));
    let second = text("");
    expect(&run(1, &folder.0, "--steps 6 --wandb"), 0, &["at step 4", &told]);
    assert_eq!((text(&moved(2)), steps()), (second, vec![5, 6]));
    assert_eq!(rows(&folder.0).len(), 2, "the history of Weights & Biases goes with the metrics");
    // Going on with its own, also if the name of the run is not known.
    expect(&run(1, &folder.0, "--steps 7"), 0, &["at step 6"]);
    std::fs::remove_file(folder.path("log/run.id")).unwrap();
    expect(&run(1, &folder.0, "--steps 8"), 0, &["at step 7"]);
    assert_eq!(steps(), [5, 6, 7, 8]);
    // Another run's that have more steps than the checkpoint.
    expect(&run(1, &folder.0, &other("c", 10)), 0, &[&told]);
    moved(3);
    expect(&run(1, &folder.0, "--steps 9"), 0, &["at step 8", &told]);
    assert_eq!((steps(), text(&moved(4)).lines().count()), (vec![9], 10));
}

#[test]
fn metrics_that_are_moved_aside_are_named_by_the_time_and_the_model_of_their_own_run() {
    let folder = Folder::new("run-log-named");
    let other = |name: &str| format!("--steps 2 --layers 2 --hidden 16 --save {}", folder.path(name).display());
    expect(&run(1, &folder.0, "--steps 2"), 0, &[]);
    let began = std::fs::read_to_string(folder.path("log/run.id")).unwrap().lines().nth(1).unwrap().to_string();
    expect(&run(1, &folder.0, &other("b")), 0, &["gpt-2x16 (tiny with "]);
    let first = earlier(&folder.0);
    assert_eq!(first, [format!("earlier-{}-gpt-1x32", began.trim_end_matches('Z').replace(':', "-"))]);
    assert!(began.starts_with("20") && began.len() == "2026-11-23T10:31:05Z".len(), "{began}");
    // An older build wrote no time: then it is the time of the metrics.
    let id = folder.path("log/run.id");
    let name = std::fs::read_to_string(&id).unwrap().lines().next().unwrap().to_string();
    std::fs::write(id, name + "\n").unwrap();
    expect(&run(1, &folder.0, &other("c")), 0, &[]);
    let second = earlier(&folder.0);
    assert!(second.len() == 2 && second[1].ends_with("-gpt-2x16") && second[1].len() == first[0].len(), "{second:?}");
}

#[test]
fn a_fork_leaves_its_parents_metrics_whole_and_has_its_own_name() {
    let folder = Folder::new("run-log-fork");
    let log = |name: &str| std::fs::read_to_string(folder.path("log").join(name)).unwrap();
    expect(&run(1, &folder.0, "--steps 8 --save-interval 4 --wandb"), 0, &[]);
    let parent = ["metrics.jsonl", "wandb-history.jsonl", "run.id"].map(log);
    let fork = format!("--wandb --lr 1e-2 --save {} --resume", folder.path("other").display());
    let from = format!("{fork} {}", crate::harness::checkpoint(&folder.0, 4).display());
    let aside = format!("metrics of another run were moved to {}/earlier-", folder.path("log").display());
    expect(&run(1, &folder.0, &format!("--steps 6 {from}")), 0, &["at step 4", &aside]);
    for (before, name) in parent.iter().zip(["metrics.jsonl", "wandb-history.jsonl", "run.id"]) {
        assert_eq!(&log(&format!("{}/{name}", earlier(&folder.0)[0])), before, "{name}");
    }
    let steps = || -> Vec<Value> {
        let step = |line: &str| serde_json::from_str::<Value>(line).unwrap()["step"].clone();
        log("metrics.jsonl").lines().map(step).collect()
    };
    let name = log("run.id");
    assert!(steps() == [5, 6] && name != parent[2]);
    // Going on from its own folder, named or found, it keeps name and file.
    expect(&run(1, &folder.0, &format!("--steps 7 {fork} auto")), 0, &["at step 6"]);
    expect(
        &run(1, &folder.0, &format!("--steps 8 {fork} {}", folder.path("log/../other").display())),
        0,
        &["at step 7"],
    );
    assert_eq!((steps(), log("run.id")), ([5, 6, 7, 8].map(Value::from).to_vec(), name));
    // The same with metrics of the parent by an older build, without a name.
    expect(&run(1, &folder.0, "--steps 9"), 0, &["at step 8", "earlier-"]);
    std::fs::remove_file(folder.path("log/run.id")).unwrap();
    let before = log("metrics.jsonl");
    let unsaved = format!("--steps 6 --save {} --resume", folder.path("third").display());
    expect(
        &run(1, &folder.0, &format!("{unsaved} {}", crate::harness::checkpoint(&folder.0, 4).display())),
        0,
        &["earlier-"],
    );
    assert_eq!(log(&format!("{}/metrics.jsonl", earlier(&folder.0)[2])), before);
}

/// While rank 1 is stopped, rank 0 waits for it in the submission of a step.
#[test]
fn a_step_whose_submission_takes_seconds_is_told_when_it_ends_and_others_after_the_next_submission() {
    let folder = Folder::new("log-long-step");
    let child = start(2, &folder.0, "--eval-interval 0 --save-interval 0 --log-interval 1");
    let rank = rank_ids(&child)[1];
    signal(rank, "STOP");
    std::thread::sleep(Duration::from_secs(3));
    signal(rank, "CONT");
    let stopped = steps_done(&folder.0);
    wait_for("no step was done", || (steps_done(&folder.0) >= stopped + 5).then_some(()));
    signal(child.id(), "USR1");
    expect(&output_of(child), 0, &["asked to end"]);
    let is_long = |step: &Value| step["host_ms"].as_f64().unwrap() > 2e3;
    let long: Vec<bool> = logged_steps(&folder.path("log")).iter().map(is_long).collect();
    let log = std::fs::read_to_string(folder.path("log/rank-0.jsonl")).unwrap();
    let mut told = 0;
    for line in log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        // The step that is told, and the one that was submitted last.
        let text = line["fields"]["message"].as_str().and_then(|text| text.strip_prefix("step ")?.split_once('/'));
        let Some(step) = text.and_then(|(step, _)| step.trim().parse::<usize>().ok()) else { continue };
        let submitted = if long[step - 1] || step == long.len() { step } else { step + 1 };
        assert_eq!(line["span"]["step"], submitted, "{line}");
        told += 1;
    }
    assert!(told == long.len() && long.contains(&true), "{told} of {} are told, long: {long:?}", long.len());
}

#[test]
fn an_evaluation_of_no_batches_is_none() {
    let folder = Folder::new("log-no-evaluation");
    let text = folder.path("text.txt");
    std::fs::write(&text, "all of it is trained on. ".repeat(40)).unwrap();
    let flags = format!("--steps 4 --eval-interval 2 --data-path {} --split 1 --eval-iters", text.display());
    expect(&run(1, &folder.0, &format!("{flags} 1")), 2, &["data.split = 1 with train.eval_interval = 2"]);
    let output = run(1, &folder.0, &format!("{flags} 0 --enable-cuda-graph"));
    expect(&output, 0, &["done: loss", "0 for evaluation"]);
    let log = std::fs::read_to_string(folder.path("log/metrics.jsonl")).unwrap();
    assert!(log.lines().count() == 4 && !log.contains("validation"), "{log}");
    assert!(!printed(&output).contains("validation loss"));
}

#[test]
fn a_run_tells_of_settings_without_effect_once_and_goes_on() {
    let folder = Folder::new("log-notices");
    let text = printed(&run(2, &folder.0, "--steps 2 --sequence-parallel --cuda-graph-scope full_iteration"));
    for setting in ["parallel.sequence_parallel = true", "cuda_graph.scope = \"full_iteration\""] {
        let notice = format!("notice: {setting} has no effect: ");
        assert_eq!(text.matches(&notice).count(), 1, "{notice:?} in {text}");
    }
    assert!(text.contains("done: loss"), "{text}");
}

#[test]
fn a_log_shows_no_character_that_reorders_or_hides_text() {
    let folder = Folder::new("log-hidden");
    let name = "gnp\u{202e}txt.\u{200b}\u{feff}\u{ad}\u{e0041}jsonl";
    let data = folder.path(name);
    std::fs::write(&data, "{\"text\": \"some words to train on, and some more of them\"}\n".repeat(40)).unwrap();
    let mut command = command(1, &folder.0, "--steps 1 --eval-interval 0");
    let output = command.arg("--data-path").arg(&data).output().unwrap();
    expect(&output, 0, &["gnp\\u{202e}txt."]);
    let log = std::fs::read_to_string(folder.path("log/run.log")).unwrap();
    assert!(log.contains("gnp\\u{202e}txt."), "{log}");
    let raw = name.chars().filter(|character| !character.is_ascii());
    for character in raw {
        assert!(!log.contains(character) && !printed(&output).contains(character), "{character:?} in {log}");
    }
}

#[test]
fn a_log_keeps_what_it_has_when_a_second_run_is_refused_and_when_a_run_goes_on_after_a_fault() {
    let folder = Folder::new("run-log-kept");
    let logs =
        || ["run.log", "rank-0.jsonl"].map(|name| std::fs::read_to_string(folder.path("log").join(name)).unwrap());
    let mut before: [String; 2] = Default::default();
    let mut keeps = |when: &str| {
        let now = logs();
        for (before, now) in before.iter().zip(&now) {
            assert!(now.starts_with(before.as_str()) && now.len() > before.len(), "{when}: {before:?} became {now:?}");
            assert!(!now.contains('\0'), "{when}: {now:?}");
        }
        before = now.clone();
        now[0].clone()
    };
    let child = start(1, &folder.0, "");
    keeps("it trains");
    expect(&run(1, &folder.0, "--steps 3"), 2, &["logging.dir"]);
    keeps("a second one is refused");
    signal(child.id(), "TERM");
    expect(&output_of(child), 0, &["asked to end"]);
    assert!(keeps("it ends").contains("asked to end"));
    let mut command = command(1, &folder.0, "--steps 1000000");
    break_file(&mut command, &folder.0, &folder.path("log/metrics.jsonl"), &Fault::Full);
    let output = command.output().unwrap();
    expect(&output, 3, &["error on rank 0: the metrics in "]);
    let text = String::from_utf8(output.stderr).unwrap();
    let cause = text.lines().find(|line| line.starts_with("error on rank 0: ")).unwrap();
    keeps("it fails");
    expect(&run(1, &folder.0, "--steps 3"), 0, &["done before"]);
    let log = keeps("it starts again");
    assert!(log.contains(cause), "{cause:?} is not in {log}");
    let starts: Vec<&str> = log.lines().filter(|line| line.contains(" starts as process ")).collect();
    assert_eq!(starts.len(), 4, "{log}");
    let version = format!("trainer {} starts", env!("CARGO_PKG_VERSION"));
    assert!(starts[0].contains(&version) && starts[0].contains("\"--steps\", \"1000000\""), "{log}");
}
