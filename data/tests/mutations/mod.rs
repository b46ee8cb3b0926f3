//! Random changes of valid files. No change may make the trainer panic or wait, or accept a file that it should refuse.
#![allow(dead_code)]

use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{TestCaseError, TestRunner};

/// Cases of each test: a few hundred, or as many as the environment variable `FUZZ_CASES` says.
fn cases() -> u32 {
    std::env::var("FUZZ_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(300)
}

/// The time limit of a case. It is far above the usual time: another process may have the processor meanwhile.
const LIMIT: Duration = Duration::from_secs(20);

/// Texts that replace a value in a file.
const EXTREMES: &[&str] = &[
    "0",
    "-1",
    "1e999",
    "-0.0",
    "1e-320",
    "18446744073709551615",
    "9223372036854775808",
    "2147483648",
    "4294967296",
    "65536",
    "null",
    "true",
    "\"\"",
    "[]",
    "{}",
    "\"\\u001b[2J\"",
    "\"../../x\"",
    "\"/dev/zero\"",
    "[[[[",
    "\u{202e}",
    "nan",
    "inf",
    "\0",
];

/// A change of a file.
#[derive(Clone, Debug)]
pub enum Change {
    /// One bit is another.
    Flip(Index, u8),
    /// One byte is another.
    Set(Index, u8),
    /// Bytes are added.
    Insert(Index, Vec<u8>),
    /// Bytes are missing.
    Remove(Index, Index),
    /// Bytes stand somewhere else too.
    Copy(Index, Index, Index),
    /// A number, or a word, is one of [`EXTREMES`].
    Value(Index, Index),
    /// The file ends there.
    Cut(Index),
}

/// One to three changes.
pub fn changes() -> impl Strategy<Value = Vec<Change>> {
    let at = any::<Index>;
    let change = prop_oneof![
        4 => (at(), 0..8u8).prop_map(|(place, bit)| Change::Flip(place, bit)),
        2 => (at(), any::<u8>()).prop_map(|(place, byte)| Change::Set(place, byte)),
        1 => (at(), prop::collection::vec(any::<u8>(), 1..9)).prop_map(|(place, bytes)| Change::Insert(place, bytes)),
        1 => (at(), at()).prop_map(|(place, count)| Change::Remove(place, count)),
        1 => (at(), at(), at()).prop_map(|(from, count, to)| Change::Copy(from, count, to)),
        4 => (at(), at()).prop_map(|(place, value)| Change::Value(place, value)),
        1 => at().prop_map(Change::Cut),
    ];
    prop::collection::vec(change, 1..4)
}

/// The content after these changes.
pub fn changed(content: &[u8], changes: &[Change]) -> Vec<u8> {
    let mut content = content.to_vec();
    for change in changes {
        if content.is_empty() {
            break;
        }
        let all = content.len();
        match change {
            Change::Flip(place, bit) => content[place.index(all)] ^= 1 << bit,
            Change::Set(place, byte) => content[place.index(all)] = *byte,
            Change::Insert(place, bytes) => {
                let at = place.index(all);
                content.splice(at..at, bytes.iter().copied());
            }
            Change::Remove(place, count) => {
                let at = place.index(all);
                content.drain(at..(at + 1 + count.index(40)).min(all));
            }
            Change::Copy(from, count, to) => {
                let (from, to) = (from.index(all), to.index(all));
                let bytes = content[from..(from + 1 + count.index(80)).min(all)].to_vec();
                content.splice(to..to, bytes);
            }
            Change::Value(place, value) => {
                let of_word = |byte: &u8| byte.is_ascii_alphanumeric() || b".-+_".contains(byte);
                let at = place.index(all);
                let start = content[..at].iter().rposition(|byte| !of_word(byte)).map_or(0, |at| at + 1);
                let end = content[at..].iter().position(|byte| !of_word(byte)).map_or(all, |more| at + more);
                content.splice(start..end.max(start), value.get(EXTREMES).bytes());
            }
            Change::Cut(place) => content.truncate(place.index(all)),
        }
    }
    content
}

/// Runs `test` on many changes of `content`. A case that fails is made as small as possible.
pub fn each_change(content: &[u8], test: impl Fn(Vec<u8>) -> Result<(), TestCaseError>) {
    let config = ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() };
    let result = TestRunner::new(config).run(&changes(), |changes| {
        let began = Instant::now();
        test(changed(content, &changes))?;
        prop_assert!(began.elapsed() < LIMIT, "it took {:?}", began.elapsed());
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}
