//! A trained model goes on with a text: through the cache it gives the logits of the whole forward, and the text is one
//! the data could have held.

use data::{TextStream, Tokenizer};
use device::ops::LatentHead;
use device::{Device, HostOptions, HostValues};
use engine::graph_options::GraphOptions;
use engine::model::{AttentionKind, GptShape, Latent, gpt};
use engine::params::Params;
use engine::precision::Precision;
use parallel::{Axes, Ranks};
use trainer::generation::{Generator, Sampler, longest_prompt};

use crate::data_files::{Folder, llmc, small_tokenizer};
use crate::harness::stdout_of;
use crate::models::{Kind, MICRO_BATCH, Run, SEQ, VOCAB, tiny_gpt, tiny_llama};

const TOKENS: [i32; SEQ] = [5, 90, 13, 13, 0, 96, 41, 7];

/// A model with first weights that are large enough for opinions.
fn shape(kind: Kind, precision: Precision) -> GptShape {
    let shape = if kind == Kind::Gpt { tiny_gpt(0.0, precision) } else { tiny_llama(0.0, precision) };
    GptShape { init_std: 0.3, scaled_residual_init: false, ..shape }
}

/// The same with latent attention. Training makes keys and values of heads, and decoding does not.
fn latent(query_rank: Option<usize>, precision: Precision) -> GptShape {
    let head = LatentHead { plain: 6, rotated: 4, value: 8 };
    let attention = AttentionKind::Latent(Latent { query_rank, rank: 18, head });
    GptShape { attention, kv_heads: 1, head_dim: Some(10), ..shape(Kind::Llama, precision) }
}

/// A generator over the weights that a [`Run`] of that shape starts with.
fn generator(shape: &GptShape, longest: usize) -> (Device, Generator) {
    let device = Device::host(HostOptions { threads: 1, check: true, dry: false }).unwrap();
    let specs = gpt(shape.clone()).specs;
    let params = Params::new(&device, specs, Some(7), usize::MAX, Ranks::alone(), Axes::NONE).unwrap();
    let generator = Generator::new(&device, shape, Box::leak(Box::new(params)), longest).unwrap();
    (device, generator)
}

/// Log probability of every token after each of [`TOKENS`], by the forward of training. Of a sequence that ends with the
/// token, the loss at the last position alone depends on the token: the others cancel in the softmax.
fn whole_forward(kind: Kind, shape: &GptShape) -> Vec<Vec<f64>> {
    let (precision, shape) = (shape.precision, Some(shape.clone()));
    let run = Run { shape, precision, ..Run::new(kind, 1, GraphOptions::default()) };
    let device = run.device();
    let mut stage = run.stage(&device);
    let losses = (MICRO_BATCH * SEQ) as f64;
    let mut score = |position: usize, token: usize| {
        // No token, so no target, after this one and in the other rows.
        let mut rows = vec![-1; MICRO_BATCH * (SEQ + 1)];
        rows[..=position].copy_from_slice(&TOKENS[..=position]);
        rows[position + 1] = token as i32;
        let batch = HostValues::I32(rows.into());
        -stage.evaluate(run.settings(0), Some(&batch)).unwrap().wait().unwrap().loss * losses
    };
    let mut scores = |position| (0..VOCAB).map(|token| score(position, token)).collect::<Vec<f64>>();
    (0..SEQ).map(|position| log_softmax(&scores(position))).collect()
}

fn log_softmax<T: Copy + Into<f64>>(logits: &[T]) -> Vec<f64> {
    let highest = logits.iter().fold(f64::MIN, |a, &b| a.max(b.into()));
    let total: f64 = logits.iter().map(|&x| (x.into() - highest).exp()).sum();
    logits.iter().map(|&x| x.into() - highest - total.ln()).collect()
}

fn likeliest(values: &[f64]) -> usize {
    (0..values.len()).max_by(|&a, &b| values[a].total_cmp(&values[b])).unwrap()
}

#[test]
fn a_token_read_through_the_cache_has_the_distribution_of_the_whole_forward() {
    for (kind, shape, tolerance) in [
        (Kind::Gpt, shape(Kind::Gpt, Precision::F32), 1e-4),
        (Kind::Llama, shape(Kind::Llama, Precision::F32), 1e-4),
        (Kind::Llama, latent(None, Precision::F32), 1e-4),
        (Kind::Llama, latent(Some(14), Precision::F32), 1e-4),
        (Kind::Gpt, shape(Kind::Gpt, Precision::Bf16), 0.2),
        (Kind::Llama, shape(Kind::Llama, Precision::Bf16), 0.2),
        (Kind::Llama, latent(None, Precision::Bf16), 0.2),
    ] {
        let (truth, precision, attention) = (whole_forward(kind, &shape), shape.precision, shape.attention);
        for prompt in [1, 4] {
            let (_device, mut generator) = generator(&shape, 5);
            let mut logits = generator.start(&TOKENS[..prompt]).unwrap();
            for position in prompt - 1..SEQ {
                let ours = log_softmax(&logits);
                for (token, (ours, truth)) in ours.iter().zip(&truth[position]).enumerate() {
                    let what = format!(
                        "{kind:?} {attention:?} {precision} token {token} after position {position}, prompt of {prompt}"
                    );
                    assert!((ours - truth).abs() < tolerance, "{what}: {ours} beside {truth}");
                }
                if precision == Precision::F32 {
                    assert_eq!(likeliest(&ours), likeliest(&truth[position]), "{kind:?} {attention:?} {position}");
                }
                if position + 1 < SEQ {
                    logits = generator.read(TOKENS[position + 1]).unwrap();
                }
            }
            let graphs: Vec<String> = generator.report().graphs.iter().map(|graph| graph.name.clone()).collect();
            assert_eq!(graphs, ["step"], "tokens after the first two are replays of one graph");
        }
    }
}

#[test]
fn a_cache_has_keys_and_values_or_of_latent_attention_one_vector_of_each_token() {
    let bytes = |shape: &GptShape| generator(shape, 5).1.cache_bytes();
    let llama = shape(Kind::Llama, Precision::F32);
    assert_eq!(bytes(&llama), llama.layers * SEQ * 2 * llama.kv_heads * llama.head_dim() * 4);
    let latent = latent(None, Precision::Bf16);
    assert_eq!(bytes(&latent), latent.layers * SEQ * (18 + 4) * 2);
}

#[test]
fn beyond_the_context_the_newer_half_is_read_again() {
    for kind in [Kind::Gpt, Kind::Llama] {
        let shape = shape(kind, Precision::F32);
        let longest = longest_prompt(3, 30, SEQ);
        assert_eq!(longest, SEQ / 2);
        let (_device, mut long) = generator(&shape, longest);
        let text: Vec<i32> = TOKENS.iter().cycle().take(30).copied().collect();
        long.start(&text[..3]).unwrap();
        for (at, &token) in text.iter().enumerate().skip(3) {
            let logits = long.read(token).unwrap();
            if at < SEQ {
                continue;
            }
            // It has room for 8: token 8 makes it begin again with tokens 5 to 8, token 13 with 10 to 13, and so on.
            let kept = SEQ / 2;
            let begin = (at - SEQ) / (kept + 1) * (kept + 1) + kept + 1;
            let (_device, mut fresh) = generator(&shape, longest);
            let mut wanted = fresh.start(&text[begin..begin + kept]).unwrap();
            for &token in &text[begin + kept..=at] {
                wanted = fresh.read(token).unwrap();
            }
            assert_eq!(logits, wanted, "{kind:?} after token {at}");
        }
    }
}

#[test]
fn greedy_text_is_the_likeliest_token_each_time_and_a_seed_gives_one_text() {
    let shape = shape(Kind::Llama, Precision::F32);
    let text = |sampler: Sampler| -> Vec<u32> {
        let (_device, mut generator) = generator(&shape, 6);
        let mut text = Vec::new();
        generator
            .generate(&TOKENS[..3], (20, VOCAB), sampler, |token| {
                text.push(token);
                Ok::<bool, graph_manager::Error>(true)
            })
            .unwrap();
        text
    };
    let random = |seed| text(Sampler { temperature: 1.0, top_k: None, top_p: None, seed });
    assert_eq!(random(1), random(1));
    assert_ne!(random(1), random(2));
    let greedy = text(Sampler { temperature: 0.0, top_k: None, top_p: None, seed: 1 });
    let (_device, mut generator) = generator(&shape, 6);
    let mut logits = generator.start(&TOKENS[..3]).unwrap();
    for &token in &greedy {
        assert_eq!(token as usize, likeliest(&log_softmax(&logits)));
        logits = generator.read(token as i32).unwrap();
    }
}

#[test]
fn a_model_of_the_markov_source_writes_its_letters_and_the_same_ones_for_the_same_seed() {
    let folder = Folder::new("sample-markov");
    let (saved, logs) = (folder.path("saved"), folder.path("log"));
    let run = ["--save", &saved, "--log-dir", &logs, "--steps", "150", "--eval-interval", "0", "--enable-cuda-graph"];
    stdout_of(&run);
    let sample = |seed: &str| {
        stdout_of(&["sample", "--checkpoint", &saved, "--prompt", "abc", "--tokens", "300", "--seed", seed])
    };
    let text = sample("5");
    let letters = text.trim_end();
    assert!(letters.starts_with("abc") && letters.len() == 303, "{text:?}");
    assert!(letters.bytes().all(|letter| (b'a'..=b'l').contains(&letter)), "{text}");
    let different: std::collections::BTreeSet<u8> = letters.bytes().collect();
    assert!(different.len() > 8, "{text}");
    assert_eq!(text, sample("5"));
    assert_ne!(text, sample("6"));
    let file = folder.file("prompt.txt", "abc");
    let step = format!("{saved}/step-00000150");
    let flags = ["sample", "--checkpoint", &step, "--prompt-file", &file, "--tokens", "300", "--seed", "5"];
    assert_eq!(stdout_of(&flags), text);
}

#[test]
fn a_hugging_face_folder_with_its_tokenizer_writes_what_the_checkpoint_it_came_from_writes() {
    let folder = Folder::new("sample-hf");
    let (saved, logs, json) = (folder.path("saved"), folder.path("log"), folder.path("tokenizer.json"));
    let words = "the cat sat on the mat and the dog sat on the log ".repeat(60);
    let text = folder.file("text.txt", &words);
    small_tokenizer(json.as_ref(), &words);
    for preset in ["tiny", "tiny-llama"] {
        let run = [
            "--preset",
            preset,
            "--data-path",
            &text,
            "--tokenizer",
            &json,
            "--vocab",
            "400",
            "--seq-length",
            "16",
            "--steps",
            "40",
            "--eval-interval",
            "0",
            "--save",
            &saved,
            "--log-dir",
            &logs,
            "--resume",
            "never",
        ];
        stdout_of(&run);
        let theirs = folder.path(&format!("{preset}-hf"));
        stdout_of(&["convert", "--to", "hf", &format!("{saved}/step-00000040"), &theirs]);
        let sample = |from: &str| {
            stdout_of(&["sample", "--checkpoint", from, "--prompt", "the cat", "--tokens", "40", "--temperature", "0"])
        };
        let written = sample(&saved);
        assert!(written.starts_with("the cat") && written.len() > 40, "{written:?}");
        assert_eq!(written, sample(&theirs), "{preset}");
        std::fs::remove_dir_all(&saved).unwrap();
    }
}

#[test]
fn text_comes_out_character_by_character_and_adds_up_to_the_text_of_all_tokens() {
    let folder = Folder::new("sample-stream");
    let json = folder.path("tokenizer.json");
    let text = "naïve café, 数据 and 🦀 end";
    small_tokenizer(json.as_ref(), "plain words only");
    for name in ["byte", &json] {
        let tokenizer = Tokenizer::open(name, None).unwrap();
        let tokens = tokenizer.encode(text).unwrap();
        let mut stream = TextStream::new(&tokenizer);
        let mut pieces: Vec<String> = tokens.iter().map(|&token| stream.push(token)).collect();
        pieces.push(stream.finish());
        assert!(pieces.iter().all(|piece| !piece.contains('\u{fffd}')), "{name}: {pieces:?}");
        assert_eq!(pieces.concat(), text, "{name}");
        let crab = tokens.len() - tokenizer.encode(" end").unwrap().len();
        let mut cut = TextStream::new(&tokenizer);
        let begun: String = tokens[..crab - 1].iter().map(|&token| cut.push(token)).collect();
        assert!(
            !begun.contains('\u{fffd}') && cut.finish().contains('\u{fffd}'),
            "{name}: half a character at the end"
        );
    }
}

#[test]
fn token_files_and_checkpoints_remember_their_tokenizer_when_its_file_is_gone() {
    let folder = Folder::new("sample-remembers");
    let words = "the cat sat on the mat and the dog sat on the log ".repeat(60);
    let (text, json) = (folder.file("text.txt", &words), folder.path("tokenizer.json"));
    small_tokenizer(json.as_ref(), &words);
    let (tokens, saved, theirs) = (folder.path("tokens"), folder.path("saved"), folder.path("hf"));
    let logs = saved.clone(); // one folder for checkpoints and logs
    stdout_of(&["tokenize", "--tokenizer", &json, "--output", &tokens, &text]);
    let original = std::fs::read(&json).unwrap();
    std::fs::remove_file(&json).unwrap();
    let sizes = "--vocab 400 --seq-length 16 --steps 2 --eval-interval 0";
    let files = ["--data-path", &tokens, "--save", &saved, "--log-dir", &logs];
    stdout_of(&[&files[..], &sizes.split(' ').collect::<Vec<_>>()].concat());
    let prompt = ["--prompt", "the cat", "--tokens", "4"];
    let written = stdout_of(&[&["sample", "--checkpoint", &saved][..], &prompt].concat());
    assert!(written.starts_with("the cat"), "{written:?}");
    stdout_of(&["convert", "--to", "hf", &saved, &theirs]);
    let read = |name: &str| std::fs::read(format!("{theirs}/{name}")).unwrap();
    assert_eq!(read("tokenizer.json"), original);
    let end = data::Tokenizer::open(&theirs, None).unwrap().end_of_text();
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&read("config.json")).unwrap()["eos_token_id"], end);
    assert_eq!(stdout_of(&[&["sample", "--checkpoint", &theirs][..], &prompt].concat()), written);
}

#[test]
fn tokens_of_an_unknown_tokenizer_have_no_end_in_an_export() {
    let folder = Folder::new("sample-unknown");
    let tokens: Vec<i32> = (0..600).map(|n| n % 200).collect();
    let bin = folder.file("tokens.bin", llmc(20240520, 1, &tokens, 2));
    let (saved, theirs, logs) = (folder.path("saved"), folder.path("hf"), folder.path("log"));
    let run = ["--data-path", &bin, "--save", &saved, "--log-dir", &logs];
    stdout_of(&[&run[..], &["--vocab", "200", "--seq-length", "16", "--steps", "1", "--eval-interval", "0"]].concat());
    stdout_of(&["convert", "--to", "hf", &saved, &theirs]);
    let config = std::fs::read(format!("{theirs}/config.json")).unwrap();
    assert!(serde_json::from_slice::<serde_json::Value>(&config).unwrap()["eos_token_id"].is_null());
    assert!(!std::path::Path::new(&theirs).join("tokens.json").exists());
}

#[test]
fn several_samples_are_those_of_the_seeds_that_follow() {
    let folder = Folder::new("sample-several");
    let (saved, logs) = (folder.path("saved"), folder.path("log"));
    stdout_of(&["--steps", "3", "--eval-interval", "0", "--save", &saved, "--log-dir", &logs]);
    let sample = |more: &[&str]| {
        let common = ["sample", "--checkpoint", &saved, "--prompt", "ab", "--tokens", "12", "--top-p", "0.9"];
        stdout_of(&[&common[..], more].concat())
    };
    let apart: Vec<String> = ["7", "8", "9"].iter().map(|seed| sample(&["--seed", seed])).collect();
    assert_ne!(apart[0], apart[1]);
    assert_eq!(sample(&["--seed", "7", "--samples", "3"]), apart.join("---\n"));
}

/// "the licenceis free": a decoder like SentencePiece's drops the space before the first word of a text.
#[test]
fn the_first_word_that_is_written_is_joined_to_the_prompt_as_the_whole_text_is() {
    let folder = Folder::new("sample-joined");
    let vocab = serde_json::json!({"<unk>": 0, "</s>": 1, "▁the": 2, "▁licence": 3, "▁is": 4, "▁free": 5});
    let metaspace =
        serde_json::json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": metaspace, "post_processor": null, "decoder": metaspace,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"},
    });
    let path = folder.file("tokenizer.json", json.to_string());
    let tokenizer = Tokenizer::open(&path, None).unwrap();
    let tokens = tokenizer.encode("the licence is free").unwrap();
    assert_eq!(tokens, [2, 3, 4, 5]);
    for prompt in 1..4 {
        let shown = tokenizer.decode(&tokens[..prompt]);
        let mut stream = TextStream::after(&tokenizer, &tokens[..prompt]);
        let written: String = tokens[prompt..].iter().map(|&token| stream.push(token)).collect();
        assert_eq!(shown + &written + &stream.finish(), "the licence is free", "{prompt}");
    }
}

#[test]
fn a_prompt_begins_as_the_documents_of_training_did() {
    let folder = Folder::new("sample-begins");
    let vocab = serde_json::json!({"<unk>": 0, "<s>": 1, "</s>": 2, "a": 3, "b": 4});
    let special = |id: usize, token: &str| {
        serde_json::json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                           "normalized": false, "special": true})
    };
    let sequence = serde_json::json!({"Sequence": {"id": "A", "type_id": 0}});
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [special(1, "<s>"), special(2, "</s>")],
        "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "decoder": null,
        "post_processor": {"type": "TemplateProcessing",
                           "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, sequence], "pair": [sequence],
                           "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"},
    });
    let json = folder.file("tokenizer.json", json.to_string());
    let text = folder.file("text.txt", "a b ".repeat(100));
    // Token files of a version that put no token before a document.
    let older = folder.path("older");
    stdout_of(&["tokenize", "--tokenizer", &json, "--output", &older, &text]);
    let note = format!("{older}/tokens.json");
    let mut said: serde_json::Value = serde_json::from_slice(&std::fs::read(&note).unwrap()).unwrap();
    assert_eq!(said.as_object_mut().unwrap().remove("begin_of_text"), Some("<s>".into()));
    std::fs::write(&note, said.to_string()).unwrap();
    for (data, read) in [(&text, "3 tokens read"), (&older, "2 tokens read")] {
        let (saved, logs) = (format!("{data}-saved"), format!("{data}-log"));
        let run = ["--data-path", data, "--tokenizer", &json, "--vocab", "5", "--save", &saved, "--log-dir", &logs];
        stdout_of(&[&run[..], &["--seq-length", "16", "--steps", "1", "--eval-interval", "0"]].concat());
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_trainer"));
        let prompt = ["sample", "--checkpoint", &saved, "--prompt", "a b", "--tokens", "2"];
        let output = command.args(prompt).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(read), "{read}: {said}");
    }
}
