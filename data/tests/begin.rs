//! Documents begin as the tokenizer's post-processor has it, wherever they are tokenised: the tokens are those of the package
//! `tokenizers` with its special tokens.

mod data_files;

use common::Stop;
use data::{DataConfig, MultipleChoice, Split, TokenSource, TokenizeRequest, Tokenizer, open, tokenize};
use serde_json::{Value, json};

use data_files::Folder;

/// Words, one a token.
const WORDS: [&str; 9] = ["<unk>", "<s>", "</s>", "a", "b", "c", "d", "user", "assistant"];

/// A tokenizer.json of [`WORDS`]. Its post-processor makes a text of `$A` and special tokens.
fn tokenizer_json(template: &[&str]) -> String {
    let vocab: serde_json::Map<String, Value> =
        WORDS.iter().enumerate().map(|(id, word)| (word.to_string(), json!(id))).collect();
    let special = |id: usize| json!({"id": id, "content": WORDS[id], "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true});
    let piece = |text: &&str| match *text {
        "$A" => json!({"Sequence": {"id": "A", "type_id": 0}}),
        token => json!({"SpecialToken": {"id": token, "type_id": 0}}),
    };
    let tokens = |id: usize| json!({"id": WORDS[id], "ids": [id], "tokens": [WORDS[id]]});
    let single: Vec<Value> = template.iter().map(piece).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [special(1), special(2)], "normalizer": null,
        "pre_tokenizer": {"type": "Whitespace"}, "decoder": null,
        "post_processor": {"type": "TemplateProcessing", "single": single, "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
                           "special_tokens": {"<s>": tokens(1), "</s>": tokens(2)}},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"},
    })
    .to_string()
}

fn config(path: &str, tokenizer: &str, more: &str) -> DataConfig {
    let text = format!(
        "path = {path:?}\nvalidation_sets = []\ntokenizer = {tokenizer:?}\ntext_key = \"text\"\nreset_attention_mask = false\nreset_position_ids = false\neod_mask_loss = false\ndocuments_per_sample = 256\nsft = false\ndpo = false\nkto = false\nsft_packing = 1\nseq_length_buckets = []\ngroup_by_length = false\nadd_special_tokens = false\n\
         raw_tokens = \"none\"\nsplit = 1.0\nseed = 1\n"
    );
    let mut table: toml::Table = text.parse().unwrap();
    table.extend(more.parse::<toml::Table>().unwrap());
    table.try_into().unwrap()
}

fn opened(data: &DataConfig, seq: usize) -> TokenSource {
    open(data.path.as_ref().unwrap(), data, seq, WORDS.len()).unwrap()
}

/// All tokens of a source of one sample.
fn only_sample(source: &TokenSource) -> Vec<i32> {
    assert_eq!(source.samples(), 1);
    let mut row = vec![0; source.width()];
    source.sample(Split::Train, 0, &mut row).unwrap();
    row
}

/// The number of tokens of a source.
fn count(data: &DataConfig) -> usize {
    opened(data, 1).samples() as usize + 1
}

fn tokenized(folder: &Folder, name: &str, tokenizer: &str, text: &str) -> String {
    let request = TokenizeRequest {
        tokenizer: tokenizer.into(),
        end_of_text: None,
        text_key: "text".into(),
        output: folder.path(name).into(),
        shard_tokens: 1000,
        files: vec![text.into()],
    };
    tokenize(&request, &Stop::default()).unwrap();
    folder.path(name)
}

#[test]
fn a_document_has_the_tokens_that_its_tokenizer_adds_before_a_text_and_one_end() {
    let folder = Folder::new("begin");
    let texts = ["a b", "c", "", "d a"];
    let lines: String = texts.iter().map(|text| json!({ "text": text }).to_string() + "\n").collect();
    let lines = folder.file("lines.jsonl", lines);
    let plain = folder.file("plain.txt", "a b");
    for (number, template) in
        [&["$A"][..], &["<s>", "$A"], &["<s>", "$A", "</s>"], &["<s>", "<s>", "$A"]].iter().enumerate()
    {
        let json = folder.file(&format!("{number}.json"), tokenizer_json(template));
        let library = tokenizers::Tokenizer::from_file(&json).unwrap();
        let document = |text: &&str| {
            let mut ids = library.encode(*text, true).unwrap().get_ids().to_vec();
            if template.last() != Some(&"</s>") {
                ids.push(2);
            }
            ids.into_iter().map(|id| id as i32).collect::<Vec<_>>()
        };
        // An empty text is no document.
        let expected: Vec<i32> = texts.iter().filter(|text| !text.is_empty()).flat_map(document).collect();
        let tokens = tokenized(&folder, &format!("tokens-{number}"), &json, &lines);
        for path in [&lines, &tokens] {
            let data = config(path, &json, "");
            assert_eq!(count(&data), expected.len());
            assert_eq!(only_sample(&opened(&data, expected.len() - 1)), expected, "{template:?} {path}");
        }
        let data = config(&plain, &json, "");
        assert_eq!(only_sample(&opened(&data, count(&data) - 1)), document(&"a b"));
        let prompt: Vec<i32> =
            Tokenizer::open(&json, None).unwrap().encode_document("a b").unwrap().iter().map(|id| *id as i32).collect();
        assert!(document(&"a b").starts_with(&prompt) && prompt.ends_with(&[3, 4]), "a prompt has no end");
    }
}

#[test]
fn a_document_that_is_cut_for_the_threads_begins_once() {
    let folder = Folder::new("begin-long");
    let json = folder.file("tokenizer.json", tokenizer_json(&["<s>", "$A"]));
    let text = folder.file("long.txt", "a b c d\n".repeat(200_000));
    assert_eq!(count(&config(&text, &json, "")), 800_000 + 2);
}

#[test]
fn a_conversation_begins_once_whether_its_template_writes_that_or_not() {
    let folder = Folder::new("begin-chat");
    let json = folder.file("tokenizer.json", tokenizer_json(&["<s>", "$A"]));
    folder.file("tokenizer_config.json", r#"{"bos_token": "<s>", "eos_token": "</s>"}"#);
    let turn = |role: &str, text: &str| json!({"role": role, "content": text});
    let chats =
        folder.file("chats.jsonl", json!({"messages": [turn("user", "a"), turn("assistant", "b")]}).to_string());
    let turns = "{% for m in messages %}{{ m.role }} {{ m.content }}{{ eos_token if m.role == 'assistant' else '' }} {% endfor %}";
    for begin in ["", "{{ bos_token }}"] {
        let template = folder.file("template.jinja", format!("{begin}{turns}"));
        let data = config(&chats, &json, &format!("sft = true\nchat_template = {template:?}"));
        let row = only_sample(&opened(&data, 6));
        assert_eq!(row[..6], [1, 7, 3, 8, 4, 2], "{begin}");
        let tokenizer = Tokenizer::open(&json, None).unwrap();
        for text in ["user a", "<s> user a"] {
            assert_eq!(tokenizer.encode_chat(text).unwrap(), [1, 7, 3]);
        }
    }
}

#[test]
fn a_question_begins_as_a_document_does() {
    let folder = Folder::new("begin-question");
    let question = |context: &str| json!({"context": context, "choices": ["c", "d"], "gold": 0}).to_string() + "\n";
    let file = folder.file("questions.jsonl", question("a b") + &question(""));
    for (template, rows) in [(&["$A"][..], [&[3, 4][..], &[2]]), (&["<s>", "$A"], [&[1, 3, 4], &[1]])] {
        let json = folder.file("tokenizer.json", tokenizer_json(template));
        let all = MultipleChoice::open(&file, &config(&file, &json, ""), 8, WORDS.len()).unwrap();
        for (number, expected) in [(0, rows[0]), (2, rows[1])] {
            let mut row = [0; 16];
            let targets = all.read(number, &mut row);
            assert_eq!((&row[..targets.end], targets.len()), (expected, 1), "{template:?}");
            assert_eq!(row[8 + targets.start], 5);
        }
    }
}

#[test]
fn token_files_without_first_tokens_stay_as_they_are_and_are_not_mixed_with_such_that_have_them() {
    let folder = Folder::new("begin-older");
    let json = folder.file("tokenizer.json", tokenizer_json(&["<s>", "$A"]));
    let text = folder.file("text.txt", "a b c d ".repeat(20));
    let tokens = tokenized(&folder, "tokens", &json, &text);
    let note = format!("{tokens}/tokens.json");
    let mut said: Value = serde_json::from_slice(&std::fs::read(&note).unwrap()).unwrap();
    assert_eq!(said["begin_of_text"], "<s>");
    assert_eq!(Tokenizer::open(&tokens, None).unwrap().encode_document("a").unwrap(), [1, 3]);
    // As an earlier version wrote it.
    said.as_object_mut().unwrap().remove("begin_of_text");
    std::fs::write(&note, said.to_string()).unwrap();
    assert_eq!(Tokenizer::open(&tokens, None).unwrap().encode_document("a").unwrap(), [3]);
    assert!(open(config(&tokens, &json, "").path.as_ref().unwrap(), &config(&tokens, &json, ""), 8, 9).is_ok());
    let both = config(&tokens, &json, &format!("path = [{tokens:?}, {text:?}]"));
    let problem = open(both.path.as_ref().unwrap(), &both, 8, 9).err().unwrap().to_string();
    assert!(problem.contains("begin with <s>") && problem.contains("tokenize them again"), "{problem}");
}
