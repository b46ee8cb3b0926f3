//! A crate outside of the workspace, with no other dependencies than `device`, this crate and cudarc, builds and runs.

use std::path::Path;
use std::process::Command;

/// Runs one of its programs, and finds the end of the line that it prints. The program checks itself.
fn prints(program: &str, ending: &str) {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let external = own.join("tests/external");
    // The versions of the workspace, so that nothing has to be downloaded.
    std::fs::copy(own.join("../Cargo.lock"), external.join("Cargo.lock")).unwrap();
    let output = Command::new(env!("CARGO"))
        .args([
            "run",
            "--quiet",
            "--offline",
            "--bin",
            program,
            "--",
            &std::env::var("TEST_DEVICE").unwrap_or_default(),
        ])
        .current_dir(&external)
        .env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("external"))
        .output()
        .unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let name = program.replace('_', " ");
    assert!(output.status.success(), "{program}: {said}{errors}");
    assert!(said.starts_with(&format!("{name}: ")) && said.trim_end().ends_with(ending), "{program}: {said}{errors}");
}

#[test]
fn a_crate_of_its_own_trains_to_the_same_bits_with_every_way_to_a_graph() {
    prints("own_network", "with 11 graphs");
    prints("whole_iteration", "with 2 graphs");
    prints("ahead_of_time", "with 2 graphs");
    prints("one_block", "with 2 graphs");
}

#[test]
fn kernels_and_memory_of_other_crates_are_captured_with_the_bits_of_eager_steps() {
    prints("cudarc_kernel", "the same bits eagerly and with 1 graph");
    prints("precompiled", "the same bits eagerly and with 1 graph");
}
