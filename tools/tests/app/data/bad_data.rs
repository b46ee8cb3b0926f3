//! Data that cannot be trained on are refused at the start, with the problem, the rule and the fix, and exit code 2.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::data_files::{Folder, llmc, megatron_index, packed, small_tokenizer};

const TRAINER: &str = env!("CARGO_BIN_EXE_trainer");

/// Runs the trainer on input that is wrong; everything in `needles` must be in its one line.
fn refused(name: &str, arguments: &[&str], needles: &[&str]) {
    let output = Command::new(TRAINER).args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{name}: {text}");
    assert!(output.stdout.is_empty(), "{name} began before it was refused");
    assert_eq!(text.trim_end().lines().count(), 1, "{name}: {text}");
    for needle in needles.iter().chain(&["error: ", "Rule: ", "Fix: "]) {
        assert!(text.contains(needle), "{name}: `{needle}` is not in: {text}");
    }
}

#[test]
fn data_that_cannot_be_trained_on_are_refused_with_the_rule_and_the_fix() {
    let folder = Folder::new("bad-data");
    let ids: Vec<i32> = (0..300).map(|i| i % 250).collect();
    let good = llmc(20240520, 1, &ids, 2);
    let megatron = |name: &str, index: &[u8], tokens: &[i32]| {
        folder.file(&format!("{name}.idx"), index);
        folder.file(&format!("{name}.bin"), packed(tokens, 2))
    };
    let index = megatron_index(8, &[100, 200], 2);
    let mut moved = index.clone();
    moved[34 + 8 + 8] = 2;
    let path = folder.file("good.bin", &good);
    let text = folder.file("text.txt", "text ".repeat(100));
    std::fs::create_dir(folder.path("nothing")).unwrap();
    let pipe = |name: &str| {
        assert!(Command::new("mkfifo").arg(folder.path(name)).status().unwrap().success());
        folder.path(name)
    };
    let blend = |weights: [&str; 2]| format!("[{}, {path:?}, {}, {path:?}]", weights[0], weights[1]);

    let paths: Vec<(&str, String, &[&str])> = vec![
        ("missing file", folder.path("absent.txt"), &["absent.txt", "No such file", "check the path"]),
        ("missing .bin of an .idx", folder.path("absent.idx"), &["absent.bin", "No such file"]),
        ("missing .idx of a prefix", folder.path("good"), &["good", "No such file"]),
        ("empty text", folder.file("empty.txt", ""), &["empty.txt", "holds no UTF-8 text"]),
        ("empty folder", folder.path("nothing"), &["nothing", "holds no UTF-8 text"]),
        ("empty token file", folder.file("empty.bin", ""), &["empty.bin is empty"]),
        ("shorter than a sample", folder.file("short.txt", "short"), &["holds 6 tokens", "65 tokens", "seq_length"]),
        ("too short to split", folder.file("one.txt", "x".repeat(70)), &["has 1 sample, ", "data.split = 0.9"]),
        ("header cut", folder.file("header.bin", &good[..700]), &["has 700 bytes", "header of 1024 bytes"]),
        ("tokens cut", folder.file("tokens.bin", &good[..good.len() - 1]), &["1623 bytes", "300 tokens", "1624 bytes"]),
        ("wrong version", folder.file("v9.bin", llmc(20240520, 9, &ids, 2)), &["version 9", "have version 1"]),
        ("wrong magic", folder.file("raw.bin", packed(&ids, 2)), &["20240520", "data.raw_tokens"]),
        ("index of another kind", megatron("kind", b"MZ", &ids), &["starts with \"MZ\"", "MMIDIDX"]),
        ("index cut in its header", megatron("head", &index[..20], &ids), &["has 20 bytes", "34 bytes"]),
        ("index cut", megatron("cut", &index[..60], &ids), &["has 60 bytes", "2 sequences", "82 bytes"]),
        ("index version", megatron("v2", &[&index[..9], &[2], &index[10..]].concat(), &ids), &["version 2"]),
        ("index of floats", megatron("float", &megatron_index(7, &[300], 2), &ids), &["tokens of type 7"]),
        ("index with holes", megatron("hole", &moved, &ids), &["sequence 1, of 200 tokens", "at byte 200"]),
        (
            "index of another .bin",
            megatron("other", &index, &ids[..299]),
            &["600 bytes", "has 598", "of the same dataset"],
        ),
        (
            "id past the vocabulary",
            folder.file("big.bin", llmc(20240520, 1, &[50256; 300], 2)),
            &["token 50256", "255", "50257"],
        ),
        ("negative id", megatron("minus", &megatron_index(3, &[300], 2), &[-1; 300]), &["token -1", "0 to"]),
        ("unknown extension", folder.file("x.abc", [0xff; 99]), &[".abc, is unknown"]),
        (
            "Parquet",
            folder.file("x.parquet", [b"PAR1".as_slice(), &[0xff; 99]].concat()),
            &["x.parquet cannot be read", "a Parquet file is whole", "download or write it again"],
        ),
        (
            "folder with Parquet",
            {
                std::fs::create_dir(folder.path("hub")).unwrap();
                folder.file("hub/README.md", "words ".repeat(100));
                folder.file("hub/part.parquet", "PAR1");
                folder.path("hub")
            },
            &["hub/part.parquet cannot be read", "download or write it again"],
        ),
        (
            "packed text cut",
            folder.file("cut.gz", [0x1f, 0x8b, 8, 0, 0]),
            &["cut.gz cannot be unpacked", "pack it again"],
        ),
        ("pattern of nothing", folder.path("*.nothing"), &["*.nothing` matches nothing", "check the path"]),
        ("text that is none", folder.file("x.txt", [0xff; 99]), &["x.txt is not UTF-8 text (byte 0). Rule: data are"]),
        (
            "JSON that is no text",
            folder.file("b.jsonl", [0xff; 9]),
            &["b.jsonl is not UTF-8 text (byte 0). Rule: a file of JSON lines"],
        ),
        (
            "JSON that is no object",
            folder.file("l.json", "\"some words\""),
            &["l.json does not begin with a line that is a JSON object", "one object per line", "jq -c"],
        ),
        (
            "JSON that is a list of texts",
            folder.file("t.json", "[\"some words\",\n\"more words\"]"),
            &["t.json line 1 has no such text", "`text`"],
        ),
        (
            "JSON of empty texts",
            folder.file("e.jsonl", "{\"text\": \"\"}\n".repeat(200)),
            &["e.jsonl", "holds no UTF-8 text"],
        ),
        ("pipe", pipe("pipe"), &["pipe cannot be read: it is not a regular file"]),
        ("pipe of tokens", pipe("pipe.bin"), &["pipe.bin cannot be read: it is not a regular file"]),
        ("weight of no number", blend(["0.5", "nan"]), &["weight NaN", "finite"]),
        ("weights without a finite sum", blend(["1e308", "1e308"]), &["the sum of all weights is finite"]),
        (
            "broken JSON",
            folder.file("x.jsonl", "{\"text\": \"a\"}\n{"),
            &["line 2 is not JSON", "Fix: correct that line\n"],
        ),
        (
            "JSON without text",
            folder.file("y.jsonl", "{\"content\": \"a\"}"),
            &["line 1 has no such text", "`text`", "--text-key KEY"],
        ),
        ("weight 0", blend(["0", "1"]), &["weight 0", "above 0"]),
        ("negative weight", blend(["1", "-0.5"]), &["weight -0.5", "above 0"]),
        ("tiny weight", blend(["1", "1e-9"]), &["weight 0.000000001", "1 in 65536"]),
        ("weight without a path", format!("[0.5, {path:?}, 0.5]"), &["data.path = [0.5", "a weight before every path"]),
        ("empty list", "[]".into(), &["data.path = []"]),
        ("list of lists", "[[1]]".into(), &["data.path = [[1]]", "a list of paths"]),
    ];
    for (name, path, needles) in &paths {
        refused(name, &["--data-path", path], needles);
    }

    let no_end = folder.path("no-end.json");
    let mut plain = small_tokenizer(no_end.as_ref(), "some text").to_string(false).unwrap();
    plain = plain.replace("<|endoftext|>", "<|separator|>");
    std::fs::write(&no_end, plain).unwrap();
    let json = folder.path("tokenizer.json");
    small_tokenizer(json.as_ref(), "some text");
    let raw = folder.file("odd.bin", [1u8; 301]);
    let blank = folder.file("blank.txt", "");
    let (piped, empty) = (folder.path("pipe"), folder.path("e.jsonl"));
    let high = folder.file("high.txt", "text ".repeat(100));
    let cases: Vec<(&str, Vec<&str>, &[&str])> = vec![
        (
            "missing tokenizer",
            vec!["--data-path", &text, "--tokenizer", "absent.json"],
            &["absent.json", "No such file"],
        ),
        (
            "no tokenizer",
            vec!["--data-path", &text, "--tokenizer", &text],
            &["text.txt is not a tokenizer", "tokenizer.json"],
        ),
        ("no end of text", vec!["--data-path", &text, "--tokenizer", &no_end], &["<|endoftext|>", "data.end_of_text"]),
        (
            "unknown end",
            vec!["--data-path", &text, "--tokenizer", &json, "--end-of-text", "<e>"],
            &["`<e>`", "no such token"],
        ),
        ("end of bytes", vec!["--data-path", &text, "--end-of-text", "<e>"], &["byte 0", "unset"]),
        ("bytes past the vocabulary", vec!["--data-path", &high, "--vocab", "100"], &["token 120", "99", "121"]),
        ("odd raw file", vec!["--data-path", &raw, "--raw-tokens", "u16"], &["301 bytes", "2 bytes each"]),
        ("split above 1", vec!["--data-path", &path, "--split", "1.5"], &["data.split = 1.5"]),
        ("nothing to evaluate on", vec!["--data-path", &path, "--split", "1"], &["data.split = 1", "eval_interval"]),
        (
            "missing validation",
            vec!["--data-path", &path, "--validation-path", "absent"],
            &["data.validation_path", "absent"],
        ),
        (
            "validation of 0",
            vec!["--data-path", &path, "--validation-path", "0", &path],
            &["data.validation_path: weight 0"],
        ),
        (
            "tokenize: output taken",
            vec!["tokenize", "--output", &folder.0.to_str().unwrap(), &text],
            &["--output", "nothing is overwritten"],
        ),
        (
            "tokenize: missing file",
            vec!["tokenize", "--output", "never", "absent.txt"],
            &["absent.txt", "No such file"],
        ),
        ("tokenize: no text", vec!["tokenize", "--output", "never", &blank], &["there is no UTF-8 text in 1 file"]),
        ("weight of no number as a flag", vec!["--data-path", "0.5", &path, "nan", &path], &["weight NaN", "finite"]),
        ("tokenize: a pipe", vec!["tokenize", "--output", "never", &piped], &["it is not a regular file"]),
        ("tokenize: empty texts", vec!["tokenize", "--output", "never", &empty], &["there is no UTF-8 text in 1 file"]),
        ("tokenize: not text", vec!["tokenize", "--output", "never", TRAINER], &["not UTF-8 text (byte "]),
    ];
    for (name, arguments, needles) in &cases {
        refused(name, arguments, needles);
    }
    assert!(!std::path::Path::new("never").exists());
}

#[test]
fn tokenizers_that_panic_or_make_texts_explode_are_refused_in_bounded_time() {
    let folder = Folder::new("bad-tokenizer");
    let text = folder.file("text.txt", "a text of words ".repeat(1000));
    let good = folder.path("good.json");
    small_tokenizer(good.as_ref(), "some text");
    let good: serde_json::Value = serde_json::from_slice(&std::fs::read(good).unwrap()).unwrap();
    let replace =
        |from: &str, to: &str| serde_json::json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let chain = |steps: Vec<serde_json::Value>| serde_json::json!({"type": "Sequence", "normalizers": steps});
    let long = "a".repeat(60);
    let cases: Vec<(&str, &str, serde_json::Value, &str)> = vec![
        ("chain", "normalizer", chain(vec![replace("a", &long); 40]), "its normalizer makes a text of "),
        ("nested chain", "normalizer", chain(vec![chain(vec![replace("a", &long)]); 40]), "are allowed"),
        ("long replacement", "normalizer", replace("a", &"x".repeat(1 << 20)), "a replacement has at most 64"),
        ("long decoding", "decoder", replace("a", &"x".repeat(1 << 20)), "a replacement has at most 64"),
        (
            "pieces of no length",
            "pre_tokenizer",
            serde_json::json!({"type": "FixedLength", "length": 0}),
            "it fails on a short text: ",
        ),
        (
            "search of words of any length",
            "model",
            serde_json::json!({"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 1_000_000_000, "vocab": {"[UNK]": 0, "a": 1}}),
            "max_input_chars_per_word = 1000000000",
        ),
        ("a model of another kind", "model", serde_json::json!({"type": "\u{1b}[2J"}), "is not a tokenizer"),
    ];
    for (name, part, value, needle) in cases {
        let mut tokenizer = good.clone();
        tokenizer[part] = value;
        let path = folder.file("tokenizer.json", tokenizer.to_string());
        let began = std::time::Instant::now();
        refused(name, &["--data-path", &text, "--tokenizer", &path, "--vocab", "400"], &["tokenizer", needle]);
        assert!(began.elapsed().as_secs() < 60, "{name} took {:?}", began.elapsed());
    }
    refused("a device", &["--data-path", &text, "--tokenizer", "/dev/zero"], &["it is not a regular file"]);
}

#[test]
fn a_folder_within_the_data_that_cannot_be_read_is_named() {
    let folder = Folder::new("bad-folder");
    let inner = folder.path("inner");
    std::fs::create_dir(&inner).unwrap();
    std::fs::set_permissions(&inner, std::fs::Permissions::from_mode(0o000)).unwrap();
    let mut command = Command::new(TRAINER);
    if std::fs::read_dir(&inner).is_ok() {
        command.uid(65534); // root may read anything
    }
    let output = command.args(["--data-path", folder.0.to_str().unwrap()]).output().unwrap();
    std::fs::set_permissions(&inner, std::fs::Permissions::from_mode(0o700)).unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains(&format!("cannot be read: {inner}: Permission denied")), "{text}");
}
