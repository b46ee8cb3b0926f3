//! What is no part of the text of data is left out and said, or refused by file and line.

use common::UserError;

use super::{Folder, llmc, source, stream};
use crate::parquet_file::parquet_file;

/// All tokens of data of bytes, and the notices, of a dataset of samples of one token.
fn read(settings: &[(&str, &str)]) -> Result<(String, Vec<String>), UserError> {
    let source = source(&[settings, &[("split", "1")]].concat(), 1, 256)?;
    let text = stream(&source).iter().map(|&byte| if byte == 0 { '|' } else { byte as u8 as char }).collect();
    Ok((text, source.notices))
}

#[test]
fn byte_order_marks_are_no_text_and_said() {
    let folder = Folder::new("marks");
    let lines = "{\"text\": \"abc\"}\n{\"text\": \"d\"}\n";
    let packed = |text: &str| {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut packed, text.as_bytes()).unwrap();
        packed.finish().unwrap()
    };
    let mark = "\u{feff}";
    for (name, content, expected) in [
        ("x.txt", format!("{mark}abc{mark}").into_bytes(), "abc\u{ef}\u{bb}\u{bf}|"),
        ("x.jsonl", format!("{mark}{lines}").into_bytes(), "abc|d|"),
        ("x", format!("{mark}{lines}").into_bytes(), "abc|d|"),
        ("x.json", format!("{mark}[{}]", lines.trim().replace('\n', ",\n")).into_bytes(), "abc|d|"),
        ("x.jsonl.gz", packed(&format!("{mark}{lines}")), "abc|d|"),
    ] {
        let path = folder.file(name, content);
        let (text, notices) = read(&[("path", &path)]).unwrap();
        assert_eq!(text, expected, "{name}");
        assert_eq!(notices, [format!("1 file read without the byte-order mark at the begin: {path}")]);
    }
    // The place of a wrong byte is that in the file.
    let path = folder.file("wrong.txt", [mark.as_bytes(), b"ab\xff"].concat());
    let problem = read(&[("path", &path)]).unwrap_err().to_string();
    assert!(problem.contains("(byte 5)"), "{problem}");
}

#[test]
fn empty_documents_and_null_are_left_out_and_said_alike_in_json_and_parquet() {
    let folder = Folder::new("no-documents");
    let texts = ["ab", "", "null", "", "cd"].map(|text| (text != "null").then(|| text.to_string()));
    let line = |text: &Option<String>| serde_json::json!({ "body": text }).to_string() + "\n";
    let json = folder.file("x.jsonl", texts.iter().map(line).collect::<String>());
    let parquet = folder.file("x.parquet", parquet_file(&texts, 2));
    for (path, place) in [(json, "line"), (parquet, "row")] {
        let (text, notices) = read(&[("path", &path), ("text_key", "body")]).unwrap();
        assert_eq!(text, "ab|cd|", "{path}");
        let expected = [
            format!("2 documents left out, because their text is empty; the first is {path} {place} 2"),
            format!("1 document left out, because their text is null; the first is {path} {place} 3"),
        ];
        assert_eq!(notices, expected);
    }
    // Other values under the key stay a mistake.
    let path = folder.file("other.jsonl", "{\"text\": \"a\"}\n{\"text\": 3}\n");
    assert!(read(&[("path", &path)]).unwrap_err().to_string().contains("line 2 has no such text"));
}

#[test]
fn texts_that_bytes_cannot_tell_from_ends_and_keys_that_stand_twice_are_refused() {
    let folder = Folder::new("refused-records");
    let chat = |content: &str| {
        let answer = r#"{"role": "assistant", "content": "b"}"#;
        format!("{{\"messages\": [{{\"role\": \"user\", \"content\": {content}}}, {answer}]}}\n")
    };
    let (nul, twice) = (r#""a\u0000b""#, r#""a", "content": "b""#);
    let sft: &[(&str, &str)] = &[("sft", "true"), ("chat_template", "chatml")];
    for (name, content, settings, says) in [
        ("x.txt", "a\0b".to_string(), &[][..], "x.txt has a NUL character, and the tokenizer is bytes"),
        ("x.jsonl", format!("{{\"text\": \"a\"}}\n{{\"text\": {nul}}}\n"), &[], "x.jsonl line 2 has a NUL character"),
        ("x.jsonl", chat("\"a\"") + &chat(nul), sft, "x.jsonl line 2 has a NUL character"),
        ("x.jsonl", format!("{{\"prompt\": {nul}, \"completion\": \"b\"}}"), sft, "x.jsonl line 1 has a NUL character"),
        (
            "x.jsonl",
            "{\"text\": \"a\"}\n{\"text\": \"b\", \"text\": \"c\"}\n".into(),
            &[],
            "x.jsonl line 2 has the key `text` twice in one object",
        ),
        ("x.jsonl", chat("\"a\"") + &chat(twice), sft, "x.jsonl line 2 has the key `content` twice in one object"),
    ] {
        let path = folder.file(name, content);
        let problem = read(&[&[("path", &*path)], settings].concat()).unwrap_err().to_string();
        assert!(problem.contains(says) && problem.contains("Fix: "), "{problem}");
    }
}

#[test]
fn a_folder_of_several_kinds_gives_all_its_documents_or_says_what_it_leaves_out() {
    let folder = Folder::new("kinds");
    folder.file("a.jsonl", "{\"body\": \"ab\"}\n");
    folder.file("b.parquet", parquet_file(&[Some("cd".into())], 1));
    folder.file("c.txt", "ef");
    let readme = folder.file("README.md", "words");
    let whole = [("path", folder.0.to_str().unwrap()), ("text_key", "body")];
    let (text, notices) = read(&whole).unwrap();
    assert_eq!(text, "ab|cd|ef|");
    assert!(notices.len() == 1 && notices[0].contains(&readme), "{notices:?}");
    // Token files are of one tokenizer, and the text beside them often is their origin.
    folder.file("d.bin", llmc(20240520, 1, &[65, 66, 67], 2));
    folder.file("merges.txt", "of a tokenizer");
    let (text, notices) = read(&whole).unwrap();
    assert_eq!(text, "ABC");
    let names = ["a.jsonl", "b.parquet", "c.txt"].map(|name| folder.path(name)).join(", ");
    let because = "because their folder has token files (files that you name are read)";
    assert_eq!(notices, [format!("3 files left out, {because}: {names}")]);
}
