//! The step of every layout, scope, pool and feature as it is now, held by digests: operations with all their fields,
//! waits between them, places of memory, and launches. Tests of bits compare settings of one build, so a shift of all
//! of them would pass there.
//!
//! `digests.txt` has a line for each case and setting. If one differs, the text that it is made from is written next to
//! the test's other files, to be compared with the text of another commit. `WRITE_DIGESTS=1` writes the file anew, and
//! `DIGEST_TEXTS=FOLDER` writes all texts.
//!
//! Bits of losses and weights depend on the processor's instructions, so they are not stored. `bench/same_bits.py COMMIT`
//! builds another commit and compares them on one machine.

pub mod cases;
mod digest;
pub mod recorded;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use engine::passes::PassName;

use cases::{Case, cases, settings};
use digest::digest;
use recorded::{launched, recorded, trained};

use crate::models::{Layout, Run};

/// The parts of a step with a digest each.
const PARTS: [&str; 4] = ["operations", "order", "memory", "launches"];

fn stored() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/steps/digests/digests.txt")
}

/// What all ranks have in words, one text for each part.
fn of_ranks<const N: usize>(
    run: impl Fn() -> Run + Sync,
    layout: Layout,
    parts: fn(&Run) -> [String; N],
) -> [String; N] {
    let mut all = [const { String::new() }; N];
    for (rank, parts) in layout.on_ranks(run, |run| parts(&run)).iter().enumerate() {
        for (text, part) in all.iter_mut().zip(parts) {
            let _ = write!(text, "rank {rank}\n{part}");
        }
    }
    all
}

/// The texts of all ranks, one for each part.
fn texts(case: &Case, setting: &str) -> [String; 4] {
    let texts = of_ranks(
        || case.run(setting),
        case.layout,
        |run| {
            let [operations, order, memory] = recorded(run);
            [operations, order, memory, launched(run)]
        },
    );
    if setting == "per layer" {
        let passes = case.passes();
        let left_out: Vec<PassName> = PassName::ALL.into_iter().filter(|pass| !passes.contains(pass)).collect();
        let run = || Run { left_out: left_out.clone(), ..case.run(setting) };
        assert!(
            of_ranks(run, case.layout, recorded) == texts[..3],
            "{}: without {left_out:?} it is another",
            case.name
        );
    }
    texts
}

#[test]
fn the_steps_of_all_layouts_scopes_pools_and_features_are_those_of_the_stored_digests() {
    let mut lines = BTreeMap::new();
    let mut all_texts = BTreeMap::new();
    for case in cases() {
        for setting in settings() {
            let texts = texts(&case, setting);
            let name = format!("{}, {setting}", case.name);
            write_texts(&name, &texts);
            let digests: Vec<String> = texts.iter().map(|text| digest(text)).collect();
            assert!(lines.insert(name.clone(), digests.join(" ")).is_none(), "two cases are called {name}");
            all_texts.insert(name, texts);
        }
    }
    let text: String = lines.iter().map(|(name, digests)| format!("{digests} {name}\n")).collect();
    if std::env::var_os("WRITE_DIGESTS").is_some() {
        return std::fs::write(stored(), text).unwrap();
    }
    let before = std::fs::read_to_string(stored()).unwrap_or_default();
    let before: BTreeMap<&str, Vec<&str>> = before.lines().filter_map(stored_line).collect();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("digests");
    let mut problems = Vec::new();
    for (name, digests) in &lines {
        let Some(before) = before.get(name.as_str()) else {
            problems.push(format!("{name} has no stored digest"));
            continue;
        };
        for (part, (now, before)) in
            digests.split(' ').zip(before).enumerate().filter(|(_, (now, before))| now != *before)
        {
            std::fs::create_dir_all(&folder).unwrap();
            let path = folder.join(format!("{name}, {}.txt", PARTS[part]));
            std::fs::write(&path, &all_texts[name][part]).unwrap();
            problems.push(format!("{}: {before} is stored, this build has {now}: {}", PARTS[part], path.display()));
        }
    }
    problems.extend(before.keys().filter(|name| !lines.contains_key(**name)).map(|name| format!("{name} is no case")));
    assert!(problems.is_empty(), "{} digests differ:\n{}", problems.len(), problems.join("\n"));
}

fn write_texts(name: &str, texts: &[String; 4]) {
    let Some(folder) = std::env::var_os("DIGEST_TEXTS") else { return };
    std::fs::create_dir_all(&folder).unwrap();
    for (part, text) in PARTS.iter().zip(texts) {
        std::fs::write(Path::new(&folder).join(format!("{name}, {part}.txt")), text).unwrap();
    }
}

/// The name and the digests of a line.
fn stored_line(line: &str) -> Option<(&str, Vec<&str>)> {
    let parts: Vec<&str> = line.splitn(PARTS.len() + 1, ' ').collect();
    let (name, digests) = parts.split_last()?;
    Some((name, digests.to_vec()))
}

/// Losses, norms and final weights of every case with graphs per layer, in bits, to the file that `STEP_BITS` names.
#[test]
fn losses_and_weights_are_written_for_a_comparison_with_another_build() {
    let Some(path) = std::env::var_os("STEP_BITS") else { return };
    let mut text = String::new();
    for case in cases() {
        let make = || Run { steps: 6, ..case.run(settings()[1]) };
        for (rank, bits) in case.layout.on_ranks(make, |run| trained(&run)).iter().enumerate() {
            let _ = writeln!(text, "{} {}, rank {rank}", digest(bits), case.name);
        }
    }
    std::fs::write(path, text).unwrap();
}
