//! `trainer batches` writes the batches that a run takes.

use std::path::Path;
use std::process::{Command, Output};

use data::{Source, Split, open};
use device::{HostValues, Staging};
use trainer::config::ConfigSources;

use crate::data_files::{Folder, LICENSES, small_tokenizer};

const SEQ: usize = 24;
const GLOBAL: usize = 6;
const STEPS: usize = 40;

fn batches(flags: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_trainer")).arg("batches").args(flags).output().unwrap()
}

/// Tokens of a file, `size` bytes each.
fn tokens(path: impl AsRef<Path>, size: usize) -> Vec<i32> {
    let little = |bytes: &[u8]| bytes.iter().rev().fold(0, |value, byte| value << 8 | i32::from(*byte));
    std::fs::read(path).unwrap().chunks(size).map(little).collect()
}

#[test]
fn files_hold_the_batches_of_the_source_step_by_step() {
    let folder = Folder::new("batches");
    let text = std::fs::read_to_string(format!("{LICENSES}/Apache-2.0")).unwrap();
    let (data, tokenizer) = (folder.file("text.txt", &text), folder.path("tokenizer.json"));
    small_tokenizer(tokenizer.as_ref(), &text);
    // An epoch is shorter than the steps, so that the order changes on the way. Vocabularies of both widths.
    for (vocab, size) in [("400", 2), ("70000", 4)] {
        let (train, validation) = (folder.path(&format!("train-{vocab}")), folder.path(&format!("valid-{vocab}")));
        let flags = format!(
            "--data-path {data} --tokenizer {tokenizer} --vocab {vocab} --seq-length {SEQ} --data-seed 5 --split 0.8 \
             --global-batch-size {GLOBAL} --micro-batch-size 3 --steps {STEPS} --eval-iters 2 \
             --output {train} --validation {validation}"
        );
        let output = batches(&flags.split_whitespace().collect::<Vec<_>>());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(told.contains(&format!("40 batches, 240 samples of 25 {}-bit tokens", 8 * size)), "{told}");

        let mut sources = ConfigSources::default();
        for (key, value) in [("path", &*data), ("tokenizer", &*tokenizer), ("seed", "5"), ("split", "0.8")] {
            sources.set(&format!("data.{key}"), value, "test").unwrap();
        }
        let config = sources.resolve().data;
        let source = open(config.path.as_ref().unwrap(), &config, SEQ, vocab.parse().unwrap()).unwrap();
        assert!(source.training[0].count() < (GLOBAL * STEPS) as u64, "an epoch is longer than the steps");
        for (split, path, steps) in [(Split::Train, &train, STEPS), (Split::Validation, &validation, 2)] {
            let written = tokens(path, size);
            assert_eq!(written.len(), steps * GLOBAL * (SEQ + 1));
            for (step, written) in written.chunks(GLOBAL * (SEQ + 1)).enumerate() {
                let batch = source.batch(split, (step * GLOBAL) as u64, GLOBAL, &Staging::default()).unwrap();
                assert_eq!(HostValues::I32(written.to_vec().into()), batch, "step {step}");
            }
        }
    }
}

#[test]
fn what_exists_is_not_overwritten_and_a_failure_leaves_nothing() {
    let folder = Folder::new("batches-refused");
    let (old, new) = (folder.file("old", "precious"), folder.path("new"));
    let (other, nowhere) = (folder.path("other"), folder.path("missing/new"));
    for (flags, code, needle) in [
        (vec!["--output", &old], 2, "exists"),
        (vec!["--output", &new, "--validation", &old], 2, "exists"),
        (vec!["--output", &new, "--validation", &new], 2, "both"),
        (vec!["--output", &new, "--preset", "mlp"], 2, "model.kind"),
        (vec!["--output", &new, "--validation", &other, "--data-path", LICENSES, "--split", "1"], 2, "data.split"),
        (vec!["--output", &nowhere], 2, "can be written"),
        (vec!["--output", &new, "--validation", &nowhere], 2, "can be written"),
        (vec!["--validation", &new], 2, "--output <FILE>"),
    ] {
        let output = batches(&[&flags[..], &["--steps", "2", "--eval-interval", "0"]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{flags:?}: {said}");
        assert!(said.contains(needle) && said.trim_end().lines().count() == 1, "{flags:?}: {said}");
    }
    assert_eq!(std::fs::read_to_string(&old).unwrap(), "precious");
    let left: Vec<_> = std::fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["old"], "a failure leaves nothing");
}
