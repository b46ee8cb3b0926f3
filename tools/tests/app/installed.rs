//! The trainer away from its build folder: its library for MPI, and the wheel that carries both.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use sha2::{Digest as _, Sha256};

use crate::harness::{Folder, arguments, expect, mpirun_command, printed};

const TRAINER: &str = env!("CARGO_BIN_EXE_trainer");

/// The library in the build folder.
fn library() -> PathBuf {
    Path::new(TRAINER).with_file_name("deps").join("libtrainer_mpi.so")
}

#[test]
fn ranks_load_mpi_from_lib_next_to_the_programs_folder_and_without_it_one_line_says_so() {
    let folder = Folder::new("installed");
    let (bin, lib) = (folder.path("bin"), folder.path("lib"));
    fs::create_dir(&bin).unwrap();
    fs::create_dir(&lib).unwrap();
    fs::hard_link(TRAINER, bin.join("trainer")).unwrap();
    let ranks = || {
        let mut command = mpirun_command(&folder.0);
        command.arg("-n").arg("2").arg(bin.join("trainer"));
        command.args(arguments(&folder.0, "--steps 1 --eval-interval 0")).output().unwrap()
    };
    let missing = ranks();
    expect(&missing, 2, &["libtrainer_mpi.so is in none of", &format!("{}. Rule: ", lib.display()), "trainer-mpi"]);
    assert_eq!(printed(&missing).matches("error: ").count(), 1, "{}", printed(&missing));
    let (apart, mut alone) = (Folder::new("installed-alone"), Command::new(bin.join("trainer")));
    let alone = alone.args(arguments(&apart.0, "--steps 1 --eval-interval 0")).output().unwrap();
    expect(&alone, 0, &["done: loss"]);

    fs::hard_link(library(), lib.join("libtrainer_mpi.so")).unwrap();
    expect(&ranks(), 0, &["done: loss"]);
}

/// Makes a wheel in `folder`.
fn wheel(folder: &Path, program: &Path, library: &Path) -> Output {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut python = python();
    python
        .arg(repository.join("release/wheel.py"))
        .args(["trainer", "0.1.0"])
        .arg(repository)
        .arg(program)
        .arg(library);
    python.current_dir(folder).output().unwrap()
}

fn python() -> Command {
    Command::new(std::env::var("PARITY_PYTHON").expect("PARITY_PYTHON: `./x test` sets it"))
}

/// Base64 for URLs, without padding.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let group = |three: &[u8]| {
        let bits = (0..3).fold(0, |bits, index| bits << 8 | u32::from(three.get(index).copied().unwrap_or(0)));
        let letters = (0..=three.len()).map(move |index| LETTERS[(bits >> (18 - 6 * index)) as usize % 64]);
        letters.map(char::from).collect::<String>()
    };
    bytes.chunks(3).map(group).collect()
}

#[test]
fn a_wheel_records_its_files_and_pip_puts_program_and_library_where_they_find_each_other() {
    let folder = Folder::new("wheel");
    // A small program in place of the trainer.
    let (program, library) = (Path::new("/bin/true"), library());
    let made = wheel(&folder.0, program, &library);
    expect(&made, 0, &[]);
    let name = String::from_utf8(made.stdout).unwrap().trim().to_string();
    assert!(name.starts_with("trainer-0.1.0-py3-none-manylinux_2_"), "{name}");

    let unpacked = folder.path("unpacked");
    expect(&python().args(["-m", "zipfile", "-e"]).arg(folder.path(&name)).arg(&unpacked).output().unwrap(), 0, &[]);
    let info = unpacked.join("trainer-0.1.0.dist-info");
    let record = fs::read_to_string(info.join("RECORD")).unwrap();
    let mut names = Vec::new();
    for line in record.lines() {
        let [name, hash, size] = line.split(',').collect::<Vec<_>>()[..] else { panic!("{line}") };
        names.push(name);
        if !name.ends_with("/RECORD") {
            let bytes = fs::read(unpacked.join(name)).unwrap();
            assert_eq!(hash, format!("sha256={}", base64(&Sha256::digest(&bytes))), "{name}");
            assert_eq!(size, bytes.len().to_string(), "{name}");
        }
    }
    let expected = [
        "trainer-0.1.0.data/scripts/trainer",
        "trainer-0.1.0.data/data/lib/libtrainer_mpi.so",
        "trainer-0.1.0.dist-info/licenses/LICENSE",
        "trainer-0.1.0.dist-info/METADATA",
        "trainer-0.1.0.dist-info/WHEEL",
        "trainer-0.1.0.dist-info/RECORD",
    ];
    assert_eq!(names, expected);
    let tag = name.trim_start_matches("trainer-0.1.0-").trim_end_matches(".whl");
    assert!(fs::read_to_string(info.join("WHEEL")).unwrap().contains(&format!("\nTag: {tag}\n")));
    let metadata = fs::read_to_string(info.join("METADATA")).unwrap();
    for line in [
        "Provides-Extra: cuda12",
        "Provides-Extra: cuda13",
        "Requires-Dist: nvidia-cudnn-cu13>=9.10.2 ; extra == \"cuda13\"",
        "Requires-Dist: nvidia-nccl-cu12>=2.9 ; extra == \"cuda12\"",
    ] {
        assert!(metadata.lines().any(|has| has == line), "{line} is not in\n{metadata}");
    }

    let prefix = folder.path("prefix");
    let mut pip = python();
    pip.args(["-m", "pip", "install", "-q", "--no-index", "--no-deps", "--prefix"]).arg(&prefix);
    expect(&pip.arg(folder.path(&name)).output().unwrap(), 0, &[]);
    assert!(Command::new(prefix.join("bin/trainer")).status().unwrap().success(), "pip made it a program");
    assert_eq!(fs::read(prefix.join("lib/libtrainer_mpi.so")).unwrap(), fs::read(&library).unwrap());

    let linked = wheel(&folder.0, &library, &library);
    expect(&linked, 1, &["needs libmpi.so", "Rule: systems have all that it is linked to"]);
}
