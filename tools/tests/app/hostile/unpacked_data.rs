//! Files of data that hold or announce more than memory has.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::harness::Folder;
use crate::hostile::parquet::Value::{Bytes, I32, I64, Struct};
use crate::hostile::parquet::{Value, data_header, described, dictionary_header, file, list, page, schema, varint};
use crate::hostile::refused;

/// Content that is unpacked many times in a row.
const PART: usize = 16 << 20;

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(content).unwrap();
    packed.finish().unwrap()
}

fn zstd(content: &[u8]) -> Vec<u8> {
    zstd::encode_all(content, 1).unwrap()
}

/// Files of text, each with a part of the error about it.
fn texts() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let line = vec![b'a'; PART];
    let lines = b"words of a line\n".repeat(PART / 16);
    let object = [b"{\"text\": \"", &line[..]].concat();
    vec![
        ("line.jsonl.gz", gzip(&line).repeat(128), "line 1 has more than 64.00 MiB"),
        ("line.jsonl.zst", zstd(&line).repeat(128), "more than 64."),
        ("object.json.gz", [gzip(&object), gzip(&line).repeat(128)].concat(), "does not begin with a line"),
        ("text.txt.gz", gzip(&line).repeat(128), "line 1 has more than 64.00 MiB"),
        ("text.txt.zst", [zstd(b"a\n"), zstd(&line).repeat(128)].concat(), "more than 64."),
        ("blank.txt.zst", zstd(&b"\n".repeat(PART)).repeat(5), "unpacks to more than 64."),
        ("lines.txt.zst", zstd(&lines).repeat(16), "unpacks to more than 64."),
    ]
}

/// What is said of a file that announces more than the memory for reading it.
const MEMORY: &str = "it takes more than 1.00 GiB of memory";

/// Parquet files, each with a part of the error about it.
fn tables() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let text = |text: &[u8]| [&(text.len() as u32).to_le_bytes(), text].concat();
    let plain = |header: Vec<(u8, Value)>, content: &[u8]| file(&page(header, content), 0, 1, false);
    let packed = |header: Vec<(u8, Value)>, content: &[u8]| file(&page(header, &gzip(content)), 2, 1, false);
    let with_schema = |schema: Value| {
        let groups = list(12, vec![]);
        described(b"", Struct(vec![(1, I32(1)), (2, schema), (3, I64(1)), (4, groups)]))
    };
    let within = |name: &[u8], columns: i64| Struct(vec![(3, I32(0)), (4, Bytes(name.into())), (5, I32(columns))]);
    let deep = |columns: i64| (0..columns).map(|_| within(b"a", 1)).collect::<Vec<_>>();
    let leaf = || Struct(vec![(1, I32(6)), (3, I32(0)), (4, Bytes(b"text".into()))]);
    // An element without columns and type is a group too.
    let beside = [
        vec![within(b"rows", 2)],
        vec![leaf()],
        deep(100_000),
        vec![Struct(vec![(3, I32(0)), (4, Bytes(b"b".into()))])],
    ];
    let (four, word) = (text(b"four"), text(&vec![b'a'; 36 << 20]));
    let packed_word = gzip(&word);
    // One word of 36 MiB, and 256 rows that have it.
    let rows = [0, 0x80, 0x04];
    let repeated = [
        page(dictionary_header(word.len() as i64, packed_word.len(), 1), &packed_word),
        page(data_header(rows.len() as i64, gzip(&rows).len(), 256, 8), &gzip(&rows)),
    ];
    let bomb = gzip(&vec![b'a'; PART]).repeat(128);
    let lengths = [varint(128), varint(4), varint(0x7fff_ffff), varint(0)].concat();
    let prefixes = [varint(128), varint(4), varint(0), varint(0), lengths.clone()].concat();
    let mut with_checksum = data_header(8, 8, 1, 0);
    with_checksum.insert(3, (4, I32(12345)));
    let mut with_statistics = data_header(8, 8, 1, 0);
    let endless = [varint(1 << 60), b"a".to_vec()].concat();
    with_statistics[3].1 = Struct(vec![
        (1, I32(1)),
        (2, I32(0)),
        (3, I32(3)),
        (4, I32(3)),
        (5, Struct(vec![(1, Value::Raw(8, endless))])),
    ]);
    let mut with_truths = data_header(8, 8, 1, 0);
    with_truths.push((9, Value::List { kind: 2, announced: 0x7fff_ffff, items: vec![] }));
    let announced = |kind| Value::List { kind, announced: 0x7fff_ffff, items: vec![] };
    let far = page(data_header(8, 8, 1, 0), &four);
    let mut cut = file(&far, 0, 1, false);
    let half = cut[..cut.len() / 2].to_vec();
    let length = cut.len();
    cut[length - 8..length - 4].copy_from_slice(&0x7fff_ffff_u32.to_le_bytes());
    vec![
        ("many columns", with_schema(list(12, vec![within(b"a", 0x7fff_ffff)])), "announces 2147483647 columns"),
        (
            "deep columns",
            with_schema(list(12, deep(9460).into_iter().chain([leaf()]).collect())),
            "nested more than 64 deep",
        ),
        (
            "deep columns beside text",
            with_schema(list(12, beside.into_iter().flatten().collect())),
            "nested more than 64 deep",
        ),
        ("many in the list", with_schema(announced(12)), "announces a list of 2147483647"),
        (
            "many groups",
            described(b"", Struct(vec![(1, I32(1)), (2, schema()), (3, I64(1)), (4, announced(12))])),
            "announces a list of 2147483647",
        ),
        ("half a file", half, "it does not end as a Parquet file"),
        ("a long description", cut, "its description of itself has 2147483647 bytes"),
        ("a large page", packed(data_header(0x7fff_ffff, gzip(&four).len(), 1, 0), &four), MEMORY),
        ("a page behind the end", plain(data_header(8, 1 << 30, 1, 0), &four), "Invalid page header"),
        ("a repeated word", file(&repeated.concat(), 2, 256, true), "unpacks to more than 64."),
        ("a page that holds more", file(&page(data_header(100, bomb.len(), 1, 0), &bomb), 2, 1, false), MEMORY),
        ("many words", file(&page(dictionary_header(8, 8, 0x7fff_ffff), &four), 0, 1, true), MEMORY),
        ("many lengths", plain(data_header(lengths.len() as i64, lengths.len(), 1, 6), &lengths), MEMORY),
        ("many rests", plain(data_header(prefixes.len() as i64, prefixes.len(), 1, 7), &prefixes), MEMORY),
        ("a long statistic", plain(with_statistics, &four), "failed to fill whole buffer"),
        ("many truths", plain(with_truths, &four), "more than 3.0 s of processor time"),
        ("a wrong checksum", plain(with_checksum, &four), "Page CRC checksum mismatch"),
        ("packed with LZO", file(&far, 3, 1, false), "is packed with LZO"),
    ]
}

#[test]
fn data_that_unpack_to_more_than_memory_has_are_refused_before_they_fill_it() {
    let folder = Folder::new("hostile-data");
    let tokenize = ["tokenize", "--tokenizer", "byte", "--output", "tokens"];
    for (name, content, says) in texts() {
        std::fs::write(folder.path(name), content).unwrap();
        refused(name, &folder.0, &[&tokenize[..], &[name]].concat(), &[name, says]);
    }
    for (name, content, says) in tables() {
        std::fs::write(folder.path("x.parquet"), content).unwrap();
        refused(name, &folder.0, &[&tokenize[..], &["x.parquet"]].concat(), &["x.parquet", says]);
    }
    // Conversations and questions are held as values. These take more than their text.
    let values = [b"{\"messages\": [0", b",0".repeat(10 << 20).as_slice(), b"]}"].concat();
    std::fs::write(folder.path("values.jsonl.gz"), gzip(&values)).unwrap();
    let inspect = ["data", "inspect", "--sft", "--chat-template", "chatml", "values.jsonl.gz"];
    refused(
        "values",
        &folder.0,
        &inspect,
        &["values.jsonl.gz line 1 has 20.00 MiB, and a record has at most 16.00 MiB"],
    );
}
