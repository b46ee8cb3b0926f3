//! Changed files of data: each is refused, or read as its new content says.

use std::fmt::Formatter;

use proptest::prelude::*;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::{Folder, ids, llmc, megatron_index, packed, source, stream};
use crate::mutations::each_change;
use crate::parquet_file::parquet_file;

#[test]
fn a_changed_index_is_refused_or_the_tokens_stay() {
    let folder = Folder::new("fuzz-index");
    let tokens: Vec<i32> = ids(120).iter().map(|id| id % 900).collect();
    let bin = folder.file("x.bin", packed(&tokens, 2));
    each_change(&megatron_index(8, &[20, 70, 30], 2), |index| {
        folder.file("x.idx", index);
        if let Ok(source) = source(&[("path", &bin), ("split", "1")], 7, 1000) {
            prop_assert_eq!(stream(&source), &tokens[..120]);
        }
        Ok(())
    });
}

#[test]
fn a_changed_header_of_a_token_file_is_refused_or_the_tokens_stay() {
    let folder = Folder::new("fuzz-header");
    let tokens: Vec<i32> = ids(106).iter().map(|id| id % 900).collect();
    let file = llmc(20240520, 1, &tokens, 2);
    // The bytes after the first integers are not read. A shorter header can make a sound file with fewer tokens, so the header
    // keeps its length.
    each_change(&file[..24], |mut begin| {
        begin.resize(24, 0);
        let path = folder.file("x.bin", [&begin, &file[24..]].concat());
        if let Ok(source) = source(&[("path", &path), ("split", "1")], 7, 1000) {
            prop_assert_eq!(stream(&source), &tokens[..106]);
        }
        Ok(())
    });
}

/// The string under the last `text` of an object. Any JSON may stand under the other names: `1e999` too, which is no f64.
struct TextOf(Option<String>);

impl<'de> Deserialize<'de> for TextOf {
    fn deserialize<D: Deserializer<'de>>(line: D) -> Result<TextOf, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = TextOf;

            fn expecting(&self, f: &mut Formatter) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<TextOf, A::Error> {
                let mut found = TextOf(None);
                while let Some(key) = entries.next_key::<String>()? {
                    match key == "text" {
                        true => found.0 = entries.next_value::<serde_json::Value>()?.as_str().map(str::to_string),
                        false => _ = entries.next_value::<IgnoredAny>()?,
                    }
                }
                Ok(found)
            }
        }
        line.deserialize_map(Object)
    }
}

#[test]
fn changed_json_lines_are_refused_or_their_texts_are_the_tokens() {
    let folder = Folder::new("fuzz-lines");
    let lines =
        "{\"text\": \"first, with é\"}\n\n{\"id\": 7, \"text\": \"second \\u00e9 \\n line\"}\n{\"text\":\"third\"}\n";
    // Each text, and the byte that ends it.
    let expected = |content: &[u8]| -> Option<Vec<i32>> {
        let mut tokens = Vec::new();
        for line in std::str::from_utf8(content).ok()?.split('\n').filter(|line| !line.trim().is_empty()) {
            let text = serde_json::from_str::<TextOf>(line).ok()?.0?;
            tokens.extend(text.bytes().chain([0]).map(i32::from));
        }
        Some(tokens)
    };
    each_change(lines.as_bytes(), |content| {
        let path = folder.file("x.jsonl", &content);
        let read = source(&[("path", &path), ("split", "1")], 3, 256);
        match (read, expected(&content)) {
            (Ok(source), Some(tokens)) => {
                let found = stream(&source);
                prop_assert!(found.len() + 3 >= tokens.len() && tokens.starts_with(&found), "{:?}", found);
            }
            (Ok(_), None) => prop_assert!(false, "{:?} was read", String::from_utf8_lossy(&content)),
            // Too little is left for a sample, or there is no text.
            (Err(error), Some(tokens)) => {
                prop_assert!(tokens.len() < 4 || tokens.iter().all(|token| *token == 0), "{}", error);
            }
            (Err(error), None) => prop_assert!(!error.to_string().contains('\n'), "{}", error),
        }
        Ok(())
    });
}

#[test]
fn a_changed_parquet_file_is_refused_in_a_line_or_read() {
    let folder = Folder::new("fuzz-parquet");
    let texts: Vec<Option<String>> = (0..40).map(|n| Some(format!("text {n} ").repeat(n))).collect();
    each_change(&parquet_file(&texts, 25), |content| {
        let path = folder.file("x.parquet", &content);
        if let Err(error) = source(&[("path", &path), ("text_key", "body"), ("split", "1")], 3, 256) {
            prop_assert!(!error.to_string().contains('\n'), "{}", error);
        }
        Ok(())
    });
}
