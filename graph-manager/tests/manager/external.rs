//! A crate outside of the workspace builds with the packages that would be published, and runs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

const OWN: &str = env!("CARGO_MANIFEST_DIR");

/// The packages that are published.
const PACKAGES: [&str; 2] = ["graph-manager", "graph-manager-device"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("external")
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Unpacks the packages, and returns their folders. A file that has not changed is not written, so that Cargo builds only
/// what has.
fn packages() -> [PathBuf; 2] {
    let packed = folder().join("package");
    run(Command::new(env!("CARGO"))
        .args(["package", "--quiet", "--offline", "--no-verify", "--allow-dirty", "--target-dir"])
        .arg(folder())
        .args(PACKAGES.iter().flat_map(|name| ["-p", name]))
        .current_dir(Path::new(OWN).parent().unwrap()));
    let fresh = folder().join("fresh");
    PACKAGES.map(|name| {
        let name = format!("{name}-{}", env!("CARGO_PKG_VERSION"));
        let _ = fs::remove_dir_all(&fresh); // it may not be there
        fs::create_dir_all(&fresh).unwrap();
        run(Command::new("tar").arg("xzf").arg(packed.join(format!("{name}.crate"))).arg("-C").arg(&fresh));
        let unpacked = folder().join("unpacked").join(&name);
        update(&fresh.join(&name), &unpacked);
        unpacked
    })
}

/// Makes `to` the same as `from`.
fn update(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    let names = |folder: &Path| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    for name in names(to).filter(|name| !from.join(name).exists()) {
        let gone = to.join(name);
        if gone.is_dir() { fs::remove_dir_all(gone).unwrap() } else { fs::remove_file(gone).unwrap() }
    }
    for name in names(from) {
        let (from, to) = (from.join(&name), to.join(&name));
        let bytes = |path: &Path| fs::read(path).ok();
        if from.is_dir() {
            update(&from, &to);
        } else if bytes(&from) != bytes(&to) {
            fs::write(to, fs::read(from).unwrap()).unwrap();
        }
    }
}

/// A program that no other test builds with other features as long as this is there.
struct Built {
    program: PathBuf,
    _lock: File,
}

impl Built {
    /// Runs the program with one argument.
    fn output(&self, argument: &str) -> Output {
        Command::new(&self.program).arg(argument).output().unwrap()
    }
}

/// Builds one of its programs with these arguments for Cargo.
fn build(program: &str, features: &[&str]) -> Built {
    static UNPACKED: LazyLock<[PathBuf; 2]> = LazyLock::new(packages);
    fs::create_dir_all(folder()).unwrap();
    // Tests are processes.
    let lock = File::create(folder().join("lock")).unwrap();
    lock.lock().unwrap();
    let external = Path::new(OWN).join("tests/external");
    // The versions of the workspace, so that nothing has to be downloaded.
    fs::copy(Path::new(OWN).join("../Cargo.lock"), external.join("Cargo.lock")).unwrap();
    let mut build = Command::new(env!("CARGO"));
    for (package, unpacked) in PACKAGES.iter().zip(&*UNPACKED) {
        build.arg("--config").arg(format!("patch.crates-io.{package}.path={unpacked:?}"));
    }
    build.args(["build", "--quiet", "--offline", "--bin", program]).args(features);
    run(build.current_dir(&external).env("CARGO_TARGET_DIR", folder()));
    Built { program: folder().join("debug").join(program), _lock: lock }
}

/// Runs one of its programs, and finds the end of a line that it prints. The program checks itself.
fn prints(program: &str, device: &str, ending: &str) {
    let output = build(program, &[]).output(device);
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program}: {said}{errors}");
    assert!(said.lines().any(|line| line.ends_with(ending)), "{program}: {said}{errors}");
}

/// The device of the tests, as the argument of the programs.
fn device() -> String {
    std::env::var("TEST_DEVICE").unwrap_or_default()
}

#[test]
fn a_crate_of_its_own_trains_to_the_same_bits_with_every_way_to_a_graph() {
    prints("own_network", &device(), "with 11 graphs");
    for (program, graphs) in [("whole_iteration", 2), ("graphed_callables", 4), ("one_block", 2)] {
        prints(program, &device(), &format!(": {graphs} graphs, the losses of the eager run to the bit"));
    }
}

#[test]
fn kernels_and_memory_of_other_crates_are_captured_with_the_bits_of_eager_steps() {
    prints("cudarc_kernel", &device(), "the same bits eagerly and with 1 graph");
    let on_gpu = device() == "cuda";
    prints("add_kernel", &device(), if on_gpu { "with 1 graph" } else { "-- cuda" });
    prints("precompiled", &device(), "the same bits eagerly and with 1 graph");
}

/// Other pages than the repository's show them too.
#[test]
fn the_first_pages_of_the_packages_link_to_nothing_outside_of_them() {
    for folder in ["", "../device"] {
        let page = fs::read_to_string(Path::new(OWN).join(folder).join("README.md")).unwrap();
        let targets = page.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
        let outside = targets.map(|(target, _)| target).find(|target| !target.starts_with(['#', 'h']));
        assert_eq!(outside, None, "of {folder:?}. Rule: docs.rs has the package alone. Fix: name the file");
    }
}

#[test]
fn two_ranks_sum_gradients_on_a_side_stream_of_their_graphs_and_learn_as_one() {
    let ending = "the same bits eagerly and with 2 graphs";
    prints("all_reduce", "", ending);
    if device() == "cuda" && device::cuda::gpu_count() > 1 {
        prints("all_reduce", "cuda", ending);
    }
}

#[test]
fn a_build_without_cuda_runs_on_the_host_and_says_what_it_lacks() {
    let program = build("one_block", &["--no-default-features"]);
    let host = program.output("");
    assert!(host.status.success(), "{}", String::from_utf8_lossy(&host.stderr));
    let cuda = program.output("cuda");
    let errors = String::from_utf8_lossy(&cuda.stderr);
    let message = "this program was built without CUDA. Fix: build it with the feature `cuda-13000`";
    assert!(!cuda.status.success() && errors.contains(message), "{errors}");
}
