//! In a folder with training, validation and test files each is used by its name, and a line says so.

use std::path::Path;

use crate::data_files::{Folder as DataFolder, llmc, packed};
use crate::harness::{Folder, expect, run, stdout_of, trainer};

/// Writes files into `data/` of a folder, with the folders within it. A file has one letter, `length` times.
fn write(folder: &Path, files: &[(&str, char, usize)]) -> String {
    for (name, letter, length) in files {
        let path = folder.join("data").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let text = letter.to_string().repeat(*length);
        let lines = if name.contains(".jsonl") { format!("{{\"text\": \"{text}\"}}\n") } else { text };
        std::fs::write(path, lines).unwrap();
    }
    folder.join("data").display().to_string()
}

/// The letters of all batches of a run and of its evaluation, and its output.
fn letters(folder: &Path, flags: &str) -> [String; 3] {
    let [train, validation] = ["train.out", "validation.out"].map(|name| folder.join(name));
    for earlier in [&train, &validation] {
        let _ = std::fs::remove_file(earlier);
    }
    let sizes = "--seq-length 8 --global-batch-size 4 --micro-batch-size 4 --steps 40 --eval-iters 10";
    let output = trainer(folder, &format!("batches {flags} {sizes} --output train.out --validation validation.out"));
    expect(&output, 0, &[]);
    let seen = |path: &Path| {
        let tokens = std::fs::read(path).unwrap();
        let letters: std::collections::BTreeSet<u8> = tokens.chunks(2).map(|token| token[0]).collect();
        letters.into_iter().filter(|&letter| letter > 0).map(char::from).collect()
    };
    [seen(&train), seen(&validation), crate::harness::printed(&output)]
}

#[test]
fn train_files_are_trained_on_validation_files_validate_and_test_files_are_left_alone() {
    for names in [
        ["train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl", "validation-00000-of-00001.jsonl", "test-0.jsonl"],
        ["data/train-00000-of-00002.txt", "data/train-00001-of-00002.txt", "data/val-0.txt", "data/eval.txt"],
        ["train/a.txt", "train/b.txt", "dev/a.txt", "test/a.txt"],
        ["corpus.train.txt", "train.txt", "valid.txt", "test.txt"],
    ] {
        let folder = Folder::new("splits");
        let files: Vec<_> = names.iter().zip("abvt".chars()).map(|(name, letter)| (*name, letter, 200)).collect();
        let data = write(&folder.0, &files);
        let [train, validation, said] = letters(&folder.0, &format!("--data-path {data}"));
        assert_eq!((&*train, &*validation), ("ab", "v"), "{names:?}");
        for part in [
            "notice: 2 files to train on, named as training data: ",
            "notice: 1 file to validate on in place of data.split, named as validation data: ",
            "notice: 1 file left out, named as test data: ",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        // Files that are named one by one are read, and a line says it.
        if !names[0].contains('/') {
            let [train, _, said] = letters(&folder.0, &format!("--data-path {data}/*t*"));
            assert!(train.contains('t') && said.contains("because data.path names them, though named as"), "{said}");
        }
        // The user's own validation data come first.
        std::fs::write(folder.path("own.txt"), "o".repeat(200)).unwrap();
        let own = format!("--data-path {data} --validation-path {}", folder.path("own.txt").display());
        let [train, validation, said] = letters(&folder.0, &own);
        assert_eq!((&*train, &*validation), ("ab", "o"));
        assert!(said.contains("notice: 1 file left out, named as validation data: "), "{said}");
        // A folder to evaluate on gives its validation files.
        let [train, validation, _] =
            letters(&folder.0, &format!("--data-path {} --validation-path {data}", folder.path("own.txt").display()));
        assert_eq!((&*train, &*validation), ("o", "v"));
    }
}

#[test]
fn a_folder_without_train_files_or_whose_names_only_look_like_splits_is_trained_on_whole() {
    for names in [["validation.txt", "test.txt", "notes.txt"], ["training-notes.txt", "latest-news.txt", "test.txt"]] {
        let folder = Folder::new("splits-none");
        let files: Vec<_> = names.iter().zip("abc".chars()).map(|(name, letter)| (*name, letter, 400)).collect();
        let data = write(&folder.0, &files);
        let [train, validation, said] = letters(&folder.0, &format!("--data-path {data} --split 0.99"));
        let mut all: Vec<char> = (train + &validation).chars().collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all, ['a', 'b', 'c']);
        assert!(!said.contains("named as"), "{said}");
    }
}

#[test]
fn token_files_and_conversations_have_the_same_splits_as_text() {
    let folder = DataFolder::new("splits-tokens");
    let tokens = |letter: i32| vec![letter; 200];
    std::fs::create_dir(folder.path("llmc")).unwrap();
    for (name, letter) in
        [("fineweb_train_000001.bin", 97), ("fineweb_train_000002.bin", 98), ("fineweb_val_000000.bin", 118)]
    {
        folder.file(&format!("llmc/{name}"), llmc(20240520, 1, &tokens(letter), 2));
    }
    std::fs::create_dir(folder.path("nano")).unwrap();
    folder.file("nano/train.bin", packed(&[tokens(97), tokens(98)].concat(), 2));
    folder.file("nano/val.bin", packed(&tokens(118), 2));
    for flags in [
        format!("--data-path {}", folder.path("llmc")),
        format!("--data-path {} --raw-tokens u16", folder.path("nano")),
    ] {
        let [train, validation, _] = letters(&folder.0, &flags);
        assert_eq!((&*train, &*validation), ("ab", "v"), "{flags}");
    }

    let line =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}\n";
    std::fs::create_dir(folder.path("chats")).unwrap();
    for (name, lines) in [("train_sft.jsonl", 5), ("validation.jsonl", 2), ("test.jsonl", 3)] {
        folder.file(&format!("chats/{name}"), line.repeat(lines));
    }
    let runs = Folder::new("splits-chats");
    let flags = format!(
        "--sft --chat-template chatml --data-path {} --seq-length 128 --steps 1 --eval-interval 1",
        folder.path("chats")
    );
    let says = ["5 samples per epoch, 2 to validate", "1 file left out, named as test data", "done: loss"];
    expect(&run(1, &runs.0, &flags), 0, &says);
}

#[test]
fn tokenize_reads_the_train_files_of_a_folder_and_says_what_it_leaves_out() {
    let folder = Folder::new("splits-tokenize");
    let data = write(&folder.0, &[("train.txt", 'a', 50), ("valid.txt", 'v', 50), ("test.txt", 't', 50)]);
    let output = folder.path("tokens").display().to_string();
    let said = stdout_of(&["tokenize", "--output", &output, &data]);
    assert!(
        said.starts_with("1 document of 1 file, ") && said.contains("51.00 tokens") | said.contains("51 tokens"),
        "{said}"
    );
    for part in
        ["1 file to train on", "1 file left out, named as validation data", "1 file left out, named as test data"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    // A file that the user names is read, whatever it is called.
    let output = folder.path("validation-tokens").display().to_string();
    let said = stdout_of(&["tokenize", "--output", &output, &format!("{data}/valid.txt")]);
    assert!(said.starts_with("1 document of 1 file, ") && !said.contains("left out"), "{said}");
}

#[test]
fn a_run_that_began_before_a_folder_had_splits_says_that_its_data_changed() {
    let folder = Folder::new("splits-resumed");
    let data = write(&folder.0, &[("train.txt", 'a', 400), ("notes.txt", 'n', 400)]);
    let flags = |steps: usize| format!("--data-path {data} --steps {steps} --save-interval 2");
    expect(&run(1, &folder.0, &flags(2)), 0, &["done: loss"]);
    write(&folder.0, &[("valid.txt", 'v', 400)]);
    expect(
        &run(1, &folder.0, &flags(4)),
        0,
        &["data of data.path = 401 tokens (was 802)", "1 file left out, beside files"],
    );
}

#[test]
fn training_files_are_not_evaluated_on() {
    let folder = Folder::new("splits-refused");
    let data = write(&folder.0, &[("train.txt", 'a', 400), ("test.txt", 't', 400)]);
    std::fs::write(folder.path("own.txt"), "o".repeat(400)).unwrap();
    let flags = format!("--data-path {} --validation-path {data} --steps 1", folder.path("own.txt").display());
    let says =
        ["data.validation_path = `", "has training files, such as ", "and none for validation. Rule: ", "Fix: name"];
    expect(&run(1, &folder.0, &flags), 2, &says);
}
