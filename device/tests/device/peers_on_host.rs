//! The kernels of `kernels/transfers` on a CPU: the source is compiled as C++, with threads for the threads of blocks, and
//! makes random transfers between 2 to 8 ranks. It needs g++.

use std::path::Path;
use std::process::Command;

const SUMS: &str = include_str!("../../kernels/transfers/peers.cu");
const ROWS: &str = include_str!("../../kernels/transfers/peer_rows.cu");
const STAND_INS: [(&str, &str); 7] = [
    ("common.cuh", include_str!("peers_on_host/common.cuh")),
    ("system.cuh", include_str!("peers_on_host/system.cuh")),
    ("offsets.cuh", include_str!("../../kernels/headers/offsets.cuh")),
    ("peers.cuh", include_str!("../../kernels/headers/peers.cuh")),
    ("on_ranks.h", include_str!("peers_on_host/on_ranks.h")),
    ("sums.cpp", include_str!("peers_on_host/sums.cpp")),
    ("rows.cpp", include_str!("peers_on_host/rows.cpp")),
];

/// Compiles kernels with the stand-ins in a folder: sums and gathers, or rows.
fn build(folder: &Path, program: &str, sums: &str, rows: &str) {
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
    STAND_INS.iter().for_each(|(name, text)| write(name, text));
    write("peers.cu", sums);
    write("peer_rows.cu", rows);
    let options = ["-std=c++20", "-O1", "-pthread", "-Wno-unknown-pragmas", program, "-o", "transfers"];
    let built = Command::new("g++").args(options).current_dir(folder).output();
    let built = built.unwrap_or_else(|error| panic!("g++: {error}. Fix: install it (Debian: g++)"));
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}

/// The output of the transfers between so many ranks, and whether all values were right.
fn transfer(folder: &Path, ranks: usize) -> (String, bool) {
    let done = Command::new(folder.join("transfers")).arg(ranks.to_string()).output().unwrap();
    (String::from_utf8_lossy(&done.stdout).into_owned(), done.status.success())
}

fn assert_right(program: &str) {
    let folder = tempfile::tempdir().unwrap();
    build(folder.path(), program, SUMS, ROWS);
    for ranks in [2, 3, 4, 5, 8] {
        let (printed, right) = transfer(folder.path(), ranks);
        assert!(right && printed.starts_with("0 of "), "{ranks} ranks: {printed}");
    }
}

#[test]
fn random_transfers_between_2_to_8_ranks_are_right() {
    assert_right("sums.cpp");
}

#[test]
fn random_exchanges_of_rows_between_2_to_8_ranks_are_right() {
    assert_right("rows.cpp");
}

#[test]
fn kernels_with_a_fault_are_found() {
    for (program, right, wrong) in [
        ("sums.cpp", "slot(op, from, op.peers.rank, round)", "slot(op, from, op.peers.rank, round + 1)"),
        ("rows.cpp", "from < op.peers.rank ?", "from <= op.peers.rank ?"),
        ("rows.cpp", "MAX_RANKS + to]", "MAX_RANKS + peers.rank]"),
        ("rows.cpp", "place_of(peers.windows[peers.rank], to)", "place_of(peers.windows[to], peers.rank)"),
        ("rows.cpp", "lane < here", "lane < 1"),
    ] {
        assert!(SUMS.contains(right) || ROWS.contains(right), "{right}");
        let faulty = |source: &str| source.replace(right, wrong);
        let folder = tempfile::tempdir().unwrap();
        build(folder.path(), program, &faulty(SUMS), &faulty(ROWS));
        assert!(!transfer(folder.path(), 2).1, "{program}: {wrong}");
    }
}
