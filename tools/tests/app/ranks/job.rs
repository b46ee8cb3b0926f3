//! Job files do what was asked for, and start a run that goes on until it is done. Programs of a cluster are played by
//! scripts.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::harness::{Folder, Running, arguments, expect, named, output_of, printed, saved, set_mpi, signal, wait_for};

const TRAINER: &str = env!("CARGO_BIN_EXE_trainer");

/// `trainer ARGUMENTS`, run in `folder`.
fn trainer(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(TRAINER);
    set_mpi(&mut command, folder);
    command.current_dir(folder).args(arguments);
    command
}

/// A job file of two ranks on this machine, without GPUs.
fn job(folder: &Path, cluster: &[&str], flags: &str) -> Output {
    let words = [&["job"], cluster, &["--ranks-per-node", "2", "--"]].concat();
    trainer(folder, &words).args(arguments(folder, flags)).args(["--device", "host"]).output().unwrap()
}

/// Puts a program into the folder `bin`, the first in the PATH of a job. It notes its arguments in a file of its name,
/// each in a line, and does what `script` says.
pub fn play(folder: &Path, program: &str, script: &str) {
    let bin = folder.join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    let note = folder.join(program);
    let text = format!("#!/bin/bash\nprintf '%s\\n' \"$@\" >>'{}'\n{script}\n", note.display());
    std::fs::write(bin.join(program), text).unwrap();
    std::fs::set_permissions(bin.join(program), PermissionsExt::from_mode(0o755)).unwrap();
}

/// The arguments that a program got in all its starts.
pub fn noted(folder: &Path, program: &str) -> Vec<String> {
    let text = std::fs::read_to_string(folder.join(program)).unwrap_or_default();
    text.lines().map(String::from).collect()
}

/// The PATH of a job: the programs that are played, then this user's.
pub fn path_of(folder: &Path) -> String {
    format!("{}:{}", folder.join("bin").display(), std::env::var("PATH").unwrap())
}

/// A shell script as Slurm's job 17 runs it.
fn start_job(folder: &Path, script: &Output) -> Running {
    expect(script, 0, &[]);
    std::fs::write(folder.join("job.sh"), &script.stdout).unwrap();
    let read = Command::new("bash").args(["-n", "job.sh"]).current_dir(folder).output().unwrap();
    expect(&read, 0, &[]);
    play(folder, "scontrol", "");
    let mut command = Command::new("bash");
    command.arg("job.sh").current_dir(folder).env("PATH", path_of(folder)).env("SLURM_JOB_ID", "17");
    set_mpi(&mut command, folder);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap().into()
}

#[test]
fn a_slurm_job_saves_before_its_time_is_over_and_queues_again_until_it_is_done() {
    let folder = Folder::new("job-slurm");
    let slurm = ["slurm", "--time", "1:00:00", "--partition", "p", "--name", "gpt"];
    let script = job(&folder.0, &slurm, "--steps 100000 --save-interval 5");
    expect(&script, 0, &["#SBATCH --ntasks-per-node=2\n#SBATCH --partition=p\n#SBATCH --time=1:00:00\n"]);
    assert!(!printed(&script).contains("gpus"));
    let child = start_job(&folder.0, &script);
    wait_for("no checkpoint", || named(&folder.0).into_iter().find(|step| *step >= 5));
    signal(child.id(), "USR1");
    expect(&output_of(child), 75, &["asked to end: stops after step"]);
    assert_eq!(noted(&folder.0, "scontrol"), ["requeue", "17"]);
    let last = *saved(&folder.0).last().unwrap();
    let script = job(&folder.0, &slurm, &format!("--steps {}", last + 1));
    expect(&output_of(start_job(&folder.0, &script)), 0, &["done: loss"]);
    assert_eq!(noted(&folder.0, "scontrol"), ["requeue", "17"]);
}

#[test]
fn a_slurm_script_has_all_options_that_were_asked_for_and_the_users_own_last() {
    let folder = Folder::new("job-options");
    let slurm = "slurm --nodes 2 --time 1-0 --notice-seconds 120 --partition p --account a --qos q --cpus-per-task 6 \
                 --exclusive --sbatch --constraint=h100 --sbatch=--mail-type=END --max-restarts 7";
    let slurm: Vec<&str> = slurm.split_whitespace().collect();
    let script = job(&folder.0, &slurm, "--steps 2");
    expect(&script, 0, &[]);
    let text = String::from_utf8(script.stdout).unwrap();
    let options: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("#SBATCH --")).collect();
    let expected = "job-name=trainer nodes=2 ntasks-per-node=2 cpus-per-task=6 exclusive partition=p account=a qos=q time=1-0 \
                    signal=B:USR1@120 requeue open-mode=append output=trainer-%j.log constraint=h100 mail-type=END";
    assert_eq!(options.join(" "), expected);
    let first = text.lines().position(|line| !line.starts_with('#')).unwrap();
    assert!(
        text.lines().skip(first).all(|line| !line.starts_with("#SBATCH")),
        "Slurm reads no options after a command"
    );
    assert!(text.contains("supervise --max-restarts 7 -- mpirun -n 4 --bind-to none"), "{text}");
}

#[test]
fn what_set_up_lines_export_reaches_all_ranks_and_nothing_else_is_named() {
    let folder = Folder::new("job-setup");
    std::fs::write(folder.path("modules.sh"), "export FROM_FILE=1\nnot_exported=1\n").unwrap();
    let mpirun = which("mpirun");
    play(
        &folder.0,
        "mpirun",
        &format!("env | grep -c '^GREETING=a b$' >>greeting\nexec {mpirun} --oversubscribe \"$@\""),
    );
    let setup = [
        "--setup",
        "export GREETING='a b' {supervisor}={name}",
        "--setup",
        "source modules.sh",
        "--setup",
        "export PATH=$PWD/tools:$PATH",
    ];
    for cluster in [&["slurm"][..], &["hosts", "--hosts", "localhost"]] {
        let script = job(&folder.0, &[cluster, &setup].concat(), "--steps 2");
        // The second word is no name of a variable. The shell says so and goes on.
        expect(
            &output_of(start_job(&folder.0, &script)),
            0,
            &["`{supervisor}={name}': not a valid identifier", "done: loss"],
        );
        let words = noted(&folder.0, "mpirun");
        let names: Vec<&str> = words.windows(2).filter(|pair| pair[0] == "-x").map(|pair| pair[1].as_str()).collect();
        assert_eq!(names, ["FROM_FILE", "GREETING", "PATH"], "{words:?}");
        std::fs::remove_file(folder.path("mpirun")).unwrap();
        std::fs::remove_dir_all(folder.path("saved")).unwrap();
    }
    let greeted = std::fs::read_to_string(folder.path("greeting")).unwrap();
    assert!(greeted.lines().all(|count| count == "1"), "{greeted}");
}

#[test]
fn no_value_breaks_out_of_its_line() {
    let folder = Folder::new("job-lines");
    for (flag, value) in [("--setup", "a\nb"), ("--sbatch", "--comment=a\nb"), ("--qos", "q\nb"), ("--time", "5\nb")] {
        let words = ["job", "slurm", flag, value, "--", "--save", "s"];
        expect(&trainer(&folder.0, &words).output().unwrap(), 2, &[flag, ". Rule: ", ". Fix: "]);
    }
}

/// The path of a program.
fn which(program: &str) -> String {
    let found = Command::new("which").arg(program).output().unwrap();
    String::from_utf8(found.stdout).unwrap().trim().to_string()
}

/// Runs a Slurm script with ranks in containers, and returns the arguments of `program`. The program starts the command
/// after the option or image `last`.
fn in_container(folder: &Folder, slurm: &[&str], program: &str, last: &str) -> Vec<String> {
    play(&folder.0, "trainer", &format!("exec {TRAINER} \"$@\""));
    let starts = format!("until [[ $1 = {last} ]]; do shift; done\nshift\n");
    let mpirun = format!("{} --oversubscribe --bind-to none -n 2", which("mpirun"));
    // srun starts both ranks, Apptainer starts one.
    play(&folder.0, program, &format!("{starts}exec {} \"$@\"", if program == "srun" { &mpirun } else { "" }));
    let script = job(&folder.0, slurm, "--steps 2");
    expect(&output_of(start_job(&folder.0, &script)), 0, &["done: loss"]);
    // Each rank is the image's trainer, and not the one that wrote the script.
    assert!(noted(&folder.0, "trainer").contains(&"--config".to_string()));
    noted(&folder.0, program)
}

#[test]
fn srun_starts_ranks_in_containers_of_pyxis_that_see_this_folder_and_those_that_are_named() {
    let folder = Folder::new("job pyxis");
    let other = Folder::new("job other");
    let mounts = other.0.to_str().unwrap();
    let slurm = ["slurm", "--starter", "srun", "--cpus-per-task", "3", "--container-image", "host#a/trainer:1"];
    let words =
        in_container(&folder, &[&slurm[..], &["--container-mounts", mounts]].concat(), "srun", "--container-workdir=*");
    let here = folder.0.to_str().unwrap();
    let expected = [
        "--mpi=pmix".to_string(),
        "--cpu-bind=none".into(),
        "--cpus-per-task=3".into(),
        "--container-image=host#a/trainer:1".into(),
        format!("--container-mounts={here}:{here},{mounts}:{mounts}"),
        format!("--container-workdir={here}"),
        "trainer".into(),
    ];
    assert_eq!(words[..7], expected);
}

#[test]
fn mpirun_starts_ranks_in_containers_of_apptainer() {
    let folder = Folder::new("job-apptainer");
    let words = in_container(&folder, &["slurm", "--apptainer", "my image.sif"], "apptainer", "*image.sif");
    let here = folder.0.to_str().unwrap();
    let bind = format!("{here}:{here}");
    let none = "OMPI_MCA_btl_vader_single_copy_mechanism=none";
    let expected = ["exec", "--bind", &bind, "--pwd", here, "--env", none, "my image.sif", "trainer"];
    assert_eq!(words[..9], expected);
    let with_gpus = ["job", "slurm", "--apptainer", "i", "--", "--global-batch-size", "16", "--save", "s"];
    expect(
        &trainer(&folder.0, &with_gpus).output().unwrap(),
        0,
        &["#SBATCH --gpus-per-node=8", " apptainer exec --nv "],
    );
}

#[test]
fn a_job_without_data_is_printed_and_the_user_is_told_and_one_with_data_is_not() {
    let folder = Folder::new("job-data");
    std::fs::write(folder.path("text"), "some text").unwrap();
    let told = |flags: &str, arguments: &[&str]| {
        let output = job(&folder.0, &[&["slurm"], arguments].concat(), flags);
        expect(&output, 0, &["#SBATCH --nodes=1"]);
        String::from_utf8(output.stderr).unwrap()
    };
    let notice = "notice: the job trains on text from the embedded random source. For your own: --data-path PATHS\n";
    assert_eq!(told("--steps 2", &[]), notice);
    assert_eq!(told("--steps 2 --data-path text", &[]), "");
    // A pattern that something fits, and a path that only the nodes have.
    assert_eq!(told("--data-path te*", &[]), "");
    assert_eq!(told("--data-path /lustre/tokens", &["--only-on-nodes", "/lustre"]), "");
}

#[test]
fn hosts_start_a_run_whose_flags_hold_blanks_and_quotes() {
    let folder = Folder::new("job-hosts");
    let script = job(&folder.0, &["hosts", "--hosts", "localhost"], "--steps 2");
    let config = folder.path("small.toml");
    let changed = std::fs::read_to_string(&config).unwrap().replace("/log\"", "/a log\"");
    std::fs::write(folder.path("it's small.toml"), changed).unwrap();
    assert!(printed(&script).contains("mpirun --host localhost:2 -n 2 "), "{}", printed(&script));
    let words = ["job", "hosts", "--hosts", "localhost", "--ranks-per-node", "2", "--", "--config", "it's small.toml"];
    let script = trainer(&folder.0, &words).args(["--steps", "2", "--device", "host"]).output().unwrap();
    expect(&output_of(start_job(&folder.0, &script)), 0, &["done: loss"]);
    assert!(folder.path("a log/metrics.jsonl").exists());
}

#[test]
fn a_host_is_named_once() {
    let folder = Folder::new("job-hosts-twice");
    let refused = |hosts: &str, what: &str| {
        let rule = ". Rule: every machine of the job is named once. Fix: ";
        expect(&job(&folder.0, &["hosts", "--hosts", hosts], "--steps 2"), 2, &[what, rule]);
    };
    refused("node1,node1", "--hosts names node1 twice");
    refused("a,node1,b,Node1", "--hosts names Node1 twice");
    let empty = [". Rule: the flag has a value, which is not empty. Fix: ", "is a comma too many?"];
    expect(&job(&folder.0, &["hosts", "--hosts", "node1,"], "--steps 2"), 2, &empty);
    let script = job(&folder.0, &["hosts", "--hosts", "node1,node10"], "--steps 2");
    assert!(printed(&script).contains("mpirun --host 'node1:2,node10:2' -n 4 "), "{}", printed(&script));
}

/// The manifests of a file as Kubernetes reads them.
pub fn read_manifests(folder: &Path, name: &str) -> Vec<Value> {
    let python = std::env::var("PARITY_PYTHON").expect("run `./x test`");
    let read = "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))";
    let read = Command::new(python).current_dir(folder).args(["-c", read, name]).output().unwrap();
    serde_json::from_slice(&read.stdout).unwrap_or_else(|error| panic!("{error}: {}", printed(&read)))
}

#[test]
fn a_manifest_for_kubernetes_says_what_was_asked_for() {
    let folder = Folder::new("job-kubernetes");
    let words =
        "job kubernetes --image registry/trainer:1 --claim disk --nodes 4 -- --global-batch-size 64 --save /data/c";
    let words: Vec<&str> = words.split(' ').collect();
    let manifest = trainer(&folder.0, &words).args(["--data-path", "/data/../image/text"]).output().unwrap();
    expect(&manifest, 0, &[]);
    let notice = "notice: data.path = /data/../image/text is not on the shared storage at /data. It must be in the image of \
                  every pod\n";
    assert_eq!(String::from_utf8_lossy(&manifest.stderr), notice);
    std::fs::write(folder.path("job.yaml"), &manifest.stdout).unwrap();
    let manifest = &read_manifests(&folder.0, "job.yaml")[0];
    let specs = &manifest["spec"]["mpiReplicaSpecs"];
    assert_eq!((&manifest["kind"], &manifest["spec"]["slotsPerWorker"]), (&"MPIJob".into(), &8.into()));
    assert_eq!(specs["Worker"]["replicas"], 4);
    let [launcher, worker] = ["Launcher", "Worker"].map(|role| &specs[role]["template"]["spec"]["containers"][0]);
    assert_eq!(worker["resources"]["limits"]["nvidia.com/gpu"], 8);
    assert_eq!((&worker["image"], &launcher["image"]), (&"registry/trainer:1".into(), &"registry/trainer:1".into()));
    let command: Vec<&str> =
        launcher["command"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
    let expected = "trainer supervise --max-restarts 3 -- mpirun --allow-run-as-root --bind-to none -n 32 trainer \
                    --global-batch-size 64 --save /data/c --data-path /data/../image/text";
    assert_eq!(command.join(" "), expected);
    assert_eq!(
        (&launcher["volumeMounts"][0]["mountPath"], &launcher["workingDir"]),
        (&"/data".into(), &"/data".into())
    );
}
