//! The kernels of `kernels/peers.cu` on a CPU: the source is compiled as C++, with threads for the threads of blocks, and makes random
//! transfers between 2 to 8 ranks. It needs g++.

use std::path::Path;
use std::process::Command;

use device::cuda::SOURCES;

const STAND_INS: [(&str, &str); 3] = [
    ("common.cuh", include_str!("peers_on_host/common.cuh")),
    ("system.cuh", include_str!("peers_on_host/system.cuh")),
    ("main.cpp", include_str!("peers_on_host/main.cpp")),
];

/// Compiles `kernel` with the stand-ins in a folder.
fn build(folder: &Path, kernel: &str) {
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
    STAND_INS.iter().for_each(|(name, text)| write(name, text));
    write("peers.cu", kernel);
    let options = ["-std=c++20", "-O1", "-pthread", "-Wno-unknown-pragmas", "main.cpp", "-o", "transfers"];
    let built = Command::new("g++").args(options).current_dir(folder).output();
    let built = built.unwrap_or_else(|error| panic!("g++: {error}. Fix: install it (Debian: g++)"));
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}

/// The output of the transfers between so many ranks, and whether all values were right.
fn transfer(folder: &Path, ranks: usize) -> (String, bool) {
    let done = Command::new(folder.join("transfers")).arg(ranks.to_string()).output().unwrap();
    (String::from_utf8_lossy(&done.stdout).into_owned(), done.status.success())
}

fn kernel() -> &'static str {
    SOURCES.iter().find(|(name, _)| *name == "peers.cu").unwrap().1
}

#[test]
fn random_transfers_between_2_to_8_ranks_are_right() {
    let folder = tempfile::tempdir().unwrap();
    build(folder.path(), kernel());
    for ranks in [2, 3, 4, 5, 8] {
        let (printed, right) = transfer(folder.path(), ranks);
        assert!(right && printed.starts_with("0 of "), "{ranks} ranks: {printed}");
    }
}

#[test]
fn a_kernel_that_reads_the_slot_of_another_round_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let wrong = kernel().replace("slot(op, from, op.rank, round)", "slot(op, from, op.rank, round + 1)");
    assert_ne!(wrong, kernel());
    build(folder.path(), &wrong);
    assert!(!transfer(folder.path(), 2).1);
}
