//! Samples are the tokens of the files, of any writer, each once an epoch, in an order that only the seed decides.

mod data_files;
mod fuzz;
mod left_out;
mod mutations;
mod parquet_file;

use common::{Stop, UserError};
use data::{DataConfig, Displaced, Source, Split, TokenSource, TokenizeRequest, Tokenizer, open, tokenize};
use device::{HostValues, Staging};
use proptest::prelude::*;

use data_files::{Folder, LICENSES, llmc, megatron_index, packed, small_tokenizer};
use parquet::basic::{BrotliLevel, Compression, Encoding, GzipLevel, ZstdLevel};
use parquet_file::{packed_parquet_file, parquet_file};

/// The `[data]` section with these `key = value` settings over the defaults. Paths and text need no quotes.
fn config(settings: &[(&str, &str)]) -> DataConfig {
    let defaults = "validation_sets = []\ntokenizer = \"byte\"\ntext_key = \"text\"\nreset_attention_mask = false\nreset_position_ids = false\neod_mask_loss = false\ndocuments_per_sample = 256\nsft = false\ndpo = false\nkto = false\nsft_packing = 1\nseq_length_buckets = []\ngroup_by_length = false\nadd_special_tokens = false\nraw_tokens = \"none\"\nsplit = 0.9\nseed = 1234";
    let mut table: toml::Table = defaults.parse().unwrap();
    for (key, text) in settings {
        let literal: Result<toml::Table, _> = format!("value = {text}").parse();
        let value = literal.map_or_else(|_| (*text).into(), |mut table| table.remove("value").unwrap());
        table.insert((*key).into(), value);
    }
    table.try_into().unwrap()
}

/// The source that these settings of `[data]` give.
fn source(settings: &[(&str, &str)], seq: usize, vocab: usize) -> Result<TokenSource, UserError> {
    let data = config(settings);
    open(data.path.as_ref().expect("data.path is set"), &data, seq, vocab)
}

/// A sample's tokens.
fn sample(source: &TokenSource, split: Split, number: u64) -> Vec<i32> {
    let mut row = vec![0; source.seq + 1];
    source.sample(split, number, &mut row).unwrap();
    row
}

/// All tokens of a source opened with `split = 1`, in their order in the files.
fn stream(source: &TokenSource) -> Vec<i32> {
    let count = source.training[0].count();
    let mut windows: Vec<(u64, Vec<i32>)> =
        (0..count).map(|number| (source.training_window(number).1, sample(source, Split::Train, number))).collect();
    windows.sort();
    let mut tokens = vec![windows[0].1[0]];
    for (_, window) in windows {
        assert_eq!(tokens.last(), window.first(), "neighbouring windows share a token");
        tokens.extend(&window[1..]);
    }
    tokens
}

/// Ids that fill two bytes.
fn ids(count: usize) -> Vec<i32> {
    (0..count as i32).map(|i| i * 7919 % 65521).collect()
}

#[test]
fn token_files_of_llmc_nanogpt_and_megatron_are_read_as_published() {
    let folder = Folder::new("formats");
    let tokens = ids(101);
    let wide: Vec<i32> = tokens.iter().map(|id| id + 60_000).collect();
    let small: Vec<i32> = tokens.iter().map(|id| id % 100).collect();
    let megatron = |name: &str, code: u8, tokens: &[i32], size: usize| {
        let bin = folder.file(&format!("{name}.bin"), packed(tokens, size));
        folder.file(&format!("{name}.idx"), megatron_index(code, &[40, 0, 60, 1], size));
        bin
    };
    let cases = [
        (folder.file("gpt2.bin", llmc(20240520, 1, &tokens, 2)), &tokens),
        (folder.file("llama3.bin", llmc(20240801, 7, &wide, 4)), &wide),
        (folder.file("nano.bin", packed(&tokens, 2)), &tokens),
        (megatron("meg_u8", 1, &small, 1), &small),
        (megatron("meg_i8", 2, &small, 1), &small),
        (megatron("meg_i16", 3, &small, 2), &small),
        (megatron("meg_i32", 4, &wide, 4), &wide),
        (megatron("meg_i64", 5, &wide, 8), &wide),
        (megatron("meg_u16", 8, &tokens, 2), &tokens),
        (folder.path("meg_u16.idx"), &tokens),
        (folder.path("meg_u16"), &tokens),
    ];
    for (path, expected) in &cases {
        let source = source(&[("path", path), ("split", "1"), ("raw_tokens", "u16")], 10, 200_000).unwrap();
        assert_eq!(stream(&source), **expected, "{path}");
    }
}

#[test]
fn documents_cross_the_files_of_a_folder_and_the_paths_of_a_list() {
    let folder = Folder::new("cross");
    let tokens = ids(101);
    for (number, part) in tokens.chunks(7).enumerate() {
        folder.file(&format!("part_{number:03}.bin"), llmc(20240520, 1, part, 2));
    }
    let all = source(&[("path", folder.0.to_str().unwrap()), ("split", "1")], 25, 65536).unwrap();
    assert_eq!(stream(&all), tokens);
    let list = format!("[{:?}, {:?}]", folder.path("part_002.bin"), folder.path("part_000.bin"));
    let two = source(&[("path", &list), ("split", "1")], 13, 65536).unwrap();
    assert_eq!(stream(&two), [&tokens[14..21], &tokens[..7]].concat());
}

fn request(tokenizer: &str, output: String, shard_tokens: u64, texts: &[&str]) -> TokenizeRequest {
    TokenizeRequest {
        tokenizer: tokenizer.into(),
        end_of_text: None,
        text_key: "text".into(),
        output: output.into(),
        shard_tokens,
        files: texts.iter().map(Into::into).collect(),
    }
}

#[test]
fn tokenised_files_read_back_as_the_text_does_directly() {
    let folder = Folder::new("round-trip");
    let texts = folder.path("texts");
    std::fs::create_dir_all(folder.path("texts/inner")).unwrap();
    folder.file("texts/a.txt", "A first document.\nWith two lines.\n");
    let lines = folder.file(
        "b.jsonl",
        "{\"text\": \"Second \\u00e9\"}\n\n{\"id\": 3, \"text\": \"Third, longer than the second\"}\n",
    );
    folder.file("texts/empty.txt", "");
    folder.file("texts/image.png", [0xff; 9]);
    folder.file("texts/inner/d", "Fourth");
    let text = "A first document.\nWith two lines.\n\0Fourth\0Second é\0Third, longer than the second\0";
    let both = format!("[{texts:?}, {lines:?}]");
    let direct = source(&[("path", &both), ("split", "1")], 4, 256).unwrap();
    let bytes: Vec<i32> = text.bytes().map(i32::from).collect();
    assert_eq!(stream(&direct), bytes[..bytes.len() - (bytes.len() - 1) % 4]);

    let json = folder.path("tokenizer.json");
    let tokenizer = small_tokenizer(json.as_ref(), text);
    let end = tokenizer.token_to_id("<|endoftext|>").unwrap();
    let pieces: Vec<u32> = text
        .split_terminator('\0')
        .flat_map(|document| [tokenizer.encode(document, false).unwrap().get_ids().to_vec(), vec![end]].concat())
        .collect();
    let pieces: Vec<i32> = pieces.iter().map(|id| *id as i32).collect();
    for (name, tokenizer, tokens) in [("bytes", "byte", &bytes), ("pieces", json.as_str(), &pieces)] {
        for shard_tokens in [7, 1000] {
            let output = folder.path(&format!("{name}-{shard_tokens}"));
            let report =
                tokenize(&request(tokenizer, output.clone(), shard_tokens, &[&texts, &lines]), &Stop::default())
                    .unwrap();
            assert!(report.starts_with("4 documents of 5 files, ") && report.contains("MB/s"), "{report}");
            assert!(
                report.contains("1 file left out, because neither UTF-8 text nor JSON lines: ")
                    && report.contains("image.png"),
                "{report}"
            );
            let bins = std::fs::read_dir(&output).unwrap();
            let bins =
                bins.filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|found| found == "bin"));
            assert_eq!(bins.count(), tokens.len().div_ceil(shard_tokens as usize));
            let read = source(&[("path", &output), ("split", "1")], 1, 400).unwrap();
            assert_eq!(stream(&read), *tokens, "{name} {shard_tokens}");
            // They remember their tokenizer.
            let copy = read.tokenizer.unwrap().open(None).unwrap();
            let ids: Vec<u32> = tokens.iter().map(|id| *id as u32).collect();
            let told = Tokenizer::open(tokenizer, None).unwrap();
            assert_eq!((copy.decode(&ids), copy.end_of_text()), (told.decode(&ids), told.end_of_text()));
        }
    }
    let hidden = |entry: std::fs::DirEntry| entry.file_name().display().to_string().starts_with('.');
    assert!(!std::fs::read_dir(&folder.0).unwrap().any(|entry| hidden(entry.unwrap())), "unfinished output is left");
}

#[test]
fn a_column_of_a_parquet_file_is_read_as_json_lines_with_the_same_texts_are() {
    let folder = Folder::new("parquet");
    let texts = |n: usize| (!n.is_multiple_of(7)).then(|| format!("text {n}, {}", "é".repeat(n % 100)));
    let rows: Vec<Option<String>> = (0..3000).map(texts).collect();
    let part = folder.path("part.parquet");
    std::fs::write(&part, parquet_file(&rows, 1000)).unwrap();
    let lines = rows.iter().flatten().map(|text| format!("{}\n", serde_json::json!({ "body": text })));
    let lines = folder.file("lines.jsonl", lines.collect::<String>());
    let read = |path: &str| stream(&source(&[("path", path), ("text_key", "body"), ("split", "1")], 1, 256).unwrap());
    assert!(read(&part) == read(&lines));

    let packings = [
        Compression::UNCOMPRESSED,
        Compression::GZIP(GzipLevel::default()),
        Compression::BROTLI(BrotliLevel::default()),
        Compression::LZ4,
        Compression::LZ4_RAW,
        Compression::ZSTD(ZstdLevel::default()),
    ];
    for packing in packings {
        for encoding in [Encoding::PLAIN, Encoding::DELTA_LENGTH_BYTE_ARRAY, Encoding::DELTA_BYTE_ARRAY] {
            std::fs::write(folder.path("packed.parquet"), packed_parquet_file(&rows, 1000, packing, encoding)).unwrap();
            assert!(read(&folder.path("packed.parquet")) == read(&lines), "{packing} and {encoding}");
        }
    }

    let wrong = |path: &str, key: &str| {
        source(&[("path", path), ("text_key", key), ("split", "1")], 1, 256).err().unwrap().to_string()
    };
    let problem = wrong(&part, "text");
    assert!(
        problem.contains("part.parquet has no column `text` of text; it has body") && problem.contains("--text-key")
    );
    let whole = std::fs::read(&part).unwrap();
    let cut = folder.file("cut.parquet", &whole[..whole.len() - 9]);
    assert!(wrong(&cut, "body").contains("cut.parquet cannot be read: "), "{}", wrong(&cut, "body"));
}

#[test]
fn data_of_two_tokenizers_are_refused() {
    let folder = Folder::new("tokenizers");
    let text = folder.file("a.txt", "some words, and some more words\n".repeat(20));
    let json = folder.path("tokenizer.json");
    small_tokenizer(json.as_ref(), "some words, and some more words");
    let tokens = |name: &str, tokenizer: &str| {
        let output = folder.path(name);
        tokenize(&request(tokenizer, output.clone(), 1000, &[&text]), &Stop::default()).unwrap();
        output
    };
    let (bytes, pieces) = (tokens("bytes", "byte"), tokens("pieces", &json));
    let blend = |a: &str, b: &str| format!("[{a:?}, {b:?}]");
    let opened = |path: &str, tokenizer: &str, vocab: usize| {
        let settings = [("path", path), ("tokenizer", tokenizer), ("split", "1")];
        source(&settings, 4, vocab).map_err(|error| error.to_string())
    };
    for (path, tokenizer) in [(blend(&bytes, &pieces), "byte"), (blend(&text, &pieces), "byte"), (bytes.clone(), &json)]
    {
        let problem = opened(&path, tokenizer, 400).err().unwrap();
        assert!(problem.contains("all data of a run have tokens of one tokenizer"), "{problem}");
        assert!(problem.contains("tokens of bytes") || problem.contains("of bytes."), "{problem}");
    }
    for (path, tokenizer) in [(blend(&text, &pieces), json.as_str()), (pieces.clone(), "byte"), (pieces, &json)] {
        assert_eq!(opened(&path, tokenizer, 400).unwrap().notices, [""; 0]);
    }
    for path in [text, bytes] {
        assert_eq!(opened(&path, "byte", 256).unwrap().tokenizer_vocab, Some(256));
    }
}

#[test]
fn a_long_document_has_the_tokens_it_has_whole_though_it_is_cut_for_the_threads() {
    let folder = Folder::new("long");
    let licenses = source(&[("path", LICENSES), ("split", "1")], 1, 256).unwrap();
    let text: String = stream(&licenses).iter().map(|token| char::from(*token as u8)).filter(char::is_ascii).collect();
    let text = text.repeat(1 + (1 << 20) / text.len());
    let json = folder.path("tokenizer.json");
    let tokenizer = small_tokenizer(json.as_ref(), &text[..50_000]);
    let whole = tokenizer.encode(text.as_str(), false).unwrap();
    let mut expected: Vec<i32> = whole.get_ids().iter().map(|id| *id as i32).collect();
    expected.push(tokenizer.token_to_id("<|endoftext|>").unwrap() as i32);
    let file = folder.file("long.txt", &text);
    let read = source(&[("path", &file), ("tokenizer", &json), ("split", "1")], 1, 400).unwrap();
    assert!(stream(&read) == expected, "cutting changed tokens");
}

/// The library ends its search there in silence. With the second and third of these it keeps 6 of the 1,100,014 bytes.
#[test]
fn a_text_that_a_tokenizers_expression_gives_up_on_is_refused_with_its_place_and_others_have_the_librarys_tokens() {
    let folder = Folder::new("gives-up");
    let good = "  Two  words,\n\n\tand 3 more's \u{e9}.  \n";
    let bad = format!("before{}x after\n", " ".repeat(1_100_000));
    let line = |text: &str| serde_json::json!({ "text": text }).to_string() + "\n";
    let plain = folder.file("bad.txt", &bad);
    let lines = folder.file("bad.jsonl", line(good) + &line(&bad));
    let fine = folder.file("fine.txt", good);
    small_tokenizer(folder.path("tokenizer.json").as_ref(), good);
    let saved: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.path("tokenizer.json")).unwrap()).unwrap();
    let bytes = |regex: bool| serde_json::json!({"type": "ByteLevel", "add_prefix_space": regex, "trim_offsets": true, "use_regex": regex});
    let split = |behavior: &str, invert: bool| serde_json::json!({"type": "Split", "pattern": {"Regex": r"\s+(?!\S)|\s+|\w+|[^\s\w]+"}, "behavior": behavior, "invert": invert});
    let both =
        |first: serde_json::Value| serde_json::json!({"type": "Sequence", "pretokenizers": [first, bytes(false)]});
    let cases =
        [bytes(true), both(split("Removed", true)), both(both(split("Removed", true))), both(split("Isolated", false))];
    for (number, pre_tokenizer) in cases.into_iter().enumerate() {
        let mut json = saved.clone();
        json["pre_tokenizer"] = pre_tokenizer;
        let json = folder.file(&format!("{number}.json"), json.to_string());
        let library = tokenizers::Tokenizer::from_file(&json).unwrap();
        let mut expected: Vec<i32> =
            library.encode(good, false).unwrap().get_ids().iter().map(|id| *id as i32).collect();
        expected.push(library.token_to_id("<|endoftext|>").unwrap() as i32);
        let read = source(&[("path", &fine), ("tokenizer", &json), ("split", "1")], 1, 400).unwrap();
        assert_eq!(stream(&read), expected, "tokenizer {number}");
        for (file, place) in [(&plain, plain.clone()), (&lines, format!("{lines} line 2"))] {
            let error =
                source(&[("path", file), ("tokenizer", &json), ("split", "1")], 1, 400).err().unwrap().to_string();
            let words = format!("{place}: the tokenizer fails: its regular expression gives up in a text of ");
            assert!(error.contains(&words), "tokenizer {number}: {error}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn every_epoch_shows_every_token_once_in_another_order(
        count in 40usize..600, part in 1usize..90, seq in 1usize..9, seed in 0u64..1000
    ) {
        let folder = Folder::new(&format!("epochs-{count}-{part}-{seq}-{seed}"));
        let tokens: Vec<i32> = (0..count as i32).collect();
        for (number, part) in tokens.chunks(part).enumerate() {
            folder.file(&format!("{number:03}.bin"), llmc(20240520, 1, part, 2));
        }
        let settings = [("path", folder.0.to_str().unwrap()), ("split", "1"), ("seed", &seed.to_string())];
        let source = source(&settings, seq, count).unwrap();
        let windows = source.training[0].count();
        prop_assert_eq!(windows as usize, (count - 1) / seq);
        let epoch = |epoch: u64| -> Vec<i32> {
            (epoch * windows..(epoch + 1) * windows).flat_map(|n| sample(&source, Split::Train, n)[1..].to_vec()).collect()
        };
        let mut orders = std::collections::HashSet::new();
        for number in 0..3 {
            let mut seen = epoch(number);
            orders.insert(seen.clone());
            seen.sort_unstable();
            prop_assert_eq!(seen, (1..=windows as i32 * seq as i32).collect::<Vec<_>>());
        }
        prop_assert!(orders.len() == 3 || windows < 8, "{windows} windows in the same order twice");
        let seeded = |seed| (0..windows).map(|n| TokenSource::training_window(seed, n).1).collect::<Vec<_>>();
        prop_assert_eq!(seeded(&source), seeded(&source));
    }
}

#[test]
fn a_step_has_the_same_samples_however_ranks_and_microbatches_divide_it() {
    let folder = Folder::new("ranks");
    let path = folder.file("x.bin", llmc(20240520, 1, &ids(1000), 2));
    let source = source(&[("path", &path)], 8, 65536).unwrap();
    let batch = |first: u64, count: u64| {
        let Ok(HostValues::I32(tokens)) = source.batch(Split::Train, first, count as usize, &Staging::default()) else {
            panic!("token sources give tokens")
        };
        tokens.to_vec()
    };
    let step = batch(240, 24);
    let rows: Vec<i32> = (240..264).flat_map(|number| sample(&source, Split::Train, number)).collect();
    assert_eq!(step, rows, "a row is a sample");
    for parts in [1, 2, 3, 4, 24] {
        let count = 24 / parts;
        let parted: Vec<i32> = (0..parts).flat_map(|part| batch(240 + part * count, count)).collect();
        assert_eq!(parted, step, "{parts} parts");
    }
}

#[test]
fn blended_datasets_have_their_shares_and_each_is_gone_through_whole() {
    let folder = Folder::new("blend");
    let tokens = |base: i32, count: i32| (base..base + count).collect::<Vec<_>>();
    let (a, b) = (tokens(0, 101), tokens(10_000, 51));
    let a = folder.file("a.bin", llmc(20240520, 1, &a, 2));
    let b = folder.file("b.bin", llmc(20240520, 1, &b, 2));
    let source = source(&[("path", &format!("[3, {a:?}, \"1\", {b:?}]")), ("split", "1")], 5, 65536).unwrap();
    let samples: Vec<i32> = (0..400).map(|number| sample(&source, Split::Train, number)[0]).collect();
    let (from_a, from_b): (Vec<i32>, Vec<i32>) = samples.iter().partition(|first| **first < 10_000);
    assert_eq!((from_a.len(), from_b.len()), (300, 100));
    for (from, epoch, base) in [(from_a, 20, 0), (from_b, 10, 10_000)] {
        for seen in from.chunks(epoch) {
            let mut seen = seen.to_vec();
            seen.sort_unstable();
            assert_eq!(seen, (0..epoch as i32).map(|window| base + 5 * window).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_run_that_goes_on_in_another_order_is_told_how_many_samples_come_again_and_how_many_never() {
    let folder = Folder::new("orders");
    let tokens = |base: i32, count: i32| (base..base + count).collect::<Vec<_>>();
    let a = folder.file("a.bin", llmc(20240520, 1, &tokens(0, 151), 2));
    let b = folder.file("b.bin", llmc(20240520, 1, &tokens(10_000, 51), 2));
    let blend = |weight: usize| format!("[{weight}, {a:?}, 1, {b:?}]");
    // How often each sample was read before the position.
    let readings = |settings: &[(&str, &str)], position: u64| {
        let source = source(settings, 5, 65536).unwrap();
        let mut readings = std::collections::BTreeMap::<(usize, u64), i64>::new();
        (0..position).for_each(|number| *readings.entry(source.training_window(number)).or_default() += 1);
        readings
    };
    for (before, now) in [
        ([("path", &*blend(3)), ("seed", "1")], [("path", &*blend(3)), ("seed", "2")]),
        ([("path", &blend(3)), ("seed", "1")], [("path", &blend(1)), ("seed", "1")]),
        ([("path", &blend(3)), ("seed", "1")], [("path", &blend(3)), ("seed", "1")]),
    ] {
        for position in [0, 7, 23, 60, 150] {
            let (was, is) = (readings(&before, position), readings(&now, position));
            let more = |a: &std::collections::BTreeMap<_, i64>, b: &std::collections::BTreeMap<_, i64>| {
                a.iter().map(|(sample, times)| (times - b.get(sample).unwrap_or(&0)).max(0) as u64).sum::<u64>()
            };
            let expected = Displaced { again: more(&was, &is), left_out: more(&is, &was) };
            let displaced = source(&now, 5, 65536).unwrap().displaced(&config(&before), None, position).unwrap();
            assert_eq!(displaced, Some(expected), "{before:?}, {now:?}, {position}");
        }
    }
    let source = source(&[("path", &blend(3)), ("split", "1")], 5, 65536).unwrap();
    // 45 of the larger one, a pass and a half, and 15 of the smaller.
    assert_eq!(source.begun(60), 15 + 5);
}

#[test]
fn each_sample_to_evaluate_on_comes_once_in_the_shares_of_the_blend() {
    let folder = Folder::new("blend-once");
    let tokens = |base: i32, count: i32| (base..base + count).collect::<Vec<_>>();
    let a = folder.file("a.bin", llmc(20240520, 1, &tokens(0, 101), 2));
    let b = folder.file("b.bin", llmc(20240520, 1, &tokens(10_000, 16), 2));
    let blend = format!("[1, {a:?}, 1, {b:?}]");
    let source = source(&[("path", &a), ("validation_path", &blend)], 5, 65536).unwrap();
    assert_eq!(source.validation_samples(), Some(23));
    let firsts: Vec<i32> = (0..26).map(|number| sample(&source, Split::Validation, number)[0]).collect();
    // Three of each, then those of the larger one alone.
    let shares: std::collections::BTreeSet<i32> = firsts[..6].iter().copied().collect();
    assert_eq!(shares, [0, 5, 10, 10_000, 10_005, 10_010].into());
    assert_eq!(firsts[6..23], (3..20).map(|window| 5 * window).collect::<Vec<_>>());
    assert_eq!(firsts[23..], [-1; 3]);
    assert_eq!(source.counts(Split::Validation, 20, 6).unwrap().map(|counts| counts.targets), Some(3 * 5));
}

#[test]
fn no_token_is_a_target_of_both_training_and_validation() {
    let folder = Folder::new("split");
    let tokens: Vec<i32> = (0..1000).collect();
    let path = folder.file("x.bin", llmc(20240520, 1, &tokens, 2));
    let targets = |source: &TokenSource, split, count| -> std::collections::BTreeSet<i32> {
        let samples = if split == Split::Validation { source.validation_samples().unwrap() } else { u64::MAX };
        (0..samples.min(count)).flat_map(|number| sample(source, split, number)[1..].to_vec()).collect()
    };
    for (share, training, validation) in [("0.9", 99, 12), ("0.5", 55, 56), ("0.01", 1, 110)] {
        let source = source(&[("path", &path), ("split", share)], 9, 1000).unwrap();
        let (train, held_out) = (targets(&source, Split::Train, 300), targets(&source, Split::Validation, 300));
        assert_eq!((train.len(), held_out.len()), (9 * training, 9 * validation), "{share}");
        assert!(train.is_disjoint(&held_out), "{share}");
    }
    let other = folder.file("y.bin", llmc(20240520, 1, &[5; 100], 2));
    let source = source(&[("path", &path), ("validation_path", &other)], 9, 1000).unwrap();
    assert_eq!(targets(&source, Split::Train, 111).len(), 999, "all of data.path is trained on");
    assert_eq!(targets(&source, Split::Validation, 30), [5].into());
}

#[test]
fn a_file_that_is_cut_or_rewritten_under_a_run_is_an_error_and_no_crash() {
    let folder = Folder::new("cut");
    let bytes = llmc(20240520, 1, &ids(20_000), 2);
    let path = folder.file("x.bin", &bytes);
    let source = source(&[("path", &path)], 8, 65521).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1500).unwrap();
    let error = source.batch(Split::Train, 0, 4, &Staging::default()).unwrap_err().to_string();
    assert!(error.contains("x.bin changed") && error.contains("1500"), "{error}");
    std::fs::write(&path, vec![0xff; bytes.len()]).unwrap();
    let error = source.batch(Split::Train, 0, 4, &Staging::default()).unwrap_err().to_string();
    assert!(error.contains("65535"), "{error}");
}
