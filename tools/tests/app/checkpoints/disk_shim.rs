//! A disk that fails, fills or hangs under one file of a run: a library between the trainer and the system.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The fault of the calls that write to a file.
pub enum Fault {
    /// The disk has no space: the file can be opened and takes no byte.
    Full,
    /// The call of that number takes 8 s more, counted from 1. Opening is a call too.
    Slow(usize),
    /// The call of that number and all later ones wait for ever, as on a dead file server.
    Hangs(usize),
    /// The call of that number fails with an error of the disk.
    Fails(usize),
}

/// Has a command meet a fault at a file. The file and its folder need not be there yet. `folder` is for the library.
pub fn break_file(command: &mut Command, folder: &Path, file: &Path, fault: &Fault) {
    let (kind, at) = match fault {
        Fault::Full => ("nospace", 0),
        Fault::Slow(at) => ("slow", *at),
        Fault::Hangs(at) => ("hang", *at),
        Fault::Fails(at) => ("EIO", *at),
    };
    // Calls name a file as the system does.
    let there = file.ancestors().skip(1).find(|path| path.exists()).unwrap();
    let path = there.canonicalize().unwrap().join(file.strip_prefix(there).unwrap());
    command.env("LD_PRELOAD", library(folder)).env("FAULTS_BELOW", path);
    command.env("FAULTS_KIND", kind).env("FAULTS_AT", at.to_string());
}

/// The library, compiled into a folder.
fn library(folder: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bench/faults/disk_faults.c");
    let library = folder.join("disk_faults.so");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-shared", "-fPIC", "-o"]).arg(&library).arg(source).arg("-ldl");
    assert!(compiler.status().unwrap().success(), "the fault library does not compile");
    library
}
