//! A crate outside of the workspace, with no other dependency than `device` and this crate, builds and runs.

use std::path::Path;
use std::process::Command;

#[test]
fn a_crate_of_its_own_brings_regions_layers_and_an_operation() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let external = own.join("tests/external");
    // The versions of the workspace, so that nothing has to be downloaded.
    std::fs::copy(own.join("../Cargo.lock"), external.join("Cargo.lock")).unwrap();
    let output = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--offline"])
        .current_dir(&external)
        .env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("external"))
        .output()
        .unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("with 11 graphs"), "{said}{errors}");
}
